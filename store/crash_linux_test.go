package store_test

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cafs/store"
	"cafs/store/disk"

	"github.com/ipfs/go-cid"
	"golang.org/x/sys/unix"
)

// shutdownIoctl stops a file system as a power cut would: FS_IOC_SHUTDOWN of
// ext4 and xfs. Its argument says what happens to the journal before.
const (
	shutdownIoctl    = 0x8004587d
	shutdownLogFlush = 1 // names are safe and bytes are not: the trap of empty files
	shutdownNoFlush  = 2
)

// TestShutdown cuts the power of real file systems in loop images. It needs root
// and the mkfs tools; where CAFS_FUSE says that mounting works, not having them
// is a failure.
func TestShutdown(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 && os.Getenv("CAFS_FUSE") == "" {
		t.Skip("mounts images: takes root and some time")
	}
	s := seed(t)
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			if _, err := exec.LookPath("mkfs." + fstype); err != nil && os.Getenv("CAFS_FUSE") == "" {
				t.Skip(err)
			}
			for run := range max(1, *runsFlag/5) {
				rng := rand.New(rand.NewPCG(s, uint64(run)))
				shutdown(t, fstype, rng)
			}
		})
	}
}

func shell(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// volume is a file system in an image.
type volume struct{ image, dir string }

func newVolume(t *testing.T, fstype, image, dir, size string) volume {
	t.Helper()
	v := volume{image, dir}
	shell(t, "truncate", "-s", size, image)
	// mkfs.btrfs gives up when the source of any mount cannot be looked at, as
	// when a test elsewhere has just killed a daemon: it sees none.
	shell(t, "unshare", "-m", "sh", "-c", `awk '$3 ~ /^fuse/ {print $2}' /proc/self/mounts | xargs -r umount -l
		exec "$@"`, "sh", "mkfs."+fstype, "-q", image)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	v.mount(t)
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // unmounted already, if all went well
	return v
}

func (v volume) mount(t *testing.T) {
	t.Helper()
	shell(t, "mount", "-o", "loop", v.image, v.dir)
}

// umount waits for others who hold the file system, such as a mount namespace
// that was made meanwhile and has a copy of each mount.
func (v volume) umount(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		err := unix.Unmount(v.dir, 0)
		if err == nil {
			return
		}
		if err != unix.EBUSY || time.Now().After(end) {
			t.Fatalf("umount %s: %v", v.dir, err)
		}
	}
}

// shutdown cuts the power while a store is written to, and looks at what is
// left. btrfs has no call for that: its image lies on an ext4, which has, and
// which then loses what btrfs has not flushed.
func shutdown(t *testing.T, fstype string, rng *rand.Rand) {
	dir := t.TempDir()
	var volumes []volume // the lowest first
	image := filepath.Join(dir, "image")
	if fstype == "btrfs" {
		v := newVolume(t, "ext4", image, filepath.Join(dir, "lower"), "1G")
		volumes, image = append(volumes, v), filepath.Join(v.dir, "image")
	}
	top := newVolume(t, fstype, image, filepath.Join(dir, "mnt"), "512M")
	volumes = append(volumes, top)
	fs, err := disk.OS(top.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(top.dir + "/lost+found"); err != nil {
		t.Fatal(err)
	}
	d, err := store.Open(fs, store.Options{CreateIfMissing: true, Buffered: rng.IntN(2) == 0})
	if err != nil {
		t.Fatal(err)
	}
	if rng.IntN(2) == 0 {
		d.Shrink()
	}
	w := &workload{d: d, rng: rng, durable: map[cid.Cid]bool{}}
	ended := make(chan error, 1)
	go func() { ended <- w.run(1 << 30) }()
	time.Sleep(time.Duration(20+rng.IntN(600)) * time.Millisecond) // when the power goes
	how := []int{shutdownNoFlush, shutdownLogFlush}[rng.IntN(2)]
	powerOff(t, volumes[0].dir, how)
	w.stop.Store(true) // what waits in memory may be put for a while yet
	<-ended
	d.Close()
	fs.Close()
	for i := len(volumes) - 1; i >= 0; i-- {
		volumes[i].umount(t)
	}
	for _, v := range volumes {
		v.mount(t)
	}
	again, err := disk.OS(top.dir)
	if err != nil {
		t.Fatal(err)
	}
	survived(t, again, w.acked())
	again.Close()
	for i := len(volumes) - 1; i >= 0; i-- {
		volumes[i].umount(t)
	}
	t.Logf("%s: %d blocks acknowledged, way %d", fstype, len(w.acked()), how)
}

func powerOff(t *testing.T, mnt string, how int) {
	t.Helper()
	fd, err := unix.Open(mnt, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetPointerInt(fd, shutdownIoctl, how); err != nil {
		t.Fatal(err)
	}
}
