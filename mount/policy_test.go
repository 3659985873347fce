package mount_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// uncheckedOnly skips a test of messages on mounts where the kernel does not
// check permissions: those that only root can reach.
func uncheckedOnly(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the kernel checks permissions on the mounts of ordinary users")
	}
}

// TestMessages pins how many messages common operations cost: that is what the
// policy is for, and most of the time they take.
func TestMessages(t *testing.T) {
	uncheckedOnly(t)
	m := mountTest(t, serveOptions{})
	// System calls as they are: package os adds some of its own.
	open := func(name string, flag int) int {
		fd, err := unix.Open(m.path(name), flag, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	write := func(name string, flag int, p []byte) {
		fd := open(name, flag)
		defer unix.Close(fd)
		if _, err := unix.Write(fd, p); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string, evict bool) {
		fd := open(name, os.O_RDONLY)
		defer unix.Close(fd)
		if evict {
			unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
		}
		if _, err := unix.Read(fd, make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
	stat := func(name string) { os.Lstat(m.path(name)) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	fresh := func() string { n++; return fmt.Sprint("f", n) }
	// Each operation switches off for good what is not implemented.
	write(fresh(), os.O_CREATE|os.O_WRONLY, []byte("x"))
	os.ReadDir(m.Dir)

	page := make([]byte, 4096)
	type ops = map[string]uint64
	tests := []struct {
		name  string
		setup func(name string)
		op    func(name string)
		want  ops
	}{
		{"create, write, close", nil,
			func(f string) { write(f, os.O_CREATE|os.O_EXCL|os.O_WRONLY, page) },
			ops{"LOOKUP": 1, "MKNOD": 1, "GETXATTR": 1, "WRITE": 1}},
		{"many writes", nil,
			func(f string) {
				fd := open(f, os.O_CREATE|os.O_WRONLY)
				for range 64 {
					_, err := unix.Write(fd, page)
					must(err)
				}
				must(unix.Close(fd))
			},
			ops{"LOOKUP": 1, "MKNOD": 1, "GETXATTR": 1, "WRITE": 64}},
		{"read what was just written", func(f string) { write(f, os.O_CREATE|os.O_WRONLY, page) },
			func(f string) { read(f, false) }, ops{}},
		{"read from the daemon", func(f string) { write(f, os.O_CREATE|os.O_WRONLY, page) },
			func(f string) { read(f, true) }, ops{"READ": 1}},
		{"read it again", func(f string) { write(f, os.O_CREATE|os.O_WRONLY, page); read(f, true) },
			func(f string) { read(f, false) }, ops{}},
		{"stat", func(f string) { write(f, os.O_CREATE|os.O_WRONLY, page); stat(f) },
			stat, ops{}},
		{"stat what is not there", stat, stat, ops{}},
		{"chmod and stat", func(f string) { write(f, os.O_CREATE|os.O_WRONLY, page) },
			func(f string) { must(os.Chmod(m.path(f), 0o600)); stat(f) }, ops{"SETATTR": 1}},
		{"truncate by opening", func(f string) { write(f, os.O_CREATE|os.O_WRONLY, page) },
			func(f string) { write(f, os.O_TRUNC|os.O_WRONLY, page) }, ops{"SETATTR": 1, "GETXATTR": 1, "WRITE": 1}},
		{"rename", func(f string) { write(f, os.O_CREATE|os.O_WRONLY, page) },
			func(f string) { must(unix.Rename(m.path(f), m.path(f+"r"))) }, ops{"LOOKUP": 1, "RENAME": 1}},
		{"unlink", func(f string) { write(f, os.O_CREATE|os.O_WRONLY, page) },
			func(f string) { must(os.Remove(m.path(f))) }, ops{"UNLINK": 1}},
		{"mkdir", nil, func(f string) { must(os.Mkdir(m.path(f), 0o755)) }, ops{"LOOKUP": 1, "MKDIR": 1}},
		{"list again", func(f string) { must(os.Mkdir(m.path(f), 0o755)); os.ReadDir(m.path(f)) },
			func(f string) { os.ReadDir(m.path(f)) }, ops{}},
		{"readlink again", func(f string) { must(os.Symlink("to", m.path(f))); os.Readlink(m.path(f)) },
			func(f string) { os.Readlink(m.path(f)) }, ops{}},
		{"fsync", func(f string) { write(f, os.O_CREATE|os.O_WRONLY, page) },
			func(f string) {
				fd := open(f, os.O_RDONLY)
				must(unix.Fsync(fd))
				must(unix.Close(fd))
			}, ops{"FSYNC": 1}},
		{"append, fsync", func(f string) { write(f, os.O_CREATE|os.O_WRONLY, page) },
			func(f string) {
				fd := open(f, os.O_WRONLY|os.O_APPEND)
				for range 3 {
					_, err := unix.Write(fd, page)
					must(err)
					must(unix.Fsync(fd))
				}
				must(unix.Close(fd))
			}, ops{"WRITE": 3, "FSYNC": 3}},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			var got ops
			// Whatever else runs on the machine may make the kernel drop what it
			// keeps, and then there are more messages.
			for range 5 {
				f := fresh()
				if c.setup != nil {
					c.setup(f)
				}
				if got = m.ops(func() { c.op(f) }); maps.Equal(got, c.want) {
					return
				}
			}
			t.Errorf("messages %v, want %v", got, c.want)
		})
	}
}

// TestCheckedMessages: where the kernel checks permissions, it asks for the
// attributes of the directory once after each change of it.
func TestCheckedMessages(t *testing.T) {
	m := mountTest(t, serveOptions{AllowOther: os.Geteuid() == 0})
	run := func(name string, want map[string]uint64, op func(string) error) {
		t.Helper()
		var got map[string]uint64
		for i := range 5 { // see TestMessages
			f := m.path(fmt.Sprint(name, i))
			if err := os.WriteFile(f, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if got = m.ops(func() {
				if err := op(f); err != nil {
					t.Fatal(err)
				}
			}); maps.Equal(got, want) {
				return
			}
		}
		t.Errorf("%s: messages %v, want %v", name, got, want)
	}
	run("rename", map[string]uint64{"GETATTR": 1, "LOOKUP": 1, "RENAME": 1}, func(f string) error { return unix.Rename(f, f+"r") })
	run("unlink", map[string]uint64{"GETATTR": 1, "UNLINK": 1}, unix.Unlink)
}

// TestTreeMessages: listing a directory with the attributes of 1000 files costs
// a message for each 64 KiB or less of listing, and none per file; copying a
// tree a second time six for a file and seven for a directory.
func TestTreeMessages(t *testing.T) {
	const files, dirs = 1000, 10
	uncheckedOnly(t)
	m := mountTest(t, serveOptions{})
	if err := os.Mkdir(m.path("d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if err := os.WriteFile(m.path("d", fmt.Sprint("file-", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	total := func(ops map[string]uint64) (n uint64) {
		for _, k := range ops {
			n += k
		}
		return n
	}
	best := map[string]uint64{"": 1 << 20}
	for range 3 { // see TestMessages
		m.remount()
		os.ReadDir(m.Dir)
		got := m.ops(func() {
			entries, err := os.ReadDir(m.path("d"))
			if err != nil || len(entries) != files {
				t.Fatalf("%d names: %v", len(entries), err)
			}
			for _, e := range entries {
				if _, err := e.Info(); err != nil {
					t.Fatal(err)
				}
			}
		})
		if total(got) < total(best) {
			best = got
		}
	}
	if total(best) > 64 {
		t.Errorf("listing %d files: messages %v", files, best)
	}
	src := t.TempDir()
	for i := range dirs {
		dir := filepath.Join(src, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for k := range 10 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(k)), []byte("content"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	least := uint64(1 << 20)
	for i := range 4 { // the first one switches off what is not implemented
		got := m.ops(func() {
			if out, err := exec.Command("cp", "-a", src, m.path(fmt.Sprint("copy", i))).CombinedOutput(); err != nil {
				t.Fatalf("cp: %v\n%s", err, out)
			}
		})
		if i > 0 && total(got) < least {
			least, best = total(got), got
		}
	}
	if most := uint64(10*dirs*6 + (dirs+1)*7); least > most {
		t.Errorf("copying %d files: messages %v, want at most %d", 10*dirs, best, most)
	}
	t.Logf("copying: %v", best)
}

// TestSequentialRead: the kernel reads ahead in requests of 1 MiB, where the
// daemon may tell it to.
func TestSequentialRead(t *testing.T) {
	m := mountTest(t, serveOptions{})
	const size = 16 << 20
	data := []byte(strings.Repeat("0123456789abcdef", size/16))
	if err := os.WriteFile(m.path("f"), data, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(m.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	best := uint64(size)
	for range 5 {
		got := m.ops(func() {
			unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			buf := make([]byte, 128<<10)
			for off := int64(0); off < size; off += int64(len(buf)) {
				if _, err := f.ReadAt(buf, off); err != nil {
					t.Fatal(err)
				}
			}
		})
		best = min(best, got["READ"])
	}
	most := uint64(size>>20 + 4)
	if os.Geteuid() != 0 { // only root may raise the kernel's read-ahead from 128 KiB
		most = size / (128 << 10)
	}
	if best > most {
		t.Errorf("%d messages READ for %d MiB, want at most %d", best, size>>20, most)
	}
}
