package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// FS_IOC_SHUTDOWN of ext4, which is XFS_IOC_GOINGDOWN of xfs, stops a file
// system as a power cut would. Its argument says what happens to the journal.
const (
	iocShutdown      = 0x8004587d
	shutdownLogFlush = 1 // written out before: names are safe and bytes are not
	shutdownNoFlush  = 2 // lost
)

// TestPowerCut (X05): the repository is on a real file system, whose power is
// cut while files and names change. What fsync covered is there, files are in a
// state they had, names are a prefix of what was done; before that, the daemon
// has lived on, read-only, and status has said so.
//
// A daemon that does not sync fails this test:
//
//	go build -tags cafs_unsafe_nosync -o ./unsafe ./cmd/cafs
//	CAFS_BIN=$PWD/unsafe go test ./integration -run TestPowerCut
func TestPowerCut(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedRoot(t)
	s := seed(t)
	for i, fstype := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			harness.NeedCommand(t, "mkfs."+fstype, "mkfs.ext4", "mount", "umount", "unshare")
			rng := rand.New(rand.NewPCG(uint64(s), uint64(i)))
			p := newPowered(t, fstype, "512M")
			for round := range rounds(3, 50) {
				p.round(t, rng, round)
				if t.Failed() {
					t.Fatalf("round %d\n%s", round, p.m.LogTail())
				}
			}
			if r := p.m.Cafs("verify", "--data", "--repo", p.m.Repo); r.Code != 0 {
				t.Errorf("verify: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
			}
		})
	}
}

// powered is a repository on a file system whose power can be cut. btrfs has
// no call for that: its image lies on an ext4, which has, and which then loses
// what btrfs has not flushed.
type powered struct {
	volumes []volume // the lowest first
	m       *harness.Mount
	files   []*history
	names   *names
	dying   dying
}

// volume is a file system in an image.
type volume struct{ image, dir string }

// newPowered makes one of the given size, as truncate(1) takes it, mounted with
// these flags.
func newPowered(t *testing.T, fstype, size string, args ...string) *powered {
	p := &powered{}
	dir := harness.Scratch(t)
	add := func(fstype, image, size string) string {
		v := volume{image, filepath.Join(dir, fmt.Sprint(len(p.volumes)))}
		mkdir(t, v.dir)
		command(t, dir, "truncate", "-s", size, image)
		// mkfs.btrfs gives up when the source of any mount cannot be looked at,
		// as when a test elsewhere has just killed a daemon: it sees none.
		command(t, dir, "unshare", "-m", "sh", "-c", `awk '$3 ~ /^fuse/ {print $2}' /proc/self/mounts | xargs -r umount -l
			exec "$@"`, "sh", "mkfs."+fstype, "-q", image)
		p.volumes = append(p.volumes, v)
		v.mount(t)
		t.Cleanup(func() { _ = unix.Unmount(v.dir, unix.MNT_DETACH) })
		return v.dir
	}
	top := filepath.Join(dir, "image")
	if fstype == "btrfs" {
		top = filepath.Join(add("ext4", top, "1G"), "image")
	}
	root := add(fstype, top, size)
	p.m = harness.New(t, harness.Options{Repo: filepath.Join(root, "r"), Args: args, Limit: harness.MountLimit()})
	for i := range 6 {
		p.files = append(p.files, &history{path: p.m.Path(fmt.Sprint("f", i)), states: []content{{}}, dying: &p.dying})
	}
	p.names = &names{dir: mkdir(t, p.m.Path("names")), dying: &p.dying}
	p.m.Sync()
	return p
}

func (v volume) mount(t *testing.T) { command(t, "/", "mount", "-o", "loop", v.image, v.dir) }

// umount waits for the kernel, which lets go of an image on a file system some
// time after that was unmounted.
func (v volume) umount(t *testing.T) {
	t.Helper()
	waitFor(t, "unmount of "+v.dir, func() (string, bool) {
		out, err := exec.Command("umount", v.dir).CombinedOutput()
		return string(out), err == nil
	})
}

func (p *powered) round(t *testing.T, rng *rand.Rand, round int) {
	var wg sync.WaitGroup
	for _, h := range p.files {
		w := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() { h.work(w) })
	}
	w := rand.New(rand.NewPCG(rng.Uint64(), 0))
	wg.Go(func() { p.names.work(w) })
	time.Sleep(time.Duration(50+rng.IntN(3000)) * time.Millisecond) // the moment is the point
	p.dying.Store(true)
	p.cut(t, []int{shutdownNoFlush, shutdownLogFlush}[round%2])
	wg.Wait() // by errors: nothing can be written any more
	p.limps(t)
	p.m.Kill()
	for i := len(p.volumes) - 1; i >= 0; i-- {
		p.volumes[i].umount(t)
	}
	p.dying.Store(false)
	for _, v := range p.volumes {
		v.mount(t)
	}
	p.m.Mount()
	for _, h := range p.files {
		h.check(t)
	}
	p.names.check(t)
	p.m.Sync()
}

// cut ends the lowest file system.
func (p *powered) cut(t *testing.T, how int) {
	t.Helper()
	fd, err := unix.Open(p.volumes[0].dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetPointerInt(fd, iocShutdown, how); err != nil {
		t.Fatalf("shutdown: %v", err)
	}
}

// limps checks the daemon over a dead disk, on which the log is, too: it lives,
// refuses changes, and status says why.
func (p *powered) limps(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(p.m.Pid, 0); err != nil {
		t.Errorf("the daemon is gone: %v", err)
	}
	if err := fsync(p.m.Dir); err == nil {
		t.Error("fsync over a dead disk succeeds")
	}
	// Before the daemon has met the failure, names may still change, as far as
	// anybody knows; no longer.
	if err := os.Mkdir(p.m.Path("late"), 0o755); !errors.Is(err, syscall.EROFS) && !errors.Is(err, syscall.EIO) {
		t.Errorf("mkdir over a dead disk: %v", err)
	}
	if _, err := os.Lstat(p.m.Path("names")); err != nil {
		t.Errorf("stat over a dead disk: %v", err)
	}
	out, err := exec.Command(harness.Binary(t), "status", "--json", p.m.Dir).CombinedOutput()
	var status struct{ Failed string }
	if err == nil {
		err = json.Unmarshal(out, &status)
	}
	if err != nil || status.Failed == "" {
		t.Errorf("status does not tell of the failure: %v: %s", err, out)
	}
}
