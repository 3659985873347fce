// Package disk is the file layer under everything cafs keeps: blocks, staging
// and the index. It is small on purpose, so that one crash model and one fault
// wrapper can stand in for the kernel under all three of them.
//
// Implementations: [OS] (the kernel, relative to kept folder handles), Mem (a
// model of a disk that forgets what was not synced) and Fault (fails or
// shortens the n-th call of another FS).
//
// Durability contract, which is that of Linux file systems and no more: bytes
// and size of a file survive a crash after File.Sync; a name (created, renamed,
// linked or removed) survives after FS.SyncDir of the folder that holds it;
// everything survives after FS.SyncFS. Anything else may or may not survive,
// each thing by itself.
package disk

import (
	"io"
	"io/fs"
)

// FS is one folder and everything below it. Names are slash-separated paths
// relative to that folder, without "..". Errors wrap the fs sentinels
// (fs.ErrNotExist, fs.ErrExist) and the syscall.Errno that caused them
// (ENOSPC, EIO, EDQUOT), so errors.Is works for both. Methods may be called
// concurrently.
type FS interface {
	// OpenFile opens a file; flag takes os.O_* bits, as open(2) does.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Sub opens an existing folder below this one. Its handle stays valid when
	// the folder is renamed. Closing it does not close the parent.
	Sub(name string) (FS, error)
	Mkdir(name string, perm fs.FileMode) error
	// Remove unlinks a file or removes an empty folder.
	Remove(name string) error
	// Rename moves oldname to newname in the folder newdir (an FS of the same
	// implementation and device), atomically replacing a file there.
	Rename(oldname string, newdir FS, newname string) error
	// Link makes newname in newdir another name of the file oldname.
	Link(oldname string, newdir FS, newname string) error
	// ReadDir lists a folder in no particular order.
	ReadDir(name string) ([]Dirent, error)
	Stat(name string) (Info, error)
	// SyncDir makes the names in this very folder durable. When it has failed, it
	// fails for ever: what was lost then is not known.
	SyncDir() error
	// SyncFS makes everything on the file system durable (syncfs(2)). A failure is
	// reported once; callers who share a handle share the calls, too.
	SyncFS() error
	// Usage tells the room on the file system.
	Usage() (Usage, error)
	Close() error
}

// File is an open file. Methods may be called concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	// Sync makes bytes and size durable (fdatasync(2)). After an error nothing
	// may be assumed about any byte written since the last successful Sync, and
	// a later success does not repair that.
	Sync() error
	// WriteOut starts writing n bytes at off to the device and does not wait:
	// a hint that makes a later Sync short.
	WriteOut(off, n int64) error
	// Allocate reserves room for n bytes at off and extends the size to
	// off+n when keepSize is false (fallocate(2)).
	Allocate(off, n int64, keepSize bool) error
	Size() (int64, error)
}

// Dirent is one name in a folder.
type Dirent struct {
	Name string
	Dir  bool
}

// Info describes a file or folder.
type Info struct {
	Size int64 // bytes
	Dir  bool
	Mode fs.FileMode
}

// Usage is the room on a file system; bytes and inodes.
type Usage struct {
	Total, Free, Avail int64 // bytes; Avail is what an ordinary user may take
	Files, FilesFree   int64 // inodes; 0 where the file system does not count them
}
