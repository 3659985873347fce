package mount

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

// view shows content by its address, read-only, below .cafs in the root:
//
//	.cafs/ipfs/<CID>[/path]  a UnixFS file, directory or link; else the bytes of the block
//	.cafs/block/<CID>        the bytes of the block
//	.cafs/dag/<CID>          the block as dag-json
//	.cafs/snapshots/<name>   the tree as a snapshot has it, with all attributes
//	.cafs/at/<time>          likewise, as of the last commit by then
//
// A CID may be written in any version, base and case. What is no CID is ENOENT;
// a block that is not here is EIO, and the log names it. Only .cafs/ipfs lists
// something: the roots the repository knows.
//
// Each path has a node of its own, also where contents are equal: one id per
// CID would make the kernel move directories about when two paths have the same
// content. A node lives while the kernel refers to it.
type view struct {
	sys      *linksys.System
	tree     *tree.Tree // for the past
	roots    func(context.Context) ([]cid.Cid, error)
	notify   func(id uint64) // drops the kernel's copy of a listing
	uid, gid uint32
	made     index.Timespec

	life context.Context // of listings, which go on from request to request
	stop context.CancelFunc

	mu    sync.Mutex
	nodes map[uint64]*node
	json  struct { // the dag-json encoded last, so that reading one is linear
		c    cid.Cid
		data []byte
	}
}

// firstViewID divides the ids of nodes: the tree's inodes are below.
const firstViewID = 1 << 63

func isView(id uint64) bool { return id >= firstViewID }

// nodeID is the id of name in parent: the same whenever it is looked up, so
// that programs can compare inode numbers, and a listing can tell it without a
// node. It keeps clear of the highest ids, which go-fuse uses one of.
func nodeID(parent uint64, name string) uint64 {
	sum := sha256.Sum256(append(binary.BigEndian.AppendUint64(make([]byte, 0, 64), parent), name...))
	return firstViewID | binary.BigEndian.Uint64(sum[:])>>2
}

// nodeKind says how a node of the view answers.
type nodeKind uint8

const (
	topDir       nodeKind = iota // .cafs
	ipfsDir                      // .cafs/ipfs
	blockDir                     // .cafs/block
	dagDir                       // .cafs/dag
	snapshotsDir                 // .cafs/snapshots
	atDir                        // .cafs/at
	contentNode                  // a UnixFS directory, file or link, or a block
	jsonFile                     // below .cafs/dag
	pastNode                     // below .cafs/snapshots and .cafs/at: anything
)

// node is one path in the view. What is not guarded never changes.
type node struct {
	id, parent uint64
	name       string
	kind       nodeKind
	c          cid.Cid // what the path names; undefined for the fixed directories
	bytes      cid.Cid // what is read
	attr       tree.Attr
	target     string // of a link
	past       *past  // of a pastNode
	version    string // tells nodes apart that were found under the same name

	refs uint64 // the kernel's references; guarded by view.mu

	mu    sync.Mutex // guards below; held while blocks are read
	file  *linksys.File
	lists []*listing // listings under way
}

var (
	topID   = nodeID(uint64(tree.RootIno), reserved)
	ipfsID  = nodeID(topID, "ipfs")
	blockID = nodeID(topID, "block")
	dagID   = nodeID(topID, "dag")
	snapsID = nodeID(topID, "snapshots")
	atID    = nodeID(topID, "at")
)

// fixed are the directories above the CIDs, in the order they are listed.
var fixed = []struct {
	name string
	id   uint64
	kind nodeKind
}{{"ipfs", ipfsID, ipfsDir}, {"block", blockID, blockDir}, {"dag", dagID, dagDir},
	{"snapshots", snapsID, snapshotsDir}, {"at", atID, atDir}}

func newView(o Options, uid, gid uint32, notify func(uint64)) *view {
	now := time.Now()
	v := &view{
		sys:    o.Sys,
		tree:   o.Tree,
		roots:  o.Roots,
		notify: notify,
		uid:    uid,
		gid:    gid,
		made:   index.Timespec{Sec: now.Unix(), Nsec: uint32(now.Nanosecond())},
		nodes:  make(map[uint64]*node),
	}
	v.life, v.stop = context.WithCancel(context.Background())
	v.addFixed(topID, uint64(tree.RootIno), reserved, topDir)
	for _, d := range fixed {
		v.addFixed(d.id, topID, d.name, d.kind)
	}
	return v
}

func (v *view) addFixed(id, parent uint64, name string, kind nodeKind) {
	n := &node{id: id, parent: parent, name: name, kind: kind}
	n.attr = v.dirAttr(id)
	v.nodes[id] = n
}

// dirAttr has one link: that tells find(1) nothing about subdirectories.
func (v *view) dirAttr(id uint64) tree.Attr {
	return tree.Attr{
		Ino: tree.Ino(id), Kind: index.Dir, Perm: 0o555, Nlink: 1, Uid: v.uid, Gid: v.gid,
		Atime: v.made, Mtime: v.made, Ctime: v.made, Btime: v.made,
	}
}

// close ends the listings under way; no request comes any more.
func (v *view) close() {
	v.stop()
	v.mu.Lock()
	nodes := v.nodes
	v.nodes = nil
	v.mu.Unlock()
	for _, n := range nodes {
		n.drop()
	}
}

// get finds a node the kernel refers to.
func (v *view) get(id uint64) (*node, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n, ok := v.nodes[id]; ok {
		return n, nil
	}
	return nil, syscall.ESTALE
}

// lookup finds name in parent and takes a reference on its node.
func (v *view) lookup(ctx context.Context, parent uint64, name string) (*node, error) {
	if parent == uint64(tree.RootIno) {
		return v.get(topID)
	}
	p, err := v.get(parent)
	if err != nil {
		return nil, err
	}
	var n *node
	switch p.kind {
	case topDir:
		for _, d := range fixed {
			if d.name == name {
				return v.get(d.id)
			}
		}
		return nil, fs.ErrNotExist
	case contentNode:
		if p.attr.Kind != index.Dir {
			return nil, syscall.ENOTDIR
		}
		t, err := v.sys.Resolve(ctx, p.c, name)
		if err != nil {
			return nil, err
		}
		n, err = v.open(ctx, t.Cid)
		if err != nil {
			return nil, err
		}
	case jsonFile:
		return nil, syscall.ENOTDIR
	case snapshotsDir, atDir:
		if n, err = v.lookupCommit(ctx, p.kind, name); err != nil {
			return nil, err
		}
	case pastNode:
		if n, err = v.lookupPast(ctx, p, name); err != nil {
			return nil, err
		}
	default:
		c, err := cid.Decode(name)
		if err != nil {
			return nil, fs.ErrNotExist
		}
		n, err = v.openRoot(ctx, p.kind, c)
		if err != nil {
			return nil, err
		}
	}
	n.parent, n.name = p.id, name
	return v.insert(n)
}

// insert adds n, or finds the node that is there for its path, with one more
// reference.
func (v *view) insert(n *node) (*node, error) {
	n.id = nodeID(n.parent, n.name+n.version)
	n.attr.Ino = tree.Ino(n.id)
	v.mu.Lock()
	defer v.mu.Unlock()
	if old, ok := v.nodes[n.id]; ok {
		if old.parent != n.parent || old.name != n.name {
			return nil, fmt.Errorf("mount: view: %q and %q have the same id", old.name, n.name)
		}
		n = old
	}
	n.refs++
	v.nodes[n.id] = n
	return n, nil
}

// forget gives k references back.
func (v *view) forget(id, k uint64) {
	v.mu.Lock()
	n := v.nodes[id]
	if n == nil || n.parent == topID || n.id == topID {
		v.mu.Unlock()
		return // fixed directories stay
	}
	n.refs -= min(k, n.refs)
	gone := n.refs == 0
	if gone {
		delete(v.nodes, id)
	}
	v.mu.Unlock()
	if gone {
		n.drop()
	}
}

// openRoot makes the node of a CID right below one of the fixed directories.
func (v *view) openRoot(ctx context.Context, dir nodeKind, c cid.Cid) (*node, error) {
	switch dir {
	case blockDir:
		n, err := v.open(ctx, rawOf(c))
		if err == nil {
			n.c = c
		}
		return n, err
	case dagDir:
		data, err := v.dagJSON(ctx, c)
		n := &node{kind: jsonFile, c: c, bytes: c, attr: v.fileAttr(int64(len(data)), 0)}
		return n, err
	}
	return v.open(ctx, c)
}

// open makes the node of what c stands for.
func (v *view) open(ctx context.Context, c cid.Cid) (*node, error) {
	info, err := v.sys.Stat(ctx, c)
	if err != nil {
		return nil, err
	}
	n := &node{kind: contentNode, c: c, bytes: c, target: info.Target}
	switch info.Type {
	case linksys.Directory:
		n.attr = v.dirAttr(0)
	case linksys.Symlink:
		n.attr = v.fileAttr(info.Size, 0)
		n.attr.Kind, n.attr.Perm = index.Symlink, 0o777
	case linksys.Regular:
		n.attr = v.fileAttr(info.Size, info.Mode)
	default: // no UnixFS: the block itself
		n.bytes = rawOf(c)
		n.attr = v.fileAttr(info.Size, 0)
	}
	// Content has no time but the one it was given; always the same one else,
	// so that tools that compare times see no change.
	t := index.Timespec{}
	if !info.Mtime.IsZero() {
		t = index.Timespec{Sec: info.Mtime.Unix(), Nsec: uint32(info.Mtime.Nanosecond())}
	}
	n.attr.Atime, n.attr.Mtime, n.attr.Ctime, n.attr.Btime = t, t, t, t
	return n, nil
}

// fileAttr is readable by all, since who knows the CID may have the bytes;
// executable when stored so; never set-user-id.
func (v *view) fileAttr(size int64, mode uint32) tree.Attr {
	return tree.Attr{
		Kind: index.File, Perm: 0o444 | uint16(mode&0o111), Nlink: 1, Uid: v.uid, Gid: v.gid,
		Size: size, Blocks: (size + 511) / 512,
	}
}

// rawOf names the bytes of c's block, whatever its codec.
func rawOf(c cid.Cid) cid.Cid { return cid.NewCidV1(cid.Raw, c.Hash()) }

// dagJSON encodes the block of c. The size of a file must be known when it is
// looked up, so it is encoded then, and again for reads when another was since.
func (v *view) dagJSON(ctx context.Context, c cid.Cid) ([]byte, error) {
	v.mu.Lock()
	data, ok := v.json.data, v.json.c == c && v.json.data != nil
	v.mu.Unlock()
	if ok {
		return data, nil
	}
	var b bytes.Buffer
	if err := v.sys.WriteJSON(ctx, &b, linksys.Target{Cid: c}); err != nil {
		return nil, err
	}
	v.mu.Lock()
	v.json.c, v.json.data = c, b.Bytes()
	v.mu.Unlock()
	return b.Bytes(), nil
}

// path names a node from the root, for messages.
func (v *view) path(id uint64) string {
	p := ""
	v.mu.Lock()
	defer v.mu.Unlock()
	for depth := 0; isView(id) && depth < 4096; depth++ {
		n, ok := v.nodes[id]
		if !ok {
			return "?" + p
		}
		p = "/" + n.name + p
		id = n.parent
	}
	return p
}
