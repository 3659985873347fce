package mount_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"golang.org/x/sys/unix"
)

// impossible is the one of go-fuse's checks that no file system passes: it
// wants two fcntl locks of one process to conflict. go-fuse leaves it out, too.
const impossible = "FcntlFlockLocksFile"

// TestPosix runs go-fuse's checks, each in a folder of its own, on the mount
// only root can reach and on the one where the kernel checks permissions.
func TestPosix(t *testing.T) {
	for _, other := range []bool{false, true} {
		t.Run(fmt.Sprintf("AllowOther=%v", other), func(t *testing.T) {
			m := mountTest(t, serveOptions{AllowOther: other})
			for name, check := range posixtest.All {
				if name == impossible {
					continue // TestImpossible
				}
				t.Run(name, func(t *testing.T) {
					dir := m.path(name)
					if err := os.Mkdir(dir, 0o755); err != nil {
						t.Fatal(err)
					}
					check(t, dir)
				})
			}
		})
	}
}

// TestImpossible: the check that TestPosix leaves out ends on the mount as it
// does on a tmpfs and on a disk.
func TestImpossible(t *testing.T) {
	m := mountTest(t, serveOptions{})
	shm, err := os.MkdirTemp("/dev/shm", "cafs-")
	if err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	defer os.RemoveAll(shm)
	for _, dir := range []string{shm, t.TempDir(), m.Dir} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestHelperImpossible$")
		cmd.Env = append(os.Environ(), "CAFS_MOUNT_TEST_IMPOSSIBLE="+dir)
		out, err := cmd.CombinedOutput()
		if want := "FcntlFlock returned <nil>, expected EAGAIN"; err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, want %q:\n%s", dir, err, want, out)
		}
	}
}

// TestHelperImpossible is the process of TestImpossible that fails.
func TestHelperImpossible(t *testing.T) {
	dir := os.Getenv("CAFS_MOUNT_TEST_IMPOSSIBLE")
	if dir == "" {
		t.Skip("a part of TestImpossible")
	}
	posixtest.All[impossible](t, dir)
}

// dents reads names and inode numbers with getdents64(2), at most size bytes of
// them; each comes with the position behind it.
type dent struct {
	name string
	ino  uint64
	off  int64
}

func dents(t *testing.T, fd, size int) (list []dent) {
	t.Helper()
	buf := make([]byte, size)
	n, err := unix.Getdents(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	for buf = buf[:n]; len(buf) > 0; { // struct linux_dirent64
		le, size := binary.NativeEndian, binary.NativeEndian.Uint16(buf[16:])
		name, _, _ := bytes.Cut(buf[19:size], []byte{0})
		list = append(list, dent{string(name), le.Uint64(buf), int64(le.Uint64(buf[8:]))})
		buf = buf[size:]
	}
	return list
}

// TestReaddir: positions can be gone back to, rewinding shows what was made
// since, and every inode number is that of stat(2).
func TestReaddir(t *testing.T) {
	m := mountTest(t, serveOptions{})
	const files = 300
	for i := range files {
		name := fmt.Sprintf("%0*d", 1+i%200, i)
		if err := os.WriteFile(m.path(name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(m.Dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	read := func() (list []dent) {
		for {
			part := dents(t, fd, 2048)
			if len(part) == 0 {
				return list
			}
			list = append(list, part...)
		}
	}
	for _, pass := range []string{"from the daemon", "from the kernel"} {
		if _, err := unix.Seek(fd, 0, 0); err != nil {
			t.Fatal(err)
		}
		list := read()
		if len(list) != files+2 {
			t.Fatalf("%s: %d entries, want %d", pass, len(list), files+2)
		}
		for i, d := range list {
			var st unix.Stat_t
			if err := unix.Lstat(m.path(d.name), &st); err != nil || d.name != ".." && st.Ino != d.ino {
				t.Errorf("%s: entry %q: inode %d, stat %d %v", pass, d.name, d.ino, st.Ino, err)
			}
			if i%50 != 7 {
				continue
			}
			if _, err := unix.Seek(fd, d.off, 0); err != nil {
				t.Fatal(err)
			}
			if rest := read(); !slices.Equal(rest, list[i+1:]) {
				t.Errorf("%s: going on behind %q gives %d entries, want %d", pass, d.name, len(rest), len(list)-i-1)
			}
		}
	}
	if err := os.WriteFile(m.path("since"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(m.path("0")); err != nil {
		t.Fatal(err)
	}
	unix.Seek(fd, 0, 0)
	list := read()
	has := func(name string) bool { return slices.ContainsFunc(list, func(d dent) bool { return d.name == name }) }
	if !has("since") || has("0") {
		t.Errorf("after rewinding: new entry %v, removed entry %v", has("since"), has("0"))
	}
}

// TestMovedDir: after a directory moved, its entry ".." is the new parent,
// although the kernel had kept the listing.
func TestMovedDir(t *testing.T) {
	m := mountTest(t, serveOptions{})
	for _, dir := range []string{"a", "b", "a/d"} {
		if err := os.Mkdir(m.path(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	dotdot := func() uint64 {
		fd, err := unix.Open(m.path("b", "d"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		for _, d := range dents(t, fd, 4096) {
			if d.name == ".." {
				return d.ino
			}
		}
		return 0
	}
	if _, err := os.ReadDir(m.path("a", "d")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(m.path("a", "d"), m.path("b", "d")); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(m.path("b"), &st); err != nil {
		t.Fatal(err)
	}
	if got := dotdot(); got != st.Ino {
		t.Errorf(`".." is inode %d, the parent %d`, got, st.Ino)
	}
}

// TestPanic: a handler that panics answers EIO, and the mount lives.
func TestPanic(t *testing.T) {
	m := mountTest(t, serveOptions{})
	beside := filepath.Join(filepath.Dir(m.opts.Repo), "panic")
	if err := os.WriteFile(beside, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadDir(m.path(".cafs", "ipfs")); !errors.Is(err, unix.EIO) {
		t.Errorf("a panic: %v, want EIO", err)
	}
	if err := os.Remove(beside); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadDir(m.path(".cafs", "ipfs")); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if !strings.Contains(m.log(), "a test asked for it") {
		t.Errorf("the log does not have the panic:\n%s", m.log())
	}
}

// TestBusy: a mount in use is not ended, and goes on.
func TestBusy(t *testing.T) {
	m := mountTest(t, serveOptions{})
	f, err := os.Create(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	var busy bool
	if m.ask("unmount", &busy); !busy {
		t.Error("unmounting with an open file is not EBUSY")
	}
	if _, err := f.Write([]byte("still here")); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	m.remount()
	same(t, "after mounting again", m.path("f"), []byte("still here"))
}

// TestNotified: what commands change behind the kernel's back is seen at once,
// although it had kept the opposite.
func TestNotified(t *testing.T) {
	m := mountTest(t, serveOptions{})
	list := func() (names []string) {
		entries, err := os.ReadDir(m.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	for range 3 {
		if _, err := os.Stat(m.path("f")); !errors.Is(err, fs.ErrNotExist) || len(list()) != 0 {
			t.Fatalf("before: %v, %v", err, list())
		}
		m.tell("make f")
		if st, err := os.Stat(m.path("f")); err != nil || st.Size() != 0 || !slices.Equal(list(), []string{"f"}) {
			t.Fatalf("made: %v, %v", err, list())
		}
		if data, err := os.ReadFile(m.path("f")); err != nil || len(data) != 0 {
			t.Fatalf("made: content %q, %v", data, err)
		}
		for _, want := range []string{"some", "other"} {
			m.tell("write f " + want)
			if data, err := os.ReadFile(m.path("f")); err != nil || string(data) != want {
				t.Fatalf("written: content %q, %v; want %q", data, err, want)
			}
		}
		m.tell("remove f")
	}
}

// TestInterrupt: a request that hangs is given up for a caller that dies, and
// for no lesser signal, which no file on a disk answers with EINTR either.
func TestInterrupt(t *testing.T) {
	m := mountTest(t, serveOptions{})
	hang := filepath.Join(filepath.Dir(m.opts.Repo), "hang")
	set := func(on bool) {
		t.Helper()
		err := os.Remove(hang)
		if on {
			err = os.WriteFile(hang, nil, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func() (*exec.Cmd, *bytes.Buffer, chan error) {
		cmd := exec.Command(os.Args[0], "-test.run=TestHelperList")
		cmd.Env = append(os.Environ(), "CAFS_MOUNT_TEST_LIST="+m.path(".cafs", "ipfs"))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		var ops map[string]uint64
		before := m.hanging
		for before == m.hanging {
			m.ask("ops", &ops)
			m.hanging = ops["READDIR"] + ops["READDIRPLUS"]
		}
		return cmd, &out, done
	}
	set(true)
	cmd, out, done := list()
	for range 5 {
		if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("a handled signal ended the request: %v\n%s", err, out)
		case <-time.After(20 * time.Millisecond):
		}
	}
	set(false)
	if err := <-done; err != nil {
		t.Fatalf("after handled signals: %v\n%s", err, out)
	}
	for _, before := range []bool{false, true} {
		set(true)
		cmd, out, done = list()
		if before { // the kernel interrupts a request once only
			cmd.Process.Signal(syscall.SIGUSR1)
			time.Sleep(20 * time.Millisecond)
		}
		cmd.Process.Kill()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Errorf("killed, and hanging still\n%s", out)
		}
		set(false)
	}
}

// TestHelperList is the process that TestInterrupt sends signals to.
func TestHelperList(t *testing.T) {
	dir := os.Getenv("CAFS_MOUNT_TEST_LIST")
	if dir == "" {
		t.Skip("a part of TestInterrupt")
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR1)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Not through os.ReadDir, which starts again on EINTR.
	if _, err := unix.Getdents(fd, make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
}

// TestPermissions: with other users let in, the kernel checks modes, umask and
// ACLs.
func TestPermissions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a second user")
	}
	m := mountTest(t, serveOptions{AllowOther: true, AllowSuid: true})
	if err := os.Chmod(m.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	as := func(uid uint32, script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-c", script)
		cmd.Dir = m.Dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%s(%v)", out, err)
		}
		return strings.TrimSpace(string(out))
	}
	tests := []struct {
		name   string
		uid    uint32
		script string
		want   string // "": anything that fails
	}{
		{"root makes", 0, "mkdir shared private && chmod 1777 shared && chmod 700 private && echo ok", "ok"},
		{"user makes", 1000, "umask 027; echo x >shared/f; mkdir shared/d; stat -c '%a %u' shared/f shared/d", "640 1000\n750 1000"},
		{"other user reads", 1001, "cat shared/f", ""},
		{"other user removes", 1001, "rm -f shared/f", ""},
		{"private", 1000, "ls private", ""},
		{"read-only file made for writing", 1000, "umask 0222; echo y >shared/ro; cat shared/ro; stat -c %a shared/ro", "y\n444"},
		{"read-only file", 1000, "echo z >>shared/ro", ""},
		{"suid goes when another writes", 0, "cp /bin/true shared/s && chmod 6777 shared/s && stat -c %a shared/s", "6777"},
		{"suid goes when another writes, 2", 1001, "echo >>shared/s; stat -c %a shared/s", "777"},
		{"suid goes with the owner", 0, "chmod 6755 shared/s && chown 1000 shared/s && stat -c %a shared/s", "755"},
		{"the view for all", 1001, "ls .cafs/ipfs >/dev/null && test ! -w .cafs && echo ok", "ok"},
	}
	for _, c := range tests {
		if got := as(c.uid, c.script); got != c.want && (c.want != "" || !strings.Contains(got, "exit status")) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestAccess: where the kernel checks nothing because only root can come in,
// access(2) still tells the truth.
func TestAccess(t *testing.T) {
	m := mountTest(t, serveOptions{})
	if err := os.WriteFile(m.path("f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	access := func(mode uint32) error { return unix.Access(m.path("f"), mode) }
	if err := access(unix.X_OK); err != unix.EACCES {
		t.Errorf("access X_OK of mode 644: %v", err)
	}
	if err := errors.Join(access(unix.R_OK|unix.W_OK), os.Chmod(m.path("f"), 0o700), access(unix.X_OK)); err != nil {
		t.Errorf("access: %v", err)
	}
	if err := unix.Access(m.path(".cafs"), unix.W_OK); err != unix.EROFS && !refused(err) {
		t.Errorf("access W_OK of .cafs: %v", err)
	}
}

// TestErrors: errno of what the mount refuses by itself.
func TestErrors(t *testing.T) {
	m := mountTest(t, serveOptions{})
	if err := os.WriteFile(m.path("f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("n", 256)
	fd, err := unix.Open(m.path("f"), unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_, seek := unix.Seek(fd, 1, unix.SEEK_DATA)
	_, flags := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	_, get := unix.Getxattr(m.path("f"), "user.none", nil)
	var st unix.Statfs_t
	statfs := unix.Statfs(m.Dir, &st)
	for _, c := range []struct {
		name string
		got  error
		want error
	}{
		{"name too long", os.Mkdir(m.path(long), 0o755).(*fs.PathError).Err, unix.ENAMETOOLONG},
		{"name long enough", os.Mkdir(m.path(long[1:]), 0o755), nil},
		{"ioctl", flags, unix.ENOTTY},
		{"seek", seek, unix.ENXIO},
		{"xattr missing", get, unix.ENODATA},
		{"xattr namespace", unix.Setxattr(m.path("f"), "no.space", []byte("x"), 0), unix.EOPNOTSUPP},
		{"xattr of the cid", unix.Setxattr(m.path("f"), "ipfs.cid", []byte("x"), 0), unix.EPERM},
		{"whiteout and exchange", unix.Renameat2(unix.AT_FDCWD, m.path("f"), unix.AT_FDCWD, m.path(long[1:]), unix.RENAME_WHITEOUT|unix.RENAME_EXCHANGE), unix.EINVAL},
		{"no replace", unix.Renameat2(unix.AT_FDCWD, m.path("f"), unix.AT_FDCWD, m.path(long[1:]), unix.RENAME_NOREPLACE), unix.EEXIST},
		{"fsync of a directory", fsyncDir(m.Dir), nil},
		{"statfs", statfs, nil},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
	if st.Namelen != 255 || st.Blocks == 0 || st.Files == 0 || st.Type != unix.FUSE_SUPER_MAGIC {
		t.Errorf("statfs: %+v", st)
	}
}

func fsyncDir(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fsync(fd)
}
