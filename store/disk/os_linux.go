package disk

import (
	"errors"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// osFS is a folder of the kernel, kept open. Names are resolved relative to its
// handle, so renaming the folder or changing the working directory is harmless.
type osFS struct {
	fd   int
	path string // as opened; for messages only
	open atomic.Bool

	syncMu sync.Mutex
	lost   error // of the first SyncDir that failed
}

// OS opens the existing folder at path. Everything below is reached through the
// kept handle. The caller closes it; Close must not run beside other calls.
func OS(path string) (FS, error) { return openDir(unix.AT_FDCWD, path, path) }

func openDir(at int, name, path string) (FS, error) {
	fd, err := retryFd(func() (int, error) {
		return unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, pathErr("open", path, err)
	}
	d := &osFS{fd: fd, path: path}
	d.open.Store(true)
	return d, nil
}

func (d *osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	if err := d.check("open", name); err != nil {
		return nil, err
	}
	fd, err := retryFd(func() (int, error) {
		return unix.Openat(d.fd, name, flag|unix.O_CLOEXEC|unix.O_NOFOLLOW, uint32(perm.Perm()))
	})
	if err != nil {
		return nil, pathErr("open", name, err)
	}
	return &osFile{fd: fd, name: name}, nil
}

func (d *osFS) Sub(name string) (FS, error) {
	if err := d.check("open", name); err != nil {
		return nil, err
	}
	return openDir(d.fd, name, d.path+"/"+name)
}

func (d *osFS) Mkdir(name string, perm fs.FileMode) error {
	return d.named("mkdir", name, func() error { return unix.Mkdirat(d.fd, name, uint32(perm.Perm())) })
}

func (d *osFS) Remove(name string) error {
	return d.named("remove", name, func() error {
		err := unix.Unlinkat(d.fd, name, 0)
		if err == unix.EISDIR {
			return unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR)
		}
		return err
	})
}

func (d *osFS) Rename(oldname string, newdir FS, newname string) error {
	return d.twoNames("rename", oldname, newdir, newname, func(to int) error {
		return unix.Renameat(d.fd, oldname, to, newname)
	})
}

func (d *osFS) Link(oldname string, newdir FS, newname string) error {
	return d.twoNames("link", oldname, newdir, newname, func(to int) error {
		return unix.Linkat(d.fd, oldname, to, newname, 0)
	})
}

func (d *osFS) twoNames(op, oldname string, newdir FS, newname string, call func(to int) error) error {
	to, ok := newdir.(*osFS)
	if !ok {
		return pathErr(op, newname, unix.EXDEV)
	}
	if err := to.check(op, newname); err != nil {
		return err
	}
	return d.named(op, oldname, func() error { return call(to.fd) })
}

func (d *osFS) ReadDir(name string) ([]Dirent, error) {
	if err := d.check("readdir", name); err != nil {
		return nil, err
	}
	// A descriptor of its own: the position of d.fd is shared by all callers.
	fd, err := retryFd(func() (int, error) {
		return unix.Openat(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, pathErr("readdir", name, err)
	}
	defer unix.Close(fd)
	entries, err := readDirents(fd)
	if err != nil {
		return nil, pathErr("readdir", name, err)
	}
	return entries, nil
}

func (d *osFS) Stat(name string) (Info, error) {
	var st unix.Stat_t
	err := d.named("stat", name, func() error { return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return Info{}, err
	}
	mode := fs.FileMode(st.Mode & 0o777)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		mode |= fs.ModeDir
	}
	return Info{Size: st.Size, Dir: mode.IsDir(), Mode: mode}, nil
}

// flushed is the outcome of a flush through fd that returned err. xfs, which shuts
// itself down when it cannot write its journal, answers flushes that this cuts
// short with success, but from then on every stat(2) with EIO.
func flushed(fd int, err error) error {
	if err == nil {
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
	}
	return err
}

// SyncDir lets one caller after the other flush: the kernel reports a failure
// once for d.fd, and a success of the next call would then be a lie. Like Sync it
// does not retry after EINTR.
func (d *osFS) SyncDir() error {
	if noSync {
		return nil
	}
	if err := d.check("sync", "."); err != nil {
		return err
	}
	d.syncMu.Lock()
	defer d.syncMu.Unlock()
	if d.lost == nil {
		if err := flushed(d.fd, unix.Fsync(d.fd)); err != nil {
			d.lost = pathErr("sync", d.path, err)
		}
	}
	return d.lost
}

func (d *osFS) SyncFS() error {
	if noSync {
		return nil
	}
	if err := d.check("syncfs", "."); err != nil {
		return err
	}
	if err := flushed(d.fd, unix.Syncfs(d.fd)); err != nil {
		return pathErr("syncfs", d.path, err)
	}
	return nil
}

func (d *osFS) Usage() (Usage, error) {
	var st unix.Statfs_t
	if err := d.named("statfs", ".", func() error { return unix.Fstatfs(d.fd, &st) }); err != nil {
		return Usage{}, err
	}
	unit := st.Frsize
	if unit == 0 {
		unit = st.Bsize
	}
	return Usage{
		Total: int64(st.Blocks) * unit, Free: int64(st.Bfree) * unit, Avail: int64(st.Bavail) * unit,
		Files: int64(st.Files), FilesFree: int64(st.Ffree),
	}, nil
}

func (d *osFS) Close() error {
	if !d.open.CompareAndSwap(true, false) {
		return pathErr("close", d.path, fs.ErrClosed)
	}
	if err := unix.Close(d.fd); err != nil {
		return pathErr("close", d.path, err)
	}
	return nil
}

// named runs one system call on a name below d.
func (d *osFS) named(op, name string, call func() error) error {
	if err := d.check(op, name); err != nil {
		return err
	}
	if err := retry(call); err != nil {
		return pathErr(op, name, err)
	}
	return nil
}

func (d *osFS) check(op, name string) error {
	if !d.open.Load() {
		return pathErr(op, name, fs.ErrClosed)
	}
	if !validName(name) {
		return pathErr(op, name, unix.EINVAL)
	}
	return nil
}

// osFile is an open file of the kernel. It has no finalizer: whoever opened it
// closes it, after all other calls returned.
type osFile struct {
	fd   int
	name string
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(f.fd, p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return done, pathErr("read", f.name, err)
		case n == 0:
			return done, io.EOF
		}
		done += n
	}
	return done, nil
}

func (f *osFile) WriteAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pwrite(f.fd, p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return done, pathErr("write", f.name, err)
		case n == 0:
			return done, pathErr("write", f.name, io.ErrShortWrite)
		}
		done += n
	}
	return done, nil
}

func (f *osFile) Truncate(size int64) error {
	return f.call("truncate", func() error { return unix.Ftruncate(f.fd, size) })
}

// Sync does not retry after EINTR: the pages may have been marked clean by then.
func (f *osFile) Sync() error {
	if noSync {
		return nil
	}
	if err := flushed(f.fd, unix.Fdatasync(f.fd)); err != nil {
		return pathErr("sync", f.name, err)
	}
	return nil
}

func (f *osFile) WriteOut(off, n int64) error {
	err := f.call("writeout", func() error {
		return unix.SyncFileRange(f.fd, off, n, unix.SYNC_FILE_RANGE_WRITE)
	})
	if isUnsupported(err) {
		return nil // a hint only
	}
	return err
}

// Allocate on a file system without fallocate only extends the size: room is
// then not reserved, which a later write reports as ENOSPC.
func (f *osFile) Allocate(off, n int64, keepSize bool) error {
	mode := uint32(0)
	if keepSize {
		mode = unix.FALLOC_FL_KEEP_SIZE
	}
	err := f.call("allocate", func() error { return unix.Fallocate(f.fd, mode, off, n) })
	if !isUnsupported(err) {
		return err
	}
	if keepSize {
		return nil
	}
	size, err := f.Size()
	if err != nil || size >= off+n {
		return err
	}
	return f.Truncate(off + n)
}

func (f *osFile) Size() (int64, error) {
	var st unix.Stat_t
	if err := f.call("stat", func() error { return unix.Fstat(f.fd, &st) }); err != nil {
		return 0, err
	}
	return st.Size, nil
}

func (f *osFile) Close() error {
	if f.fd < 0 {
		return pathErr("close", f.name, fs.ErrClosed)
	}
	fd := f.fd
	f.fd = -1
	if err := unix.Close(fd); err != nil {
		return pathErr("close", f.name, err)
	}
	return nil
}

func (f *osFile) call(op string, call func() error) error {
	if err := retry(call); err != nil {
		return pathErr(op, f.name, err)
	}
	return nil
}

// readDirents reads a whole folder.
func readDirents(fd int) ([]Dirent, error) {
	var entries []Dirent
	err := eachDirent(fd, func(name []byte, dir bool) error {
		entries = append(entries, Dirent{Name: string(name), Dir: dir})
		return nil
	})
	return entries, err
}

// retry repeats a call that a signal interrupted; the Go runtime sends itself
// signals, and some file systems interrupt even disk waits.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func retryFd(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}

func isUnsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ESPIPE)
}
