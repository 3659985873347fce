package twin

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// op runs one operation on a side and describes its outcome.
type op func(*side) string

// kind draws the arguments of one kind of operation.
type kind struct {
	weight int
	draw   func(*run) (string, op)
}

var kinds = []kind{
	{16, (*run).openFile}, {6, (*run).closeFile}, {8, (*run).useFile},
	{8, (*run).mkdir}, {3, (*run).mknod}, {5, (*run).symlink}, {7, (*run).link},
	{8, (*run).unlink}, {6, (*run).rmdir}, {14, (*run).rename},
	{4, (*run).chmod}, {3, (*run).chown}, {4, (*run).truncate}, {4, (*run).utimes},
	{6, (*run).setxattr}, {4, (*run).stat}, {4, (*run).readdir}, {2, (*run).readlink},
	{2, (*run).tmpfile}, {3, (*run).writeFile},
}

func (r *run) draw() (string, op) {
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	n := r.rnd.IntN(total)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			return k.draw(r)
		}
	}
	panic("unreachable")
}

// at is the path on a side. A trailing slash is kept.
func (s *side) at(path string) string { return s.root + "/" + path }

func (r *run) perm() uint32 {
	// The owner can always read and enter, so that the trees can be compared by
	// ordinary users too. No sticky bit: without default_permissions the kernel
	// hides it from itself, and does not check what it stands for.
	return uint32(r.rnd.IntN(0o10000))&^0o1000 | 0o700
}

func (r *run) openFile() (string, op) {
	path, slot := r.path(), r.rnd.IntN(slots)
	flags := []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_RDWR, unix.O_RDWR}[r.rnd.IntN(5)]
	for _, f := range []int{unix.O_CREAT, unix.O_EXCL, unix.O_TRUNC, unix.O_APPEND, unix.O_NOFOLLOW, unix.O_DIRECTORY} {
		if p := 6; f == unix.O_CREAT && r.rnd.IntN(4) > 0 || f != unix.O_CREAT && r.rnd.IntN(p) == 0 {
			flags |= f
		}
	}
	if flags&unix.O_EXCL != 0 { // undefined without O_CREAT
		flags |= unix.O_CREAT
	}
	perm := r.perm()
	return fmt.Sprintf("open %q flags %#x mode %o as %d", path, flags, perm, slot), func(s *side) string {
		// O_NONBLOCK: a FIFO must not wait for its other end.
		fd, err := unix.Open(s.at(path), flags|unix.O_NONBLOCK|unix.O_CLOEXEC, perm)
		var st unix.Stat_t
		if (err == unix.ENXIO || err == unix.EACCES) && r.o.NoDev && unix.Stat(s.at(path), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
			return "not opened: a device"
		}
		if err != nil {
			return errno(err)
		}
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			unix.Close(fd)
			return fmt.Sprintf("ok, type %o", st.Mode&unix.S_IFMT)
		}
		s.close(slot)
		s.open[slot] = fd
		return "ok"
	}
}

func (r *run) closeFile() (string, op) {
	slot := r.rnd.IntN(slots)
	return fmt.Sprintf("close %d", slot), func(s *side) string {
		s.close(slot)
		return "ok"
	}
}

func (r *run) useFile() (string, op) {
	slot, n, off := r.rnd.IntN(slots), r.rnd.IntN(3000), r.rnd.Int64N(10_000)
	p := slices.Repeat([]byte{byte(r.rnd.IntN(255))}, n)
	type result struct {
		name string
		do   func(fd int) string
	}
	count := func(n int, err error) string { return fmt.Sprintf("%d %s", n, errno(err)) }
	uses := []result{
		{"write", func(fd int) string { return count(unix.Write(fd, p)) }},
		{"pwrite", func(fd int) string { return count(unix.Pwrite(fd, p, off)) }},
		{"read", func(fd int) string { b := make([]byte, n); k, err := unix.Read(fd, b); return count(k, err) }},
		{"ftruncate", func(fd int) string { return errno(unix.Ftruncate(fd, off)) }},
		{"fchmod", func(fd int) string { return errno(unix.Fchmod(fd, 0o640)) }},
		{"fsync", func(fd int) string { return errno(unix.Fsync(fd)) }},
		{"fsetxattr", func(fd int) string { return errno(unix.Fsetxattr(fd, "user.fd", p[:n%50], 0)) }},
		{"punch", func(fd int) string { return errno(unix.Fallocate(fd, 3, off, int64(n)+1)) }},
		{"seek", func(fd int) string {
			k, err := unix.Seek(fd, -1, unix.SEEK_END)
			return count(int(k), err)
		}},
	}
	u := uses[r.rnd.IntN(len(uses))]
	return fmt.Sprintf("%s %d n %d off %d", u.name, slot, n, off), func(s *side) string {
		if s.open[slot] < 0 {
			return "not open"
		}
		return u.do(s.open[slot])
	}
}

func (r *run) mkdir() (string, op) {
	path, perm := r.path(), r.perm()
	return fmt.Sprintf("mkdir %q %o", path, perm), func(s *side) string { return errno(unix.Mkdir(s.at(path), perm)) }
}

func (r *run) mknod() (string, op) {
	path, mode := r.path(), r.perm()
	kinds := []uint32{unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFREG}
	if os.Geteuid() == 0 {
		kinds = append(kinds, unix.S_IFCHR, unix.S_IFBLK)
	}
	mode |= kinds[r.rnd.IntN(len(kinds))]
	return fmt.Sprintf("mknod %q %o", path, mode), func(s *side) string {
		return errno(unix.Mknod(s.at(path), mode, int(unix.Mkdev(7, 300))))
	}
}

func (r *run) symlink() (string, op) {
	// A target never goes up, so that no path leaves the folder.
	target, path := strings.ReplaceAll(r.anyPath(), "..", "c"), r.path()
	if r.rnd.IntN(20) == 0 {
		target = strings.Repeat("x/", 2047) // 4094 bytes, of at most 4095
	}
	return fmt.Sprintf("symlink %.20q %q", target, path), func(s *side) string {
		return errno(unix.Symlink(target, s.at(path)))
	}
}

func (r *run) link() (string, op) {
	from, to := r.path(), r.path()
	return fmt.Sprintf("link %q %q", from, to), func(s *side) string {
		return errno(unix.Link(s.at(from), s.at(to)))
	}
}

func (r *run) unlink() (string, op) {
	path := r.path()
	return fmt.Sprintf("unlink %q", path), func(s *side) string { return errno(unix.Unlink(s.at(path))) }
}

func (r *run) rmdir() (string, op) {
	path := r.path()
	if r.rnd.IntN(3) == 0 && !strings.Contains(path, "..") { // with all below it, or its place stays full
		path = filepath.Clean(path)
		return fmt.Sprintf("rm -r %q", path), func(s *side) string {
			// RemoveAll opens the parent, which would block on a FIFO.
			if st, err := os.Stat(filepath.Dir(s.at(path))); err != nil || !st.IsDir() {
				return "no parent"
			}
			if os.RemoveAll(s.at(path)) != nil {
				return "error"
			}
			return "ok"
		}
	}
	return fmt.Sprintf("rmdir %q", path), func(s *side) string { return errno(unix.Rmdir(s.at(path))) }
}

func (r *run) rename() (string, op) {
	from, to := r.path(), r.path()
	flags := []uint{0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE, unix.RENAME_EXCHANGE, unix.RENAME_NOREPLACE | unix.RENAME_EXCHANGE, unix.RENAME_WHITEOUT}[r.rnd.IntN(8)]
	return fmt.Sprintf("rename %q %q flags %d", from, to, flags), func(s *side) string {
		return errno(unix.Renameat2(unix.AT_FDCWD, s.at(from), unix.AT_FDCWD, s.at(to), flags))
	}
}

func (r *run) chmod() (string, op) {
	path, perm := r.path(), r.perm()
	return fmt.Sprintf("chmod %q %o", path, perm), func(s *side) string { return errno(unix.Chmod(s.at(path), perm)) }
}

func (r *run) chown() (string, op) {
	path, uid, gid := r.path(), os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = r.rnd.IntN(3)-1, r.rnd.IntN(3)-1
	}
	return fmt.Sprintf("lchown %q %d %d", path, uid, gid), func(s *side) string {
		return errno(unix.Lchown(s.at(path), uid, gid))
	}
}

func (r *run) truncate() (string, op) {
	path, size := r.path(), r.rnd.Int64N(5000)-1
	return fmt.Sprintf("truncate %q %d", path, size), func(s *side) string { return errno(unix.Truncate(s.at(path), size)) }
}

// utimes sets both times and reads them back.
func (r *run) utimes() (string, op) {
	path := r.path()
	ts := []unix.Timespec{
		{Sec: r.rnd.Int64N(1<<34) - 1<<31, Nsec: r.rnd.Int64N(1e9)},
		{Sec: r.rnd.Int64N(1<<34) - 1<<31, Nsec: r.rnd.Int64N(1e9)},
	}
	return fmt.Sprintf("utimensat %q %v", path, ts), func(s *side) string {
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, s.at(path), ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return errno(err)
		}
		var st unix.Stat_t
		err := unix.Lstat(s.at(path), &st)
		if st.Mode&unix.S_IFMT == unix.S_IFLNK { // may have been read on the way, by another of its names
			st.Atim = unix.Timespec{}
		}
		return fmt.Sprintf("%s atime %v mtime %v", errno(err), st.Atim, st.Mtim)
	}
}

func (r *run) setxattr() (string, op) {
	path, flags := r.path(), r.rnd.IntN(3)
	name := fmt.Sprintf("user.%d", r.rnd.IntN(3))
	val := slices.Repeat([]byte{byte(r.n)}, r.rnd.IntN(100)*r.rnd.IntN(2)*r.rnd.IntN(20))
	switch r.rnd.IntN(3) {
	case 0:
		return fmt.Sprintf("removexattr %q %s", path, name), func(s *side) string {
			return errno(unix.Lremovexattr(s.at(path), name))
		}
	case 1:
		size := r.rnd.IntN(40)
		return fmt.Sprintf("getxattr %q %s into %d", path, name, size), func(s *side) string {
			b := make([]byte, size)
			n, err := unix.Lgetxattr(s.at(path), name, b)
			return fmt.Sprintf("%d %x %s", n, b, errno(err))
		}
	}
	return fmt.Sprintf("setxattr %q %s %d bytes flags %d", path, name, len(val), flags), func(s *side) string {
		return errno(unix.Lsetxattr(s.at(path), name, val, flags))
	}
}

func (r *run) stat() (string, op) {
	path := r.path()
	return fmt.Sprintf("stat %q", path), func(s *side) string {
		var st unix.Stat_t
		if err := unix.Stat(s.at(path), &st); err != nil {
			return errno(err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			st.Size = 0 // each file system has its own idea
		}
		return fmt.Sprintf("%o %d %d %d %d", st.Mode, st.Nlink, st.Uid, st.Gid, st.Size)
	}
}

func (r *run) readdir() (string, op) {
	path := r.path()
	return fmt.Sprintf("readdir %q", path), func(s *side) string {
		list, err := os.ReadDir(s.at(path))
		if err != nil {
			return errno(err)
		}
		var names []string
		for _, e := range list {
			names = append(names, fmt.Sprintf("%q %v", e.Name(), e.Type()))
		}
		return fmt.Sprint(names)
	}
}

func (r *run) readlink() (string, op) {
	path := r.path()
	return fmt.Sprintf("readlink %q", path), func(s *side) string {
		b := make([]byte, 5000)
		n, err := unix.Readlink(s.at(path), b)
		return fmt.Sprintf("%q %s", b[:max(0, n)], errno(err))
	}
}

// tmpfile makes a file without a name and then gives it one.
func (r *run) tmpfile() (string, op) {
	dir, path := r.path(), r.path()
	return fmt.Sprintf("O_TMPFILE in %q, linkat to %q", dir, path), func(s *side) string {
		fd, err := unix.Open(s.at(dir), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o640)
		if err != nil {
			return errno(err)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		unix.Write(fd, []byte("hello"))
		unix.Fstat(fd, &st)
		err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, s.at(path), unix.AT_SYMLINK_FOLLOW)
		return fmt.Sprintf("%d links, then %s", st.Nlink, errno(err))
	}
}

// writeFile is how an editor saves: a temporary file renamed over the name.
func (r *run) writeFile() (string, op) {
	path, n := r.path(), r.rnd.IntN(100_000)
	p := slices.Repeat([]byte{byte(r.n)}, n)
	return fmt.Sprintf("save %d bytes as %q", n, path), func(s *side) string {
		tmp := filepath.Join(s.root, ".save")
		if err := os.WriteFile(tmp, p, 0o644); err != nil {
			return errno(err)
		}
		err := unix.Rename(tmp, s.at(path))
		if err != nil {
			_ = os.Remove(tmp)
		}
		return errno(err)
	}
}
