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

func shutdown(t *testing.T, fstype string, rng *rand.Rand) {
	dir := t.TempDir()
	image, mnt := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	mounted := false
	mount := func(image string) {
		shell(t, "mount", "-o", "loop", image, mnt)
		mounted = true
	}
	umount := func() {
		if mounted {
			shell(t, "umount", mnt)
			mounted = false
		}
	}
	defer umount()
	shell(t, "truncate", "-s", "512M", image)
	shell(t, "mkfs."+fstype, "-q", image)
	shell(t, "mkdir", mnt)
	mount(image)
	fs, err := disk.OS(mnt)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(mnt + "/lost+found"); err != nil {
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
	after := image
	how := []int{shutdownNoFlush, shutdownLogFlush}[rng.IntN(2)]
	must := powerOff(t, mnt, how)
	if must {
		<-ended // by an error: no call can succeed any more
		d.Close()
		fs.Close()
		umount()
	} else {
		// This file system cannot be shut down. What the device has at this
		// moment, apart from what the kernel holds back, is in the image.
		acked := w.acked()
		after = filepath.Join(dir, "after")
		shell(t, "cp", "--sparse=always", image, after)
		w.stop.Store(true)
		<-ended
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		fs.Close()
		umount()
		w.durable = map[cid.Cid]bool{}
		for _, c := range acked {
			w.durable[c] = true
		}
	}
	mount(after)
	again, err := disk.OS(mnt)
	if err != nil {
		t.Fatal(err)
	}
	survived(t, again, w.acked())
	again.Close()
	t.Logf("%s: %d blocks acknowledged, shutdown %v, way %d", fstype, len(w.acked()), must, how)
}

// powerOff tells whether the file system could be shut down.
func powerOff(t *testing.T, mnt string, how int) bool {
	t.Helper()
	fd, err := unix.Open(mnt, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = unix.IoctlSetPointerInt(fd, shutdownIoctl, how)
	if err != nil && err != unix.ENOTTY && err != unix.EOPNOTSUPP {
		t.Fatal(err)
	}
	return err == nil
}
