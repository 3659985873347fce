// Package index is the working tree's own database: inodes, directory entries,
// extents, extended attributes, orphans, staging segments, page checksums and
// refs. It knows the schema and nothing of what the records mean together; the
// tree above it decides which changes form one batch.
//
// Order and durability. Batches enter the log in the order in which Commit is
// called and are atomic. After a crash the database holds exactly the first n
// committed batches for some n not smaller than the number of those that had
// returned from Commit before the last successful Sync began.
//
// Failure. The first write, sync or name change of an index file that fails
// ends all writing for good: Failed is closed, Commit and Sync return errors
// that wrap [ErrReadOnly], and reads go on. See [guard] for how the engine is
// kept from ending the process.
//
// Iterators hold resources of the engine while they run: consume them without
// waiting for locks, kernels or networks in between. What readers return is the
// caller's own; nothing aliases the engine's memory.
//
// Locks: reserveMu is held across a Sync; syncer.mu and stall.mu are leaves.
package index

import (
	"errors"

	"github.com/ipfs/go-cid"
)

// Ino is the number of an inode: never 0, never reused, below 1<<63.
type Ino uint64

// Root is the inode of the tree's root directory.
const Root Ino = 1

// maxIno bounds inode numbers: ids from 1<<63 up belong to the CID view.
const maxIno Ino = 1 << 63

// Kind says what an inode is. The values are on disk.
type Kind uint8

// The kinds of inode.
const (
	File Kind = 1 + iota
	Dir
	Symlink
	Fifo
	Socket
	CharDev
	BlockDev
)

// Timespec is a point in time: seconds since 1970 and nanoseconds below 1e9.
type Timespec struct {
	Sec  int64
	Nsec uint32
}

// Range is a range of bytes.
type Range struct{ Off, Len int64 }

// Content says where an inode's bytes come from.
type Content struct {
	Base     cid.Cid // undefined: none
	BaseSize int64   // bytes
	BaseData int64   // bytes of Base that are not in zero leaves; for st_blocks
	Size     int64   // bytes
	// Visible are the ranges of Base not hidden by a truncation or a hole,
	// ascending, disjoint and not empty.
	Visible []Range
}

// Inode is what the index keeps of an inode.
type Inode struct {
	Kind  Kind
	Perm  uint16 // the 07777 bits
	Uid   uint32
	Gid   uint32
	Nlink uint32
	Rdev  uint32

	Atime, Mtime, Ctime, Btime Timespec

	// Parent and Cookie say where the inode's only or first name is; for a
	// directory always its one parent.
	Parent Ino
	Cookie uint64

	// Content: for files all of it; for directories Base is the cached CID; for
	// symlinks Base is the CID when known.
	Content
	Target   string   // symlinks
	Tsize    uint64   // cumulative DAG size of Base
	Next     uint64   // directories: the next cookie to give out
	Unsealed bool     // Base is stale or undefined
	LinkID   [16]byte // random, given when Nlink becomes 2; else zero
	Alloc    int64    // files: bytes that hold data, as last published; for st_blocks
	Xattrs   uint32   // number of extended attributes

	// Record, of directories, is the root of the attributes of all entries as
	// the last commit recorded them; undefined: none did. See SetUnrecorded.
	Record cid.Cid
	// Lazy directories have their entries in Base, and their attributes in
	// Record if it is defined, until the tree expands them.
	Lazy bool
}

// Dirent is one name in a directory. Cookies grow within a directory; a name that
// comes to lead elsewhere keeps its cookie.
type Dirent struct {
	Name   string
	Ino    Ino
	Kind   Kind
	Cookie uint64
}

// Backref is one name of an inode that has, or had, several.
type Backref struct {
	Parent Ino
	Cookie uint64
}

// ExtentKind says where an extent's bytes are. The values are on disk.
type ExtentKind uint8

// The kinds of extent.
const (
	Inline ExtentKind = 1 + iota // in the record
	Staged                       // in a staging segment
	Block                        // in a leaf block
	Hole                         // nowhere: zeros
)

// Extent is a range of a file's bytes newer than its base.
type Extent struct {
	Off, Len int64
	Kind     ExtentKind
	Data     []byte  // Inline: the bytes; len(Data) == Len
	Seg      uint64  // Staged: the segment
	Pos      int64   // Staged: offset of the record's head in the segment
	CRC      uint32  // Staged: CRC32C of the record's head, which has those of the data
	Block    cid.Cid // Block: the leaf
	Skip     int64   // Staged, Block: offset of the first byte in the record's or leaf's data
}

// Xattr is one extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

// Segment is a staging segment and the number of its bytes that extents refer to.
type Segment struct {
	ID   uint64
	Live int64
}

// Ref is a named value: snapshots, pins, the repository's own marks.
type Ref struct {
	Name  string
	Value []byte
}

var (
	// ErrReadOnly: an earlier write of the index failed; nothing can be changed
	// until the index is opened again. The error that wraps it has the cause.
	ErrReadOnly = errors.New("index is read-only after a failed write")
	// ErrVersion: the index was written in a format this program does not know.
	ErrVersion = errors.New("index has an unknown format version")
	// ErrCorrupt: a record cannot be decoded.
	ErrCorrupt = errors.New("index record is damaged")
	// ErrClosed: the index was closed.
	ErrClosed = errors.New("index closed")
)
