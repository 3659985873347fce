package disk

import (
	"bytes"
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
)

// EachName calls f for every name in a folder, in no particular order; an error
// of f ends it. name is valid during the call only: on the kernel a folder of
// any size costs one buffer, where ReadDir makes a string of each name.
func EachName(fsys FS, folder string, f func(name []byte, dir bool) error) error {
	if d, ok := fsys.(*osFS); ok {
		return d.eachName(folder, f)
	}
	names, err := fsys.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := f([]byte(n.Name), n.Dir); err != nil {
			return err
		}
	}
	return nil
}

func (d *osFS) eachName(folder string, f func(name []byte, dir bool) error) error {
	if err := d.check("readdir", folder); err != nil {
		return err
	}
	// A descriptor of its own: the position of d.fd is shared by all callers.
	fd, err := retryFd(func() (int, error) {
		return unix.Openat(d.fd, folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return pathErr("readdir", folder, err)
	}
	defer unix.Close(fd)
	var stopped error
	err = eachDirent(fd, func(name []byte, dir bool) error {
		stopped = f(name, dir)
		return stopped
	})
	if err != nil && err != stopped {
		return pathErr("readdir", folder, err)
	}
	return err
}

// direntHeader is the part of a struct linux_dirent64 before the name: inode 8,
// offset 8, record length 2, type 1.
const direntHeader = 19

// direntBuf is how much of a folder is read at once, in bytes.
const direntBuf = 32 << 10

var direntBufs = sync.Pool{New: func() any { return new([direntBuf]byte) }}

// eachDirent calls f for every name in an open folder. Types the file system
// does not tell are looked up one by one.
func eachDirent(fd int, f func(name []byte, dir bool) error) error {
	pooled := direntBufs.Get().(*[direntBuf]byte)
	defer direntBufs.Put(pooled)
	buf := pooled[:]
	for {
		n, err := retryFd(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil || n == 0 {
			return err
		}
		for rest := buf[:n]; len(rest) >= direntHeader; {
			length := int(binary.NativeEndian.Uint16(rest[16:]))
			typ := rest[18]
			name, _, _ := bytes.Cut(rest[direntHeader:length], []byte{0})
			rest = rest[length:]
			if string(name) == "." || string(name) == ".." {
				continue
			}
			dir := typ == unix.DT_DIR
			if typ == unix.DT_UNKNOWN {
				var st unix.Stat_t
				err := unix.Fstatat(fd, string(name), &st, unix.AT_SYMLINK_NOFOLLOW)
				if err == unix.ENOENT {
					continue // removed meanwhile
				}
				if err != nil {
					return err
				}
				dir = st.Mode&unix.S_IFMT == unix.S_IFDIR
			}
			if err := f(name, dir); err != nil {
				return err
			}
		}
	}
}
