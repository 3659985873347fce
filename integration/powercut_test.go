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

	"cafs/integration/harness"
	"cafs/store/disk/disktest"
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
			rng := rand.New(rand.NewPCG(uint64(s), uint64(i)))
			size := "512M"
			if fstype == "xfs" { // has less of it to give, and a full disk is another test's
				size = "1G"
			}
			p := newPowered(t, fstype, size)
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

// powered is a repository on a file system whose power can be cut.
type powered struct {
	disk  *disktest.Image
	m     *harness.Mount
	files []*history
	names *names
	dying dying
}

// newPowered makes one of the given size, as truncate(1) takes it, mounted with
// these flags.
func newPowered(t *testing.T, fstype, size string, args ...string) *powered {
	p := &powered{disk: disktest.NewImage(t, harness.Scratch(t), fstype, size)}
	p.m = harness.New(t, harness.Options{Repo: filepath.Join(p.disk.Dir, "r"), Args: args, Limit: harness.MountLimit()})
	for i := range 6 {
		p.files = append(p.files, &history{path: p.m.Path(fmt.Sprint("f", i)), states: []content{{}}, dying: &p.dying})
	}
	p.names = &names{dir: mkdir(t, p.m.Path("names")), dying: &p.dying}
	p.m.Sync()
	return p
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
	p.disk.PowerOff(t, []disktest.Loss{disktest.LogLost, disktest.LogWritten}[round%2])
	wg.Wait() // by errors: nothing can be written any more
	p.limps(t)
	p.m.Kill()
	p.disk.Unmount(t)
	p.dying.Store(false)
	p.disk.Mount(t)
	p.m.Mount()
	for _, h := range p.files {
		h.check(t)
	}
	p.names.check(t)
	p.m.Sync()
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
