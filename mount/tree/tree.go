// Package tree is the working tree without the kernel: inodes, directories,
// attributes and file contents over an index (mount/tree/index), an overlay of
// extents (mount/tree/content) and content addresses (linksys).
//
// Operations are those of the VFS: names are resolved one at a time, inodes are
// referred to by number, and a reference taken by Lookup, Create, Symlink,
// Link, Tmpfile or ReaddirPlus is given back by Forget. An inode without names
// lives for as long as it has references. The caller has checked permissions
// (in a mount, the kernel has).
//
// Promises (DESIGN 6): one namespace operation is one index batch, entered at
// once and in one order; Fsync and Sync are barriers; contents are published
// per inode, with the size and the extents of one moment.
//
// # Locks
//
// In this order, each only for as long as memory or one index batch takes:
//
//	ns       read: operations on names below one directory; write: renames of
//	         directories and between them, and the cut and the end of a seal
//	publish  of one inode: one uncommitted cut at a time; the only lock held
//	         while bytes are written out
//	inode    parents before children, two files of one directory by number; two
//	         inodes otherwise only under ns (write)
//	table    the shards of the inode table; dirty set; seal set
//
// Errors match the fs sentinels (fs.ErrNotExist, fs.ErrExist), a
// syscall.Errno where there is no sentinel (ENOTDIR, EISDIR, ENOTEMPTY, EXDEV,
// ENODATA …), index.ErrReadOnly, or store.ErrNotFound and store.ErrCorrupt for
// content that cannot be read, which is never a missing name.
package tree

import (
	"log/slog"
	"time"

	mh "github.com/multiformats/go-multihash"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
)

// Ino is an inode number, never reused.
type Ino = index.Ino

// RootIno is the inode number of the tree's root.
const RootIno Ino = 1

// MaxName is the longest name of a directory entry, in bytes.
const MaxName = 255

// MaxLinks is the most names an inode can have.
const MaxLinks = 1 << 20

// Attr is what stat(2) tells of an inode.
type Attr struct {
	Ino                        Ino
	Kind                       index.Kind
	Perm                       uint16 // the low 12 bits of st_mode
	Nlink, Uid, Gid, Rdev      uint32
	Size                       int64 // bytes
	Blocks                     int64 // 512-byte units that hold data
	Atime, Mtime, Ctime, Btime index.Timespec
}

// Cred is who creates something: its owner, and the umask to apply where the
// parent has no default ACL.
type Cred struct {
	Uid, Gid uint32
	Umask    uint16
}

// AttrMask says which fields of a SetAttr count.
type AttrMask uint16

// The bits of AttrMask.
const (
	SetPerm AttrMask = 1 << iota
	SetUid
	SetGid
	SetSize
	SetAtime
	SetMtime
	SetCtime
	KillPriv // clear suid, sgid and security.capability (FUSE_HANDLE_KILLPRIV_V2)
)

// Member tells whether who makes a change is in a group. Where suid and sgid
// have to go, sgid without group execution goes only when the change is made by
// somebody outside the file's group. It is asked for such files alone, with
// locks held, and must not use the mount.
type Member func(gid uint32) bool

// SetAttr is a change of attributes; "now" has been resolved by the caller.
type SetAttr struct {
	Mask                AttrMask
	Perm                uint16
	Uid, Gid            uint32
	Size                int64
	Atime, Mtime, Ctime index.Timespec
	Member              Member // nil: in every group
}

// Node is something to be created.
type Node struct {
	Kind Kind
	Perm uint16 // before umask or default ACL
	Rdev uint32
}

// Kind is the type of an inode.
type Kind = index.Kind

// Dirent is a directory entry; Cookie continues a listing after it.
type Dirent = index.Dirent

// RenameFlags are those of renameat2(2).
type RenameFlags uint32

// The flags of renameat2(2) that the tree knows.
const (
	RenameNoReplace RenameFlags = 1 << iota
	RenameExchange
	RenameWhiteout // leaves a device 0:0 at the old name, for overlays
)

// Options configure a tree. DB, Content and Profile are required.
type Options struct {
	DB             *index.DB
	Content        *content.Files
	Sys            *linksys.System
	Blocks         Blocks
	Profile        unixfs.Profile
	CommitInterval time.Duration // how often contents are published; default 5 s
	SealAfter      time.Duration // quiet time before a file is sealed; default 10 s
	Inodes         int           // how many stay in memory that are only referred to; default 131072
	Logger         *slog.Logger
	// Owner owns the root of a new tree.
	Owner Cred
	// Committed, when set, is called with each commit before the index refers to
	// it, its blocks being durable; an error fails the commit.
	Committed func(Kept) error
	// Deleted, when set, hears of each block that a collection deleted, and its
	// length in bytes.
	Deleted func(h mh.Multihash, size int64)
	// Changed, when set, is called without locks held after the attributes of
	// an inode changed in a way the kernel did not ask for (suid cleared by a
	// write), so that caches can be dropped.
	Changed func(Ino)
}
