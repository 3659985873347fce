// Package history is the format of commits: what the tree was at a moment,
// with all that its content addresses leave out.
//
// A commit is a dag-cbor block that links the root directory (UnixFS, what IPFS
// sees), an attribute tree, and its parents. The attribute tree has the shape
// of the content tree: for each directory a map from names to entries, which
// have the attributes, the content's CID, and for directories the root of their
// own map. An inode with several names is there as its link id, a random number
// that a second map, of the whole commit, resolves. Nothing in a commit belongs
// to one machine, such as inode numbers.
//
// A map is a hash trie over dag-cbor blocks: a block holds the entries
// themselves as long as their weight is at most leafLimit, and otherwise links
// to 16 blocks by the next four bits of the names' hashes. So a map is a
// function of its entries, equal maps have equal CIDs, and a change of one entry
// writes O(log n) blocks. Larger extended attributes are blocks of their own.
//
// Functions here load and emit blocks and keep nothing.
package history

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/index"
)

// Version is the format of commits that this package writes.
const Version = 1

var (
	// ErrFormat: a block is no commit or no part of one.
	ErrFormat = errors.New("not a commit")
	// ErrVersion: the commit has a format this program does not know.
	ErrVersion = errors.New("commit has an unknown format version")
)

// Load returns the bytes of a block, checked against its CID.
type Load = unixfs.Load

// Emit takes a new block, children before parents.
type Emit = unixfs.Emit

// LinkID names an inode with several names within a commit; zero: it has one.
type LinkID [16]byte

// Entry is one name of a directory, or in the map of links one inode, whose
// name is its link id.
type Entry struct {
	Name string
	// Link, unless zero, says where the rest is: in the commit's map of links.
	Link LinkID

	Kind     index.Kind
	Perm     uint16 // the low 12 bits of st_mode
	Uid, Gid uint32
	Rdev     uint32
	Nlink    uint32 // in the map of links; else 0

	Atime, Mtime, Ctime, Btime index.Timespec

	Cid    cid.Cid // content; undefined for FIFOs, sockets and devices
	Size   int64   // bytes of a file's content
	Data   int64   // of those, bytes that are not holes
	Tsize  uint64  // bytes of blocks below Cid
	Target string  // of a symbolic link

	// Record, of a directory, is the map of its entries. Undefined: what is
	// below has the attributes that adopting the bare content gives.
	Record cid.Cid
	Hard   uint64 // of a directory: names below it that are link ids

	Xattrs []Xattr // sorted by name
}

// Xattr is an extended attribute: its value, or the block that has it.
type Xattr struct {
	Name  string
	Value []byte
	Block cid.Cid
}

// MaxInlineXattrs is how many bytes of extended attributes an entry holds
// itself: beyond it the largest values are blocks.
const MaxInlineXattrs = 1 << 10

// Commit is the state of a tree at a moment.
type Commit struct {
	Root    Entry   // the root directory; its Name is empty
	Links   cid.Cid // the map of inodes with several names; undefined: there are none
	Parents []cid.Cid
	Time    time.Time
	Reason  string // who asked for it: snapshot, hourly, seal, restore
	Message string
}

// xattrBlock stores a value.
func xattrBlock(value []byte, emit Emit) (cid.Cid, error) {
	return block(cid.Raw, value, emit)
}

func block(codec uint64, data []byte, emit Emit) (cid.Cid, error) {
	c, err := cid.V1Builder{Codec: codec, MhType: mh.SHA2_256}.Sum(data)
	if err != nil {
		return cid.Undef, err
	}
	return c, emit(unixfs.Block{Cid: c, Data: data})
}

// XattrValue returns the value of an extended attribute.
func XattrValue(ctx context.Context, load Load, x Xattr) ([]byte, error) {
	if !x.Block.Defined() {
		return x.Value, nil
	}
	b, err := load(ctx, x.Block)
	if err != nil {
		return nil, fmt.Errorf("history: attribute %q: %w", x.Name, err)
	}
	return b, nil
}
