package posix_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// must is for calls that are not what a test is about.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want compares the error of a call.
func want(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func open(t testing.TB, path string, flags int) int {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) }) // again, mostly: EBADF
	return fd
}

func stat(t testing.TB, path string) (st unix.Stat_t) {
	t.Helper()
	must(t, unix.Lstat(path, &st))
	return st
}

func content(t testing.TB, path string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes %.20q, %v; want %d bytes %.20q", path, len(got), got, err, len(want), want)
	}
}

// second is the error of a call with a result that does not matter.
func second[T any](_ T, err error) error { return err }

// setup mounts for everybody where root does, for oneself otherwise.
func setup(t *testing.T) *harness.Mount {
	if os.Geteuid() != 0 {
		return harness.New(t, harness.Options{})
	}
	return harness.New(t, harness.Options{Args: []string{"--allow-other", "--allow-suid", "--allow-dev"}})
}

// TestNameless: a file made with O_TMPFILE can be given a name once it has its
// content, not with O_EXCL, and is gone without.
func TestNameless(t *testing.T) {
	m := setup(t)
	data := bytes.Repeat([]byte("nameless"), 300_000)
	fd := open(t, m.Dir, unix.O_TMPFILE|unix.O_RDWR)
	must(t, second(unix.Pwrite(fd, data, 0)))
	must(t, unix.Fchmod(fd, 0o751))
	must(t, unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, m.Path("named"), unix.AT_SYMLINK_FOLLOW))
	must(t, second(unix.Pwrite(fd, []byte("N"), 0)))
	must(t, unix.Fsync(fd))
	data[0] = 'N'
	excl := open(t, m.Dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL)
	want(t, "naming an O_EXCL one", unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", excl), unix.AT_FDCWD, m.Path("no"), unix.AT_SYMLINK_FOLLOW), unix.ENOENT)
	unix.Close(fd)
	unix.Close(excl)
	for range 2 {
		content(t, m.Path("named"), data)
		if st := stat(t, m.Path("named")); st.Nlink != 1 || st.Mode != unix.S_IFREG|0o751 {
			t.Errorf("%d links, mode %o", st.Nlink, st.Mode)
		}
		if list, err := os.ReadDir(m.Dir); err != nil || len(list) != 1 {
			t.Errorf("%v, %v", list, err)
		}
		m.Remount()
	}
}

// TestSynced: what O_SYNC, O_DSYNC, RWF_DSYNC, msync(2) and fsync(2) of a file
// or a directory have taken over outlives the daemon, which does not write out
// anything by itself here.
func TestSynced(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{Args: []string{"--commit-interval", "1h"}})
	data := func(name string) []byte { return bytes.Repeat([]byte(name+"."), 40_000) } // too much for the index
	create := func(name string, flags int) int { return open(t, m.Path(name), unix.O_RDWR|unix.O_CREAT|flags) }
	written := func(name string, flags int, write func(fd int, p []byte) error) {
		fd := create(name, flags)
		must(t, write(fd, data(name)))
		unix.Close(fd)
	}
	pwrite := func(fd int, p []byte) error { return second(unix.Pwrite(fd, p, 0)) }
	mapped := func(how int) func(fd int, p []byte) error {
		return func(fd int, p []byte) error {
			page, err := unix.Mmap(fd, 0, len(p), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			must(t, err)
			copy(page, p)
			return errors.Join(unix.Msync(page, how), unix.Munmap(page))
		}
	}
	for _, c := range []struct {
		name  string
		flags int
		write func(fd int, p []byte) error
	}{
		{"O_SYNC", unix.O_SYNC, pwrite},
		{"O_DSYNC", unix.O_DSYNC, pwrite},
		{"O_APPEND, O_SYNC", unix.O_SYNC | unix.O_APPEND, func(fd int, p []byte) error { return second(unix.Write(fd, p)) }},
		{"RWF_DSYNC", 0, func(fd int, p []byte) error { return second(unix.Pwritev2(fd, [][]byte{p}, 0, unix.RWF_DSYNC)) }},
		{"O_DIRECT, O_SYNC", unix.O_DIRECT | unix.O_SYNC, func(fd int, p []byte) error {
			block, err := unix.Mmap(-1, 0, len(p)+4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			must(t, err)
			n := copy(block, p)
			return errors.Join(second(unix.Pwrite(fd, block[:(n+4095)&^4095], 0)), unix.Ftruncate(fd, int64(n)), unix.Fsync(fd))
		}},
		{"msync", 0, func(fd int, p []byte) error {
			must(t, unix.Ftruncate(fd, int64(len(p))))
			return mapped(unix.MS_SYNC)(fd, p)
		}},
		{"fsync", 0, func(fd int, p []byte) error { return errors.Join(pwrite(fd, p), unix.Fsync(fd)) }},
		{"mapped, fsync", 0, func(fd int, p []byte) error {
			must(t, unix.Ftruncate(fd, int64(len(p))))
			return errors.Join(mapped(unix.MS_ASYNC)(fd, p), unix.Fsync(fd))
		}},
	} {
		written(c.name, c.flags, c.write)
		m.Kill()
		m.Mount()
		content(t, m.Path(c.name), data(c.name))
	}
	must(t, os.Mkdir(m.Path("d"), 0o700))
	must(t, os.Rename(m.Path("fsync"), m.Path("d", "moved")))
	must(t, unix.Fsync(open(t, m.Path("d"), unix.O_RDONLY|unix.O_DIRECTORY)))
	m.Kill()
	m.Mount()
	content(t, m.Path("d", "moved"), data("fsync"))
}

// TestSpecial: FIFOs, sockets and devices work as such, and are what they were
// after a remount.
func TestSpecial(t *testing.T) {
	harness.NeedRoot(t)
	m := setup(t)
	must(t, unix.Mknod(m.Path("fifo"), unix.S_IFIFO|0o640, 0))
	must(t, unix.Mknod(m.Path("null"), unix.S_IFCHR|0o604, int(unix.Mkdev(1, 3))))
	must(t, unix.Mknod(m.Path("block"), unix.S_IFBLK|0o600, int(unix.Mkdev(4095, 1<<20-1))))
	listen, err := net.Listen("unix", m.Path("socket"))
	must(t, err)
	listen.(*net.UnixListener).SetUnlinkOnClose(false)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if c, err := listen.Accept(); err == nil {
			_, _ = c.Write([]byte("served"))
			c.Close()
		}
	})
	c, err := net.Dial("unix", m.Path("socket"))
	must(t, err)
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "served" {
		t.Errorf("from the socket %q, %v", got, err)
	}
	c.Close()
	listen.Close()
	for range 2 {
		wg.Go(func() { want(t, "writing to the FIFO", os.WriteFile(m.Path("fifo"), []byte("piped"), 0), nil) })
		content(t, m.Path("fifo"), []byte("piped"))
		wg.Wait()
		must(t, os.WriteFile(m.Path("null"), []byte("gone"), 0))
		content(t, m.Path("null"), nil)
		_, err := net.Dial("unix", m.Path("socket"))
		want(t, "a socket that nobody listens on", err, unix.ECONNREFUSED)
		_, err = unix.Open(m.Path("block"), unix.O_RDONLY, 0)
		want(t, "a device that is not there", err, unix.ENXIO)
		for name, mode := range map[string]uint32{"fifo": unix.S_IFIFO | 0o640, "null": unix.S_IFCHR | 0o604, "block": unix.S_IFBLK | 0o600, "socket": unix.S_IFSOCK | 0o755} {
			dev := map[string]uint64{"null": unix.Mkdev(1, 3), "block": unix.Mkdev(4095, 1<<20-1)}[name]
			if st := stat(t, m.Path(name)); st.Mode != mode || st.Rdev != dev || st.Size != 0 {
				t.Errorf("%s: mode %o, device %#x, %d bytes", name, st.Mode, st.Rdev, st.Size)
			}
		}
		m.Remount()
	}
}

// TestUnlinkedOpen: a file without names works through its descriptor, data and
// attributes, and cannot be named again.
func TestUnlinkedOpen(t *testing.T) {
	harness.NeedRoot(t)
	m := setup(t)
	fd := open(t, m.Path("f"), unix.O_RDWR|unix.O_CREAT)
	must(t, unix.Unlink(m.Path("f")))
	must(t, second(unix.Pwrite(fd, []byte("content"), 1<<20)))
	harness.DropCaches()
	must(t, unix.Ftruncate(fd, 1<<20+3))
	must(t, unix.Fchmod(fd, 0o600))
	must(t, unix.Fchown(fd, 7, 8))
	must(t, unix.Fsetxattr(fd, "user.x", []byte("y"), 0))
	must(t, unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 1<<20, 1))
	must(t, unix.Fsync(fd))
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	if st.Nlink != 0 || st.Size != 1<<20+3 || st.Mode != unix.S_IFREG|0o600 || st.Uid != 7 {
		t.Errorf("%d links, %d bytes, mode %o, owner %d", st.Nlink, st.Size, st.Mode, st.Uid)
	}
	b := make([]byte, 10)
	if n, err := unix.Pread(fd, b, 1<<20); err != nil || string(b[:n]) != "\x00on" {
		t.Errorf("%q, %v", b[:n], err)
	}
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, m.Path("g"), unix.AT_SYMLINK_FOLLOW)
	want(t, "naming it again", err, unix.ENOENT)
}

// TestDirect: O_DIRECT and cached reads and writes see one another.
func TestDirect(t *testing.T) {
	m := setup(t)
	direct := open(t, m.Path("f"), unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT)
	cached := open(t, m.Path("f"), unix.O_RDWR)
	block, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
	must(t, err)
	model := make([]byte, 1<<20)
	for i := range 40 {
		off, n := int64(i*13%64)<<12, 4096*(1+i%7)
		p := bytes.Repeat([]byte{byte(i + 1)}, n)
		copy(model[off:], p)
		if i%2 == 0 {
			must(t, second(unix.Pwrite(direct, block[:copy(block, p)], off)))
		} else {
			must(t, second(unix.Pwrite(cached, p, off)))
		}
		for _, fd := range []int{direct, cached} {
			k, err := unix.Pread(fd, block[:n], off)
			if err != nil || !bytes.Equal(block[:k], p) {
				t.Fatalf("write %d, read by %d: %d bytes, %v", i, fd, k, err)
			}
		}
	}
	st := stat(t, m.Path("f"))
	content(t, m.Path("f"), model[:st.Size])
}

// TestNames: every byte but "/" and NUL is part of a name, and 255 of them fit.
func TestNames(t *testing.T) {
	m := setup(t)
	made := map[string]bool{}
	name := func(s string) {
		made[s] = true
		must(t, os.WriteFile(m.Path(s), []byte(s), 0o600))
	}
	for c := range 256 {
		if c != 0 && c != '/' && c != '.' {
			name(string([]byte{byte(c)}))
			name("x" + strings.Repeat(string([]byte{byte(c)}), 254))
		}
	}
	for _, s := range []string{"...", " ", "-rf", "a\nb", ".cafs ", ".go-fuse-epoll-hack", strings.Repeat("é", 127), "\xff\xfe"} {
		name(s)
	}
	want(t, "256 bytes", os.WriteFile(m.Path(strings.Repeat("n", 256)), nil, 0o600), unix.ENAMETOOLONG)
	taken := m.Path(".go-fuse-epoll-hack") // by the FUSE library, for itself
	must(t, os.Rename(taken, m.Path("moved")))
	must(t, os.Rename(m.Path("moved"), taken))
	must(t, os.Link(taken, m.Path("linked")))
	must(t, os.Remove(taken))
	must(t, os.Mkdir(taken, 0o700))
	must(t, os.Remove(taken))
	must(t, os.Symlink("linked", taken))
	content(t, taken, []byte(".go-fuse-epoll-hack"))
	must(t, os.Rename(m.Path("linked"), taken))
	for range 2 {
		list, err := os.ReadDir(m.Dir)
		must(t, err)
		if len(list) != len(made) {
			t.Errorf("%d names, want %d", len(list), len(made))
		}
		for _, e := range list {
			if !made[e.Name()] {
				t.Errorf("%q was not made", e.Name())
			}
			content(t, filepath.Join(m.Dir, e.Name()), []byte(e.Name()))
		}
		m.Remount()
	}
	long := strings.Repeat("s/", 2047) + "t"
	must(t, unix.Symlink(long, m.Path("link")))
	want(t, "a target of 4096 bytes", unix.Symlink(long+"u", m.Path("longer")), unix.ENAMETOOLONG)
	m.Remount()
	if got, err := os.Readlink(m.Path("link")); err != nil || got != long {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestTimes: nanoseconds and the years ext4 has, kept over a remount; a time of
// birth that does not move.
func TestTimes(t *testing.T) {
	m := setup(t)
	must(t, os.WriteFile(m.Path("f"), nil, 0o600))
	birth := func() unix.StatxTimestamp {
		var sx unix.Statx_t
		must(t, unix.Statx(unix.AT_FDCWD, m.Path("f"), 0, unix.STATX_BTIME, &sx))
		if sx.Mask&unix.STATX_BTIME == 0 {
			t.Error("no time of birth")
		}
		return sx.Btime
	}
	born := birth()
	if d := time.Since(time.Unix(born.Sec, int64(born.Nsec))); d < -time.Second || d > time.Minute {
		t.Errorf("born %v ago", d)
	}
	omit := unix.Timespec{Nsec: unix.UTIME_OMIT}
	const first, last = -1<<31 + 1, 1<<34 - 1<<31 - 2 // 13 December 1901 and 10 May 2446, next to the ends of ext4, which have no nanoseconds there
	for _, sec := range []int64{first, -1, 0, 1 << 31, 1 << 32, 9_223_372_036, 9_223_372_037, last} {
		a, mt := unix.Timespec{Sec: sec, Nsec: 1}, unix.Timespec{Sec: sec, Nsec: 999_999_999}
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, m.Path("f"), []unix.Timespec{a, mt}, 0))
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, m.Path("f"), []unix.Timespec{omit, omit}, 0))
		for i := range 2 {
			if st := stat(t, m.Path("f")); st.Atim != a || st.Mtim != mt {
				t.Errorf("%d: %v %v, want %v %v", sec, st.Atim, st.Mtim, a, mt)
			}
			if i == 0 && (sec == first || sec == last) {
				m.Remount()
			}
		}
	}
	if birth() != born {
		t.Errorf("born %v, then %v", born, birth())
	}
}

// TestXattrs: namespaces, limits and errors of xattr(7).
func TestXattrs(t *testing.T) {
	harness.NeedRoot(t)
	m := setup(t)
	f := m.Path("f")
	must(t, os.WriteFile(f, nil, 0o666))
	must(t, unix.Chmod(f, 0o666))
	must(t, unix.Symlink("f", m.Path("l")))
	longest := "user." + strings.Repeat("n", 250)
	big := bytes.Repeat([]byte("v"), 64<<10)
	buf := make([]byte, 70<<10)
	want(t, "a name of 256", unix.Setxattr(f, longest+"n", nil, 0), unix.ERANGE)
	want(t, "a value of 64 KiB and 1", unix.Setxattr(f, "user.v", append(big, 0), 0), unix.E2BIG)
	want(t, "an unknown namespace", unix.Setxattr(f, "nosuch.x", nil, 0), unix.EOPNOTSUPP)
	want(t, "user. on a symlink", unix.Lsetxattr(m.Path("l"), "user.x", nil, 0), unix.EPERM)
	must(t, unix.Setxattr(f, "trusted.t", []byte("trust"), 0))
	must(t, unix.Lsetxattr(m.Path("l"), "trusted.t", []byte("trust"), 0))
	must(t, unix.Setxattr(f, "security.s", []byte("secure"), 0))
	harness.AsUser(harness.UserA, harness.UserA, nil, func() {
		want(t, "trusted. for a user", second(unix.Getxattr(f, "trusted.t", buf)), unix.ENODATA)
		want(t, "setting trusted. for a user", unix.Setxattr(f, "trusted.t", nil, 0), unix.EPERM)
		want(t, "setting security. for a user", unix.Setxattr(f, "security.s", nil, 0), unix.EPERM)
		want(t, "setting user.", unix.Setxattr(f, "user.u", nil, 0), nil)
		if n, err := unix.Listxattr(f, buf); err != nil || strings.Contains(string(buf[:n]), "trusted") {
			t.Errorf("list for a user: %q %v", buf[:n], err)
		}
	})
	// ext4 has less room, so these may fail there.
	for name, val := range map[string][]byte{longest: []byte("x"), "user.big": big, "user.empty": {}} {
		if err := unix.Setxattr(f, name, val, 0); errors.Is(err, unix.ENOSPC) && harness.Plain() {
			continue
		} else {
			must(t, err)
		}
		n, err := unix.Getxattr(f, name, nil)
		if err != nil || n != len(val) {
			t.Errorf("%.20s: %d bytes, %v", name, n, err)
		}
		if len(val) > 1 {
			want(t, "a buffer too small", second(unix.Getxattr(f, name, buf[:len(val)-1])), unix.ERANGE)
		}
	}
	if harness.Plain() {
		return
	}
	m.Remount()
	for name, val := range map[string]string{"user.big": string(big), "user.empty": "", longest: "x", "user.u": "", "trusted.t": "trust", "security.s": "secure"} {
		if n, err := unix.Getxattr(f, name, buf); err != nil || string(buf[:max(n, 0)]) != val {
			t.Errorf("%.20s: %d bytes, %v", name, n, err)
		}
	}
	if n, err := unix.Lgetxattr(m.Path("l"), "trusted.t", buf); err != nil || string(buf[:max(n, 0)]) != "trust" {
		t.Errorf("of the symlink: %d bytes, %v", n, err)
	}
	full := false
	for i := 0; i < 400 && !full; i++ {
		err := unix.Setxattr(f, fmt.Sprintf("user.%0249d", i), nil, 0)
		if full = errors.Is(err, unix.ENOSPC); !full {
			must(t, err)
		}
	}
	if n, err := unix.Listxattr(f, buf); err != nil || !full {
		t.Errorf("a list that is too long: %d bytes, full %v, %v", n, full, err)
	}
}

// TestStatfs: space and inodes are those of the volume of the repository.
func TestStatfs(t *testing.T) {
	m := setup(t)
	var here, there unix.Statfs_t
	must(t, unix.Statfs(m.Dir, &here))
	must(t, unix.Statfs(filepath.Dir(m.Dir), &there))
	near := func(a, b uint64) bool { return math.Abs(float64(a)-float64(b)) < 0.1*float64(b)+1e5 }
	scale := uint64(there.Bsize) / 512
	mine := uint64(here.Bsize) / 512
	if !near(here.Blocks*mine, there.Blocks*scale) || !near(here.Bavail*mine, there.Bavail*scale) ||
		!near(here.Files, there.Files) || !near(here.Ffree, there.Ffree) || here.Namelen != 255 || here.Bavail > here.Bfree || here.Bfree > here.Blocks {
		t.Errorf("%+v\nbelow: %+v", here, there)
	}
}
