package index

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync/atomic"
	"time"

	"cafs/store/disk"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// logStep is how far ahead of its writes a log is filled with zeros, so that
	// a sync has nothing but bytes to make durable: neither a size nor, as after
	// fallocate(2), that blocks have been written to. With a journal that is one
	// flush of the device instead of two. Recycled logs have all their room.
	logStep = 1 << 20
	// logPlenty is the free space below which nothing is filled ahead: the last
	// bytes of a disk are for changes, above all for removals.
	logPlenty = 64 << 20
	// writeOutStep is how often files being written are handed to the device, so
	// that the sync at their end is short.
	writeOutStep = 512 << 10
)

// files gives the engine one flat folder of the file layer as a vfs.FS.
type files struct{ g *guard }

var _ vfs.FS = files{}

// Create makes a new file, in place of one of the same name. The name of what a
// marker points at is made durable first: the engine leaves it to one sync of
// the folder, after which either name may have been lost without the other.
func (f files) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	var file disk.File
	_, err := f.g.do("create", name, func() error {
		if isMarker(name) {
			if err := f.g.fs.SyncDir(); err != nil {
				return err
			}
		}
		err := f.g.fs.Remove(name)
		if err != nil && !isAbsent(err) {
			return err
		}
		file, err = f.g.fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f.file(name, file), nil
}

// ReuseForWrite renames a log that is no longer needed and opens it to be
// overwritten: its blocks are allocated and written already.
func (f files) ReuseForWrite(oldname, newname string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	var file disk.File
	_, err := f.g.do("rename", newname, func() error {
		err := f.g.fs.Rename(oldname, f.g.fs, newname)
		if err != nil && !isAbsent(err) { // absent: renamed by the attempt before
			return err
		}
		file, err = f.g.fs.OpenFile(newname, os.O_RDWR, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	made := f.file(newname, file)
	if file != nil {
		if made.allocated, err = file.Size(); err != nil {
			made.allocated = 0
		}
	}
	return made, nil
}

func (f files) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	file, err := f.g.fs.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	return f.file(name, file), nil
}

// OpenReadWrite is not used by the engine as configured here.
func (f files) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	var file disk.File
	_, err := f.g.do("create", name, func() (err error) {
		file, err = f.g.fs.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f.file(name, file), nil
}

func (f files) OpenDir(string) (vfs.File, error) { return f.file(".", nil), nil }

func (f files) Remove(name string) error {
	// Told success after a failure, rather than parked: the engine's cleaner,
	// which readers feed, must not fill up.
	if f.g.state.Load() != running {
		return nil
	}
	var err error
	if isMarker(name) {
		// The engine has made the new marker and syncs the folder only after it
		// removed the old one: a power cut might leave neither, and what is
		// then found is a new index, or an older one.
		err = f.g.fs.SyncDir()
	}
	if err == nil {
		err = f.g.fs.Remove(name)
	}
	if err != nil && !isAbsent(err) {
		f.g.fail("remove", name, err)
		return nil
	}
	return err
}

func (f files) RemoveAll(name string) error {
	if err := f.Remove(name); !isAbsent(err) {
		return err
	}
	return nil
}

func (f files) Rename(oldname, newname string) error {
	_, err := f.g.do("rename", newname, func() error { return f.g.fs.Rename(oldname, f.g.fs, newname) })
	return err
}

func (f files) Link(oldname, newname string) error {
	_, err := f.g.do("link", newname, func() error { return f.g.fs.Link(oldname, f.g.fs, newname) })
	return err
}

// MkdirAll has nothing to do: the folder exists and has no folders in it.
func (files) MkdirAll(string, os.FileMode) error { return nil }

// Lock has nothing to do: the repository's own lock keeps other processes out.
func (files) Lock(string) (io.Closer, error) { return nopCloser{}, nil }

type nopCloser struct{}

func (nopCloser) Close() error { return nil }

// List fails only the first time. At the end of pebble.Open, where compactions
// run already, an error would have the engine taken apart under them, and the
// process end in a panic (v2.1.7: open.go 610, file_cache.go 517). The index
// has failed then and nothing is removed, whatever the engine makes of no names.
func (f files) List(dir string) ([]string, error) {
	entries, err := f.g.fs.ReadDir(dir)
	if err != nil && f.g.listed.Load() {
		f.g.fail("list", dir, err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f.g.listed.Store(true)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name
	}
	return names, nil
}

func (f files) Stat(name string) (vfs.FileInfo, error) {
	info, err := f.g.fs.Stat(name)
	if err != nil {
		return nil, err
	}
	return fileInfo{name: name, info: info}, nil
}

func (files) PathBase(p string) string              { return path.Base(p) }
func (files) PathJoin(elem ...string) string        { return path.Join(elem...) }
func (files) PathDir(p string) string               { return path.Dir(p) }
func (files) Unwrap() vfs.FS                        { return nil }
func (f files) file(name string, d disk.File) *file { return &file{g: f.g, d: d, name: name} }

func (f files) GetDiskUsage(string) (vfs.DiskUsage, error) {
	u, err := f.g.fs.Usage()
	if err != nil {
		return vfs.DiskUsage{}, err
	}
	return vfs.DiskUsage{
		AvailBytes: uint64(u.Avail), TotalBytes: uint64(u.Total), UsedBytes: uint64(u.Total - u.Free),
	}, nil
}

// file is an open file. The engine reads or writes it front to back, from one
// goroutine at a time; ReadAt alone may run beside others.
type file struct {
	g    *guard
	d    disk.File // nil: the folder, or a file that exists only in the engine's mind
	name string

	pos       atomic.Int64 // of the next Read or Write
	allocated int64        // logs: room reserved up to here
	handedOut int64        // given to WriteOut up to here
}

var _ vfs.File = (*file)(nil)

func (f *file) Read(p []byte) (int, error) {
	if f.d == nil {
		return 0, io.EOF
	}
	n, err := f.d.ReadAt(p, f.pos.Load())
	f.pos.Add(int64(n))
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if f.d == nil {
		return 0, io.EOF
	}
	return f.d.ReadAt(p, off)
}

func (f *file) Write(p []byte) (int, error) {
	pos := f.pos.Load()
	if err := f.write(p, pos); err != nil {
		return 0, err
	}
	f.pos.Store(pos + int64(len(p)))
	return len(p), nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	if err := f.write(p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (f *file) write(p []byte, off int64) error {
	done, err := f.g.do("write", f.name, func() error {
		if f.d == nil {
			return nil
		}
		f.fillAhead(off + int64(len(p)))
		_, err := f.d.WriteAt(p, off)
		return err
	})
	if end := off + int64(len(p)); done && f.d != nil && end-f.handedOut >= writeOutStep {
		// A hint; what the device makes of it is told by the next sync.
		_ = f.d.WriteOut(f.handedOut, end-f.handedOut)
		f.handedOut = end
	}
	return err
}

var zeros [logStep]byte

// fillAhead writes zeros to a log's next stretch, from where they ended to some
// way beyond end. When that fails the write itself tells whether there is room.
func (f *file) fillAhead(end int64) {
	if !isLog(f.name) || end <= f.allocated {
		return
	}
	from, to := f.allocated, end+logStep
	f.allocated = to
	if u, err := f.g.fs.Usage(); err != nil || u.Avail < logPlenty {
		return
	}
	for from < to {
		n := min(to-from, logStep)
		_, _ = f.d.WriteAt(zeros[:n], from)
		from += n
	}
}

// Preallocate is left to write, which knows when.
func (f *file) Preallocate(int64, int64) error { return nil }

func (f *file) Sync() error {
	_, err := f.g.do("sync", f.name, func() error {
		switch {
		case f.name == ".":
			return f.g.fs.SyncDir()
		case f.d == nil:
			return nil
		}
		return f.d.Sync()
	})
	return err
}

func (f *file) SyncData() error { return f.Sync() }

// SyncTo is left to write, which hands out what was written as it goes.
func (f *file) SyncTo(int64) (bool, error) { return false, nil }

func (f *file) Prefetch(int64, int64) error { return nil }

func (f *file) Fd() uintptr { return vfs.InvalidFd }

func (f *file) Stat() (vfs.FileInfo, error) {
	info := disk.Info{Size: f.pos.Load(), Dir: f.name == "."}
	switch {
	case f.d == nil:
	case isLog(f.name):
		info.Size = f.allocated // an error here would end the process
	default:
		size, err := f.d.Size()
		if err != nil {
			return nil, err
		}
		info.Size = size
	}
	return fileInfo{name: f.name, info: info}, nil
}

// Close tells the engine no error: what matters was synced before.
func (f *file) Close() error {
	if f.d == nil {
		return nil
	}
	if err := f.d.Close(); err != nil {
		f.g.fail("close", f.name, err)
	}
	return nil
}

// fileInfo shows an Info as an os.FileInfo.
type fileInfo struct {
	name string
	info disk.Info
}

func (i fileInfo) Name() string           { return path.Base(i.name) }
func (i fileInfo) Size() int64            { return i.info.Size }
func (i fileInfo) Mode() fs.FileMode      { return i.info.Mode }
func (i fileInfo) ModTime() time.Time     { return time.Time{} }
func (i fileInfo) IsDir() bool            { return i.info.Dir }
func (i fileInfo) Sys() any               { return nil }
func (i fileInfo) DeviceID() vfs.DeviceID { return vfs.DeviceID{} }

func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) }
