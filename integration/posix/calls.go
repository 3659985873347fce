package posix

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// plain adds a call that only has an error.
func plain(name string, f func(p string) error) {
	Calls[name] = func(p string) string { return result(f(p)) }
}

// opened adds an open of the target, with what is then done to it.
func opened(name string, flags int, use func(fd int) string) {
	Calls[name] = func(p string) string {
		fd, err := unix.Open(p+"t", flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o6777)
		if err != nil {
			return result(err)
		}
		defer unix.Close(fd)
		if use == nil {
			return "ok"
		}
		return "ok, " + use(fd)
	}
}

func init() {
	addOpens()
	addNames()
	addAttributes()
}

func addOpens() {
	write := func(fd int) string {
		n, err := unix.Pwrite(fd, []byte("abc"), 2)
		return fmt.Sprintf("%d %s", n, result(err))
	}
	read := func(fd int) string {
		b := make([]byte, 100)
		n, err := unix.Pread(fd, b, 0)
		return fmt.Sprintf("%q %s", b[:max(0, n)], result(err))
	}
	opened("open to read", unix.O_RDONLY, read)
	opened("open to write", unix.O_WRONLY, nil)
	opened("open, write", unix.O_RDWR, write)
	opened("open write-only, read", unix.O_WRONLY, read)
	opened("open read-only, write", unix.O_RDONLY, write)
	opened("open to append", unix.O_WRONLY|unix.O_APPEND, func(fd int) string {
		n, err := unix.Write(fd, []byte("abc"))
		return fmt.Sprintf("%d %s", n, result(err))
	})
	opened("open, write nothing", unix.O_WRONLY, func(fd int) string { return result(second(unix.Write(fd, nil))) })
	opened("open O_TRUNC", unix.O_WRONLY|unix.O_TRUNC, nil)
	opened("open read-only O_TRUNC", unix.O_RDONLY|unix.O_TRUNC, nil)
	opened("open O_CREAT", unix.O_RDWR|unix.O_CREAT, write)
	opened("open O_CREAT O_EXCL", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, nil)
	opened("open O_CREAT O_TRUNC", unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, nil)
	opened("open O_CREAT O_DIRECTORY", unix.O_RDONLY|unix.O_CREAT|unix.O_DIRECTORY, nil)
	opened("open O_NOFOLLOW", unix.O_RDONLY|unix.O_NOFOLLOW, nil)
	opened("open O_DIRECTORY", unix.O_RDONLY|unix.O_DIRECTORY, nil)
	opened("open O_PATH", unix.O_PATH|unix.O_NOFOLLOW, read)
	opened("open O_NOATIME", unix.O_RDONLY|unix.O_NOATIME, nil)
	opened("open O_DIRECT", unix.O_RDWR|unix.O_DIRECT, nil)
	opened("open O_SYNC, write", unix.O_RDWR|unix.O_SYNC, write)
	opened("open O_DSYNC, append", unix.O_WRONLY|unix.O_DSYNC|unix.O_APPEND, func(fd int) string {
		n, err := unix.Write(fd, []byte("abc"))
		return fmt.Sprintf("%d %s", n, result(err))
	})
	opened("open O_CREAT O_EXCL O_NOFOLLOW O_APPEND", unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_APPEND, write)
	opened("open with no access mode", unix.O_ACCMODE, nil)
	opened("O_TMPFILE to read", unix.O_TMPFILE|unix.O_RDONLY, nil)
	Calls["O_TMPFILE, linkat"] = func(p string) string {
		fd, err := unix.Open(p+"t", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o6777)
		if err != nil {
			return result(err)
		}
		defer unix.Close(fd)
		return result(unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, p+"t/named", unix.AT_SYMLINK_FOLLOW))
	}
	opened("O_TMPFILE", unix.O_TMPFILE|unix.O_RDWR, func(fd int) string {
		var st unix.Stat_t
		err := unix.Fstat(fd, &st)
		return fmt.Sprintf("%o %d links %d:%d %s", st.Mode, st.Nlink, st.Uid, st.Gid, result(err))
	})
	opened("ftruncate", unix.O_WRONLY, func(fd int) string { return result(unix.Ftruncate(fd, 3)) })
	opened("ftruncate to its size", unix.O_WRONLY, func(fd int) string { return result(unix.Ftruncate(fd, 7)) })
	opened("ftruncate read-only", unix.O_RDONLY, func(fd int) string { return result(unix.Ftruncate(fd, 3)) })
	opened("fallocate", unix.O_WRONLY, func(fd int) string { return result(unix.Fallocate(fd, 0, 0, 20)) })
	opened("fallocate keep size", unix.O_WRONLY, func(fd int) string { return result(unix.Fallocate(fd, 1, 0, 20)) })
	opened("punch hole", unix.O_WRONLY, func(fd int) string { return result(unix.Fallocate(fd, 3, 1, 2)) })
	opened("punch hole without keep size", unix.O_WRONLY, func(fd int) string { return result(unix.Fallocate(fd, 2, 1, 2)) })
	opened("fallocate read-only", unix.O_RDONLY, func(fd int) string { return result(unix.Fallocate(fd, 0, 0, 20)) })
	opened("fallocate of nothing", unix.O_WRONLY, func(fd int) string { return result(unix.Fallocate(fd, 0, 0, 0)) })
	opened("fsync", unix.O_RDONLY, func(fd int) string { return result(unix.Fsync(fd)) })
	opened("fchmod", unix.O_RDONLY, func(fd int) string { return result(unix.Fchmod(fd, 0o640)) })
	opened("fchown to itself", unix.O_RDONLY, func(fd int) string { return result(unix.Fchown(fd, -1, -1)) })
	opened("seek", unix.O_RDONLY, func(fd int) string {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return "a folder" // tmpfs and ext4 differ
		}
		d, err := unix.Seek(fd, 0, unix.SEEK_DATA)
		h, err2 := unix.Seek(fd, 0, unix.SEEK_HOLE)
		_, err3 := unix.Seek(fd, 1000, unix.SEEK_DATA)
		return fmt.Sprint(d, result(err), h, result(err2), result(err3))
	})
	opened("copy_file_range to itself", unix.O_RDWR, func(fd int) string {
		a, b := int64(0), int64(100)
		n, err := unix.CopyFileRange(fd, &a, fd, &b, 5, 0)
		return fmt.Sprint(n, result(err))
	})
	Calls["copy_file_range into it"] = func(p string) string {
		var fds [2]int
		for i, flags := range []int{unix.O_RDONLY, unix.O_WRONLY} {
			fd, err := unix.Open(p+[]string{"o", "t"}[i], flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Sprint("open ", i, result(err))
			}
			defer unix.Close(fd)
			fds[i] = fd
		}
		from, to := int64(0), int64(3)
		n, err := unix.CopyFileRange(fds[0], &from, fds[1], &to, 3, 0)
		return fmt.Sprint(n, result(err))
	}
	plain("list", func(p string) error {
		fd, err := unix.Open(p+"t", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return second(unix.ReadDirent(fd, make([]byte, 4096)))
	})
}

func second[T any](_ T, err error) error { return err }

func addNames() {
	cwd := unix.AT_FDCWD
	rename := func(name, from, to string, flags uint) {
		plain(name, func(p string) error { return unix.Renameat2(cwd, p+from, cwd, p+to, flags) })
	}
	rename("rename away", "t", "new", 0)
	rename("rename over a file", "t", "o", 0)
	rename("rename over an empty folder", "t", "e", 0)
	rename("rename over a full folder", "t", "f", 0)
	rename("rename a file over it", "o", "t", 0)
	rename("rename a folder over it", "e", "t", 0)
	rename("rename over itself", "t", "t", 0)
	rename("rename into it", "o", "t/new", 0)
	rename("rename out of it", "t/x", "new", 0)
	rename("rename into itself", "t", "t/new", 0)
	rename("rename with a slash", "t/", "new/", 0)
	rename("rename to a long name", "t", strings.Repeat("n", 256), 0)
	rename("rename NOREPLACE away", "t", "new", unix.RENAME_NOREPLACE)
	rename("rename NOREPLACE onto it", "o", "t", unix.RENAME_NOREPLACE)
	rename("exchange with a file", "t", "o", unix.RENAME_EXCHANGE)
	rename("exchange with a folder", "t", "f", unix.RENAME_EXCHANGE)
	rename("exchange with nothing", "t", "new", unix.RENAME_EXCHANGE)
	rename("exchange with its child", "t", "t/x", unix.RENAME_EXCHANGE)
	rename("rename WHITEOUT away", "t", "new", unix.RENAME_WHITEOUT)
	rename("rename WHITEOUT over a file", "t", "o", unix.RENAME_WHITEOUT)
	rename("rename WHITEOUT to another folder", "t", "f/new", unix.RENAME_WHITEOUT|unix.RENAME_NOREPLACE)
	rename("move to another folder", "t", "f/new", 0)

	plain("unlink", func(p string) error { return unix.Unlink(p + "t") })
	plain("unlink with a slash", func(p string) error { return unix.Unlink(p + "t/") })
	plain("rmdir", func(p string) error { return unix.Rmdir(p + "t") })
	plain("rmdir its dot", func(p string) error { return unix.Rmdir(p + "t/.") })
	plain("rmdir its dot dot", func(p string) error { return unix.Rmdir(p + "t/..") })
	plain("unlink in it", func(p string) error { return unix.Unlink(p + "t/x") })
	plain("link", func(p string) error { return unix.Link(p+"t", p+"new") })
	plain("link, following", func(p string) error {
		return unix.Linkat(cwd, p+"t", cwd, p+"new", unix.AT_SYMLINK_FOLLOW)
	})
	plain("link onto it", func(p string) error { return unix.Link(p+"o", p+"t") })
	plain("link into it", func(p string) error { return unix.Link(p+"o", p+"t/new") })
	plain("symlink", func(p string) error { return unix.Symlink("o", p+"t") })
	plain("symlink in it", func(p string) error { return unix.Symlink("o", p+"t/new") })
	plain("empty symlink", func(p string) error { return unix.Symlink("", p+"new") })
	plain("mkdir", func(p string) error { return unix.Mkdir(p+"t", 0o7777) })
	plain("mkdir with a slash", func(p string) error { return unix.Mkdir(p+"t/", 0o777) })
	plain("mkdir in it", func(p string) error { return unix.Mkdir(p+"t/new", 0o777) })
	plain("mknod fifo", func(p string) error { return unix.Mknod(p+"t", unix.S_IFIFO|0o666, 0) })
	plain("mknod file", func(p string) error { return unix.Mknod(p+"t", unix.S_IFREG|0o6777, 0) })
	plain("mknod device", func(p string) error { return unix.Mknod(p+"t", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) })
	plain("mknod folder", func(p string) error { return unix.Mknod(p+"t", unix.S_IFDIR|0o666, 0) })
	plain("create in it", func(p string) error {
		fd, err := unix.Open(p+"t/new", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o6777)
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
	plain("create a long name in it", func(p string) error {
		fd, err := unix.Open(p+"t/"+strings.Repeat("n", 256), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o666)
		if err == nil {
			unix.Close(fd)
		}
		return err
	})
	plain("look up in it", func(p string) error { return unix.Stat(p+"t/x", new(unix.Stat_t)) })
}

func addAttributes() {
	const a, b = harness.UserA, harness.UserB
	chown := func(name string, uid, gid int) {
		plain(name, func(p string) error { return unix.Chown(p+"t", uid, gid) })
	}
	chown("chown to A", a, -1)
	chown("chown to B and B's group", b, b)
	chown("chown to A's group", -1, a)
	chown("chown to B's group", -1, b)
	chown("chown to nobody new", -1, -1)
	plain("lchown to A's group", func(p string) error { return unix.Lchown(p+"t", -1, a) })
	for _, mode := range []uint32{0o600, 0o6755, 0o2644, 0o1644, 0o777} {
		plain(fmt.Sprintf("chmod %o", mode), func(p string) error { return unix.Chmod(p+"t", mode) })
	}
	for _, size := range []int64{0, 7, 3, 5000, -1} {
		plain(fmt.Sprintf("truncate to %d", size), func(p string) error { return unix.Truncate(p+"t", size) })
	}
	now, omit, then := unix.Timespec{Nsec: unix.UTIME_NOW}, unix.Timespec{Nsec: unix.UTIME_OMIT}, unix.Timespec{Sec: -5e8, Nsec: 9}
	for name, ts := range map[string][]unix.Timespec{
		"utimensat now": {now, now}, "utimensat then": {then, then}, "utimensat omit": {omit, omit},
		"utimensat now and omit": {now, omit}, "utimensat omit and then": {omit, then}, "utimensat now and then": {now, then},
		"utimensat nonsense": {{Nsec: 1e9}, now},
	} {
		plain(name, func(p string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, p+"t", ts, 0) })
		plain("l"+name, func(p string) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, p+"t", ts, unix.AT_SYMLINK_NOFOLLOW)
		})
	}
	for mode := range uint32(8) {
		plain(fmt.Sprintf("access %d", mode), func(p string) error { return unix.Access(p+"t", mode) })
	}
	Calls["stat"] = func(p string) string {
		var st unix.Stat_t
		err := unix.Stat(p+"t", &st)
		return fmt.Sprintf("%s %o", result(err), st.Mode)
	}
	Calls["readlink"] = func(p string) string {
		b := make([]byte, 100)
		n, err := unix.Readlink(p+"t", b)
		return fmt.Sprintf("%s %q", result(err), b[:max(0, n)])
	}
	for _, name := range []string{"user.x", "trusted.x", "security.x", "system.posix_acl_access", "nonsense", "user.", "user." + strings.Repeat("n", 251)} {
		val := []byte("value")
		if strings.HasPrefix(name, "system") {
			val = acl(b, 5, 5)
		}
		plain("setxattr "+name, func(p string) error { return unix.Setxattr(p+"t", name, val, 0) })
		plain("lsetxattr "+name, func(p string) error { return unix.Lsetxattr(p+"t", name, val, 0) })
		plain("setxattr replace "+name, func(p string) error { return unix.Setxattr(p+"t", name, val, unix.XATTR_REPLACE) })
		plain("getxattr "+name, func(p string) error { return second(unix.Getxattr(p+"t", name, make([]byte, 100))) })
		if strings.HasPrefix(name, "system") {
			continue // without one, tmpfs and ext4 differ
		}
		plain("removexattr "+name, func(p string) error { return unix.Removexattr(p+"t", name) })
	}
	plain("setxattr, then create", func(p string) error {
		_ = unix.Setxattr(p+"t", "user.x", nil, 0)
		return unix.Setxattr(p+"t", "user.x", nil, unix.XATTR_CREATE)
	})
	plain("set default ACL", func(p string) error {
		return unix.Setxattr(p+"t", "system.posix_acl_default", acl(b, 7, 7), 0)
	})
}
