// Package harness runs the built cafs binary on real mounts for the tests
// below integration. It looks at cafs only from outside: the command line, the
// mountpoint and the files of the repository.
//
// A test process must not serve the mount it uses (a page fault on a mapping
// of it would wait for the process that faults), so every mount belongs to a
// process of its own, which a watchdog ends when the test takes too long.
//
// Environment:
//
//	CAFS_FUSE   1: not being able to mount fails the test; 0: tests that mount
//	            are skipped; unset: skipped, with the reason, where it is clear
//	            beforehand that mounting cannot work
//	CAFS_PLAIN  1: "mounts" are plain directories of the temporary folder.
//	            Tests of file system behaviour must pass like this: it tests
//	            the tests. Those that need a daemon are skipped
//	CAFS_BIN    use this binary instead of building one
//	CAFS_LONG   1: the long forms
package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// scratch is the folder of this test process; mounts, repositories and the
// binary live below it. Its path is short because the path of a Unix socket
// may have at most 107 bytes.
var scratch string

// Main is the TestMain of a package that uses the harness. It makes the
// scratch folder, runs the tests, and fails the run when they leave a mount
// or a daemon behind.
func Main(m *testing.M) {
	unix.Umask(0o022)
	var err error
	if scratch, err = os.MkdirTemp("", "cafs-it-"); err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		os.Exit(1)
	}
	if err := os.Chmod(scratch, 0o755); err != nil { // other users pass through it
		fmt.Fprintln(os.Stderr, "harness:", err)
		os.Exit(1)
	}
	code := m.Run()
	if left := leftovers(); len(left) > 0 {
		fmt.Fprintf(os.Stderr, "harness: left behind by the tests:\n%s\n", strings.Join(left, "\n"))
		code = 1
	}
	if err := removeAll(scratch); err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		code = 1
	}
	os.Exit(code)
}

// Scratch returns a new folder that is removed when the test ends.
func Scratch(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(scratch, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Tmpfs returns a new folder on a tmpfs, the oracle for what Linux does, and
// skips the test where there is none; with CAFS_FUSE=1 that is a failure.
func Tmpfs(t testing.TB) string {
	t.Helper()
	var st unix.Statfs_t
	const tmpfsMagic = 0x01021994
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Type != tmpfsMagic {
		if os.Getenv("CAFS_FUSE") == "1" {
			t.Fatal("no tmpfs at /dev/shm to compare with")
		}
		t.Skip("no tmpfs at /dev/shm to compare with")
	}
	dir, err := os.MkdirTemp("/dev/shm", "cafs-it-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// removeAll is os.RemoveAll that also copes with folders whose permissions
// forbid it, as tests of permissions leave them. It does not enter a mount.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// Plain says whether mounts are plain directories (CAFS_PLAIN).
func Plain() bool { return os.Getenv("CAFS_PLAIN") == "1" }

// Long says whether the long forms were asked for (CAFS_LONG).
func Long() bool { return os.Getenv("CAFS_LONG") == "1" }

// Scale returns n, or long when the long forms were asked for.
func Scale(n, long int) int {
	if Long() {
		return long
	}
	return n
}

// NeedDaemon skips the test when mounts are plain directories.
func NeedDaemon(t testing.TB) {
	t.Helper()
	if Plain() {
		t.Skip("needs a daemon, and mounts are plain directories (CAFS_PLAIN)")
	}
}

// NeedRoot skips the test for ordinary users.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// NeedAbort skips the test for ordinary users where the control files of FUSE
// connections are not mounted; systemd mounts them.
func NeedAbort(t testing.TB) {
	t.Helper()
	const magic = 0x65735543 // FUSE_CTL_SUPER_MAGIC, fs/fuse/control.c
	var st unix.Statfs_t
	if os.Geteuid() != 0 && (unix.Statfs("/sys/fs/fuse/connections", &st) != nil || st.Type != magic) {
		t.Skip("needs root, or fusectl at /sys/fs/fuse/connections")
	}
}

// NeedCommand skips the test where a program is not installed. With
// CAFS_FUSE=1, which CI sets after installing them, that is a failure.
func NeedCommand(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			if os.Getenv("CAFS_FUSE") == "1" {
				t.Fatalf("%s is not installed", name)
			}
			t.Skipf("%s is not installed", name)
		}
	}
}

// needFUSE is the gate of CAFS_FUSE.
func needFUSE(t testing.TB) {
	t.Helper()
	switch os.Getenv("CAFS_FUSE") {
	case "1":
		return
	case "0":
		t.Skip("CAFS_FUSE=0")
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	f.Close()
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			t.Skip("cannot mount: not root, and fusermount3 is not installed")
		}
	}
}

var build = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("CAFS_BIN"); bin != "" {
		return bin, nil
	}
	return compile("cafs")
})

var buildRace = sync.OnceValues(func() (string, error) { return compile("cafs-race", "-race") })

func compile(name string, flags ...string) (string, error) {
	bin := filepath.Join(scratch, name)
	args := append([]string{"build", "-o", bin}, flags...)
	out, err := exec.Command("go", append(args, "cafs/cmd/cafs")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return bin, nil
}

// Binary returns the path of the cafs binary, built once per test process.
func Binary(t testing.TB) string {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// RaceBinary returns the path of a cafs binary with the race detector.
func RaceBinary(t testing.TB) string {
	t.Helper()
	bin, err := buildRace()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// MountLimit is the watchdog's patience: far more than a test takes on a quiet
// machine, and much more for the long forms.
func MountLimit() time.Duration {
	if Long() {
		return time.Hour
	}
	return 12 * time.Minute
}
