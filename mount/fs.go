package mount

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"

	"cafs/mount/transport"
	"cafs/mount/tree"
)

// fileSystem answers the messages of the kernel: one method per kind, in
// names.go, attr.go, data.go, dir.go and xattr.go. A node id is an inode number
// of the tree, or belongs to the view.
type fileSystem struct {
	fuse.RawFileSystem // answers ENOSYS to what is not implemented here

	tree   *tree.Tree
	view   *view // nil: no CID view
	log    *slog.Logger
	health func() error
	// makeRoom is Options.MakeRoom.
	makeRoom func(context.Context) (bool, error)
	ops      counters
	journal  journal
	forgets  forgets
	zeroing  zeroing
	// noOpendir: the kernel can do without OPENDIR (Linux 5.1).
	noOpendir atomic.Bool
	conn      *transport.Conn // set by start
}

func newFileSystem(o Options) *fileSystem {
	f := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		tree:          o.Tree,
		log:           o.Logger,
		health:        o.Health,
		makeRoom:      o.MakeRoom,
		forgets:       forgets{tree: o.Tree},
	}
	if o.Sys != nil {
		f.view = newView(o, uint32(os.Geteuid()), uint32(os.Getegid()), f.notifyListing)
	}
	return f
}

func (f *fileSystem) String() string { return subtype }

// start is called when the kernel and the protocol server have agreed, before
// any request.
func (f *fileSystem) start(c *transport.Conn) {
	f.conn = c
	f.noOpendir.Store(c.Settings().Flags64()&fuse.CAP_NO_OPENDIR_SUPPORT != 0)
}

// close is called after the last request.
func (f *fileSystem) close() {
	f.forgets.settle()
	if f.view != nil {
		f.view.close()
	}
}

// op is a kind of message.
type op uint8

const (
	opLookup op = iota
	opForget
	opGetattr
	opStatx
	opSetattr
	opAccess
	opReadlink
	opSymlink
	opMknod
	opMkdir
	opUnlink
	opRmdir
	opRename
	opLink
	opCreate
	opTmpfile
	opOpen
	opRead
	opWrite
	opLseek
	opCopyRange
	opFallocate
	opFlush
	opRelease
	opFsync
	opOpendir
	opReaddir
	opReaddirplus
	opReleasedir
	opFsyncdir
	opGetxattr
	opListxattr
	opSetxattr
	opRemovexattr
	opStatfs
	opIoctl
	opCount
)

var opNames = [opCount]string{
	"LOOKUP", "FORGET", "GETATTR", "STATX", "SETATTR", "ACCESS", "READLINK", "SYMLINK", "MKNOD", "MKDIR",
	"UNLINK", "RMDIR", "RENAME", "LINK", "CREATE", "TMPFILE", "OPEN", "READ", "WRITE", "LSEEK",
	"COPY_FILE_RANGE", "FALLOCATE", "FLUSH", "RELEASE", "FSYNC", "OPENDIR", "READDIR", "READDIRPLUS",
	"RELEASEDIR", "FSYNCDIR", "GETXATTR", "LISTXATTR", "SETXATTR", "REMOVEXATTR", "STATFS", "IOCTL",
}

func (o op) String() string { return opNames[o] }

// counters count messages by kind.
type counters [opCount]atomic.Uint64

func (c *counters) add(o op) { c[o].Add(1) }

// counts leaves out the kinds that never came.
func (c *counters) counts() map[string]uint64 {
	m := make(map[string]uint64)
	for o := range c {
		if n := c[o].Load(); n > 0 {
			m[op(o).String()] = n
		}
	}
	return m
}
