// Package disktest makes real file systems for tests, whose power can be cut.
package disktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Loss is what a power cut does to the journal of a file system.
type Loss int

// FS_IOC_SHUTDOWN of ext4, which is XFS_IOC_GOINGDOWN of xfs, stops a file
// system as a power cut would. These are its arguments.
const (
	iocShutdown = 0x8004587d

	LogWritten Loss = 1 // written out before: names are safe and bytes are not, the trap of empty files
	LogLost    Loss = 2
)

// Image is a mounted file system in a loop image. btrfs has no call that cuts
// its power: its image lies on an ext4, which has, and which then loses what
// btrfs has not flushed.
type Image struct {
	// Dir is where it is mounted.
	Dir    string
	layers []layer // the lowest first
}

type layer struct{ image, dir string }

// NewImage makes a file system (ext4, xfs or btrfs) of the given size, as
// truncate(1) takes it, below the folder dir. It is unmounted when the test
// ends. It takes root and the tools of that file system; a test that lacks the
// first is skipped, and one that lacks the second too, unless CAFS_FUSE is 1.
func NewImage(t testing.TB, dir, fstype, size string) *Image {
	t.Helper()
	need(t, "mkfs."+fstype, "mkfs.ext4", "mount", "unshare")
	i := &Image{}
	if fstype == "btrfs" {
		i.add(t, dir, "ext4", "1G")
		dir = i.Dir
	}
	i.add(t, dir, fstype, size)
	return i
}

func need(t testing.TB, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts images: needs root")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			if os.Getenv("CAFS_FUSE") == "1" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
}

func (i *Image) add(t testing.TB, dir, fstype, size string) {
	t.Helper()
	l := layer{filepath.Join(dir, "image"), filepath.Join(dir, "mounted")}
	run(t, "truncate", "-s", size, l.image)
	// mkfs.btrfs gives up when the source of any mount cannot be looked at, as
	// when a test elsewhere has just killed a daemon: it sees none.
	run(t, "unshare", "-m", "sh", "-c", `awk '$3 ~ /^fuse/ {print $2}' /proc/self/mounts | xargs -r umount -l
		exec "$@"`, "sh", "mkfs."+fstype, "-q", l.image)
	if err := os.Mkdir(l.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l.mount(t)
	t.Cleanup(func() { _ = unix.Unmount(l.dir, unix.MNT_DETACH) }) // is not mounted, if the test unmounted it
	i.layers, i.Dir = append(i.layers, l), l.dir
}

func (l layer) mount(t testing.TB) {
	t.Helper()
	run(t, "mount", "-o", "loop", l.image, l.dir)
}

// PowerOff cuts the power. All calls that write fail from then on.
func (i *Image) PowerOff(t testing.TB, what Loss) {
	t.Helper()
	fd, err := unix.Open(i.layers[0].dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetPointerInt(fd, iocShutdown, int(what)); err != nil {
		t.Fatalf("shutdown: %v", err)
	}
}

// Unmount unmounts the file system; nobody may use it. It waits for those who
// let go late: the kernel of an image on a file system that was unmounted, or a
// mount namespace that was made meanwhile and has a copy of each mount. As long
// as there is one, mounting the image would give the same file system again,
// without power.
func (i *Image) Unmount(t testing.TB) {
	t.Helper()
	for n := len(i.layers) - 1; n >= 0; n-- {
		l := i.layers[n]
		mounted := true
		for end := time.Now().Add(30 * time.Second); mounted || l.attached(t); time.Sleep(10 * time.Millisecond) {
			if mounted {
				err := unix.Unmount(l.dir, 0)
				if err != nil && err != unix.EBUSY {
					t.Fatalf("umount %s: %v", l.dir, err)
				}
				mounted = err != nil
			}
			if time.Now().After(end) {
				t.Fatalf("umount %s: somebody else has it (mounted here: %v)", l.dir, mounted)
			}
		}
	}
}

// attached tells whether a loop device still has the image.
func (l layer) attached(t testing.TB) bool {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == l.image {
			return true
		}
	}
	return false
}

// Mount mounts the file system again.
func (i *Image) Mount(t testing.TB) {
	t.Helper()
	for _, l := range i.layers {
		l.mount(t)
	}
}

func run(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
