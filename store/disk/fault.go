package disk

import (
	"io/fs"
	"os"
	"sync/atomic"
)

// OpKind is what a call does.
type OpKind string

// The kinds of call that Fault sees. Close is never failed: it would leak.
const (
	OpOpen     OpKind = "open" // opens an existing file, or creates one
	OpCreate   OpKind = "create"
	OpMkdir    OpKind = "mkdir"
	OpRemove   OpKind = "remove"
	OpRename   OpKind = "rename"
	OpLink     OpKind = "link"
	OpReadDir  OpKind = "readdir"
	OpStat     OpKind = "stat"
	OpUsage    OpKind = "usage"
	OpSyncDir  OpKind = "syncdir"
	OpSyncFS   OpKind = "syncfs"
	OpRead     OpKind = "read"
	OpWrite    OpKind = "write"
	OpTruncate OpKind = "truncate"
	OpSync     OpKind = "sync"
	OpWriteOut OpKind = "writeout"
	OpAllocate OpKind = "allocate"
)

// Changes tells whether calls of this kind change what is on disk or durable.
func (k OpKind) Changes() bool {
	switch k {
	case OpOpen, OpReadDir, OpStat, OpUsage, OpRead:
		return false
	}
	return true
}

// Op is one call of a Fault file system.
type Op struct {
	Kind OpKind
	Name string // of the file, relative to the folder it was opened in
	N    int64  // number of the call, from 1, over all folders and files
}

// ShortWrite as the error from a Fault's inject function lets the first N bytes
// of a write reach the file before the call fails with Err.
type ShortWrite struct {
	N   int
	Err error
}

func (s *ShortWrite) Error() string { return "short write: " + s.Err.Error() }

// Unwrap gives the error that the caller of WriteAt sees.
func (s *ShortWrite) Unwrap() error { return s.Err }

// faultFS passes calls on unless inject gives an error for them.
type faultFS struct {
	fs     FS
	inject func(Op) error
	calls  *atomic.Int64
}

// NewFault wraps fs: inject is called before each call and its error, if any,
// is returned in place of the call, as a *fs.PathError. It may be called
// concurrently. A failed Sync or SyncFS takes the pages of the file, or of all
// files, for clean, as Linux does: on a Mem, later syncs do not save them. Each
// handle of such a file that was not told yet is told by its next Sync.
func NewFault(fs FS, inject func(Op) error) FS {
	return &faultFS{fs: fs, inject: inject, calls: new(atomic.Int64)}
}

// FailAt fails the n-th call (from 1) of the given kinds, or of all kinds, with err.
func FailAt(n int64, err error, kinds ...OpKind) func(Op) error {
	var seen atomic.Int64
	return func(op Op) error {
		if matches(op.Kind, kinds) && seen.Add(1) == n {
			return err
		}
		return nil
	}
}

// FailFrom is FailAt for the n-th call and all later ones.
func FailFrom(n int64, err error, kinds ...OpKind) func(Op) error {
	var seen atomic.Int64
	return func(op Op) error {
		if matches(op.Kind, kinds) && seen.Add(1) >= n {
			return err
		}
		return nil
	}
}

func matches(k OpKind, kinds []OpKind) bool {
	for _, want := range kinds {
		if k == want {
			return true
		}
	}
	return len(kinds) == 0
}

func (f *faultFS) fail(kind OpKind, name string) error {
	if err := f.inject(Op{Kind: kind, Name: name, N: f.calls.Add(1)}); err != nil {
		return pathErr(string(kind), name, err)
	}
	return nil
}

func (f *faultFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	kind := OpOpen
	if flag&os.O_CREATE != 0 {
		kind = OpCreate
	}
	if err := f.fail(kind, name); err != nil {
		return nil, err
	}
	file, err := f.fs.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultFile{fs: f, file: file, name: name}, nil
}

func (f *faultFS) Sub(name string) (FS, error) {
	if err := f.fail(OpOpen, name); err != nil {
		return nil, err
	}
	sub, err := f.fs.Sub(name)
	if err != nil {
		return nil, err
	}
	return &faultFS{fs: sub, inject: f.inject, calls: f.calls}, nil
}

func (f *faultFS) Mkdir(name string, perm fs.FileMode) error {
	if err := f.fail(OpMkdir, name); err != nil {
		return err
	}
	return f.fs.Mkdir(name, perm)
}

func (f *faultFS) Remove(name string) error {
	if err := f.fail(OpRemove, name); err != nil {
		return err
	}
	return f.fs.Remove(name)
}

func (f *faultFS) Rename(oldname string, newdir FS, newname string) error {
	if err := f.fail(OpRename, oldname); err != nil {
		return err
	}
	return f.fs.Rename(oldname, bare(newdir), newname)
}

func (f *faultFS) Link(oldname string, newdir FS, newname string) error {
	if err := f.fail(OpLink, oldname); err != nil {
		return err
	}
	return f.fs.Link(oldname, bare(newdir), newname)
}

func bare(fs FS) FS {
	if f, ok := fs.(*faultFS); ok {
		return f.fs
	}
	return fs
}

func (f *faultFS) ReadDir(name string) ([]Dirent, error) {
	if err := f.fail(OpReadDir, name); err != nil {
		return nil, err
	}
	return f.fs.ReadDir(name)
}

func (f *faultFS) Stat(name string) (Info, error) {
	if err := f.fail(OpStat, name); err != nil {
		return Info{}, err
	}
	return f.fs.Stat(name)
}

func (f *faultFS) SyncDir() error {
	if err := f.fail(OpSyncDir, "."); err != nil {
		return err
	}
	return f.fs.SyncDir()
}

func (f *faultFS) SyncFS() error {
	err := f.fail(OpSyncFS, ".")
	if err == nil {
		return f.fs.SyncFS()
	}
	if m, ok := f.fs.(interface{ forget() }); ok {
		m.forget()
	}
	return err
}

func (f *faultFS) Usage() (Usage, error) {
	if err := f.fail(OpUsage, "."); err != nil {
		return Usage{}, err
	}
	return f.fs.Usage()
}

func (f *faultFS) Close() error { return f.fs.Close() }
