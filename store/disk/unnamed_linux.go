package disk

import (
	"errors"
	"io/fs"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Unnamed is a role of those folders that can hold files without a name. Such
// a file costs half of what one costs that is made in one folder and renamed
// into another.
type Unnamed interface {
	// CreateUnnamed makes a file, open for reading and writing, that goes when
	// it is closed or at a crash, unless it was given a name by then. Errors
	// match errors.ErrUnsupported where the file system cannot.
	CreateUnnamed(perm fs.FileMode) (File, error)
	// Name gives such a file, which may be of another folder of the file system,
	// a name in this one. It replaces nothing (fs.ErrExist). Bytes synced before
	// and the name synced after (SyncDir) are not enough without a journal, which
	// may lose that the file is in use: only SyncFS after Name makes it durable.
	Name(f File, name string) error
}

// CreateUnnamed implements [Unnamed].
func (d *osFS) CreateUnnamed(perm fs.FileMode) (File, error) {
	if err := d.check("open", "."); err != nil {
		return nil, err
	}
	fd, err := retryFd(func() (int, error) {
		return unix.Openat(d.fd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, uint32(perm.Perm()))
	})
	if err == unix.EISDIR { // the flag is not known
		err = unix.EOPNOTSUPP
	}
	if err != nil {
		return nil, pathErr("open", ".", err)
	}
	return &osFile{fd: fd, name: "."}, nil
}

// Name implements [Unnamed]. Without the handle's own name, which old kernels
// give to the privileged only, it takes that in /proc.
func (d *osFS) Name(f File, name string) error {
	file, ok := f.(*osFile)
	if !ok {
		return pathErr("link", name, unix.EXDEV)
	}
	err := d.named("link", name, func() error {
		return unix.Linkat(file.fd, "", d.fd, name, unix.AT_EMPTY_PATH)
	})
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	return d.named("link", name, func() error {
		return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(file.fd), d.fd, name, unix.AT_SYMLINK_FOLLOW)
	})
}

// MaxHandles is how many files the process may have open.
func MaxHandles() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 256
	}
	return int(min(r.Cur, 1<<20))
}

// CreateUnnamed implements [Unnamed].
func (d *memDir) CreateUnnamed(perm fs.FileMode) (File, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.closed {
		return nil, pathErr("open", ".", fs.ErrClosed)
	}
	n := &node{mode: perm.Perm(), file: newMemPages(), handles: 1}
	return &memFile{w: d.w, n: n, name: ".", read: true, write: true}, nil
}

// Name implements [Unnamed].
func (d *memDir) Name(f File, name string) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	parent, last, err := d.find("link", name)
	if err != nil {
		return err
	}
	file, ok := f.(*memFile)
	switch {
	case !ok || file.w != d.w:
		return pathErr("link", name, syscall.EXDEV)
	case file.closed:
		return pathErr("link", name, fs.ErrClosed)
	case last == "." || parent.names[last] != nil:
		return pathErr("link", name, syscall.EEXIST)
	}
	d.w.change(parent, map[string]*node{last: file.n}, nil).wholeOnly = true
	return nil
}

// CreateUnnamed implements [Unnamed].
func (f *faultFS) CreateUnnamed(perm fs.FileMode) (File, error) {
	u, ok := f.fs.(Unnamed)
	if !ok {
		return nil, pathErr("open", ".", syscall.EOPNOTSUPP)
	}
	if err := f.fail(OpCreate, "."); err != nil {
		return nil, err
	}
	file, err := u.CreateUnnamed(perm)
	if err != nil {
		return nil, err
	}
	return &faultFile{fs: f, file: file, name: "."}, nil
}

// Name implements [Unnamed].
func (f *faultFS) Name(file File, name string) error {
	inner, ok := file.(*faultFile)
	if !ok {
		return pathErr("link", name, syscall.EXDEV)
	}
	if err := f.fail(OpLink, name); err != nil {
		return err
	}
	return f.fs.(Unnamed).Name(inner.file, name)
}
