package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cafs/integration/harness"
)

// TestField: writers, removals, snapshots, restores, imports and collections
// beside one another, while the daemon is killed again and again. Every file
// says in its name what it must contain, in the tree and in every snapshot, and
// what was added is there; in the end, what nothing refers to is gone.
func TestField(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{Limit: harness.MountLimit(), Args: []string{
		"--commit-interval", "200ms", "--auto-commit", "700ms", "--keep-last", "2"}})
	s := seed(t)
	rng := rand.New(rand.NewPCG(uint64(s), 8))
	f := &field{t: t, m: m}
	for w := range 3 {
		mkdir(t, m.Path(fmt.Sprint("w", w)))
	}
	m.Sync()
	end := time.Now().Add(time.Duration(harness.Scale(12, 600)) * time.Second)
	rounds := 0
	for ; time.Now().Before(end); rounds++ {
		f.round(rng, rounds)
		if t.Failed() {
			t.Fatalf("round %d\n%s", rounds, m.LogTail())
		}
	}
	t.Logf("%d rounds: %v", rounds, f.String())
	if f.collections.Load() == 0 || f.snapshots.Load() == 0 || f.written.Load() == 0 {
		t.Errorf("too little happened: %v", f.String())
	}
	if r := m.Cafs("verify", "--repo", m.Repo); r.Code != 0 {
		t.Errorf("verify: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	f.empty()
}

type field struct {
	t *testing.T
	m *harness.Mount

	written, removed, snapshots, restores, collections, added atomic.Int64

	pins []string // CIDs of what was added, the oldest first; only add changes it
}

const maxPins = 6 // more are given up again

func (f *field) String() string {
	return fmt.Sprintf("%d files written, %d removed, %d snapshots, %d restores, %d collections, %d added",
		f.written.Load(), f.removed.Load(), f.snapshots.Load(), f.restores.Load(), f.collections.Load(), f.added.Load())
}

// round lets everybody work until the daemon is killed, then looks at
// everything there is.
func (f *field) round(rng *rand.Rand, n int) {
	var wg sync.WaitGroup
	var stop atomic.Bool
	beside := func(work func(*rand.Rand) error) {
		r := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() {
			for !stop.Load() && work(r) == nil {
			}
		})
	}
	for w := range 3 {
		dir := f.m.Path(fmt.Sprint("w", w))
		beside(func(r *rand.Rand) error {
			err := f.write(r, dir)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a restore replaced the folder
			}
			return err
		})
	}
	beside(f.history)
	beside(func(*rand.Rand) error { return f.collect() })
	beside(f.add)
	time.Sleep(time.Duration(200+rng.IntN(2500)) * time.Millisecond) // the moment is the point
	if n%4 == 3 {                                                    // now and then an end that is none of the daemon's
		stop.Store(true)
		wg.Wait()
		f.m.Remount()
	} else {
		f.m.Kill()
		stop.Store(true) // commands go on without a daemon
		wg.Wait()
		f.m.Mount()
	}
	f.check()
}

// write makes, replaces or removes a file, whole and synced before it has its
// name.
func (f *field) write(r *rand.Rand, dir string) error {
	name := filepath.Join(dir, fmt.Sprint(r.IntN(5)))
	if r.IntN(4) == 0 {
		list, err := os.ReadDir(name)
		if err == nil && len(list) > 0 {
			f.removed.Add(1)
			return os.RemoveAll(name)
		}
	}
	if err := os.MkdirAll(name, 0o755); err != nil {
		return err
	}
	seed, size := r.IntN(1000), r.IntN(100_000)
	if r.IntN(6) == 0 {
		size = 3 << 20
	}
	tmp := dir + ".tmp" // no restore replaces it by one of another moment
	if err := os.WriteFile(tmp, stream(uint64(seed), size), 0o644); err != nil {
		return err
	}
	if err := fsync(tmp); err != nil {
		return err
	}
	f.written.Add(1)
	return os.Rename(tmp, filepath.Join(name, fmt.Sprintf("s%d-%d", seed, size)))
}

// history makes and removes snapshots, and restores some of what they have.
func (f *field) history(r *rand.Rand) error {
	name := fmt.Sprint("n", r.IntN(6))
	var res harness.Result
	switch k := r.IntN(10); {
	case k < 5:
		if res = f.m.Cafs("snapshot", "create", name, "--repo", f.m.Repo); res.Code == 0 {
			f.snapshots.Add(1)
		}
	case k < 8:
		res = f.m.Cafs("snapshot", "rm", name, "--repo", f.m.Repo)
	default:
		dir := fmt.Sprintf("w%d", r.IntN(3))
		if res = f.m.Cafs("restore", name+":"+dir, dir, "--repo", f.m.Repo); res.Code == 0 {
			f.restores.Add(1)
		}
	}
	f.result(res)
	return nil
}

func (f *field) collect() error {
	res := f.m.Cafs("gc", "--repo", f.m.Repo)
	if res.Code == 0 {
		f.collections.Add(1)
	}
	f.result(res)
	return nil
}

// add brings a folder in whose blocks the tree may have too, or have had.
func (f *field) add(r *rand.Rand) error {
	seed := r.IntN(1000)
	dir := harness.Scratch(f.t)
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("s%d-%d", seed, 3<<20)), stream(uint64(seed), 3<<20), 0o644); err != nil {
		return err
	}
	res := f.m.Cafs("add", "-rq", dir, "--repo", f.m.Repo)
	if res.Code == 0 {
		f.added.Add(1)
		f.pins = append(f.pins, strings.TrimSpace(res.Stdout))
	}
	f.result(res)
	if len(f.pins) <= maxPins {
		return nil
	}
	old := f.pins[0] // which may be there again, under the same CID
	f.pins = slices.DeleteFunc(f.pins, func(c string) bool { return c == old })
	f.result(f.m.Cafs("pin", "rm", old, "--repo", f.m.Repo))
	return nil
}

// result tells what may go wrong, such as a snapshot that is not there or a
// daemon that ends, from what may not.
func (f *field) result(r harness.Result) {
	if r.Code == 5 || strings.Contains(r.Stderr, "not found") || strings.Contains(r.Stderr, "cannot be read") {
		f.t.Errorf("exit %d: %s", r.Code, r.Stderr)
	}
}

// check reads the tree, every snapshot and everything that was added.
func (f *field) check() {
	f.files(f.m.Dir)
	names, err := os.ReadDir(f.m.Path(".cafs/snapshots"))
	if err != nil {
		f.t.Error(err)
	}
	for _, n := range names {
		f.files(f.m.Path(".cafs/snapshots", n.Name()))
	}
	for _, c := range f.pins {
		f.files(f.m.Path(".cafs/ipfs", c))
	}
}

func (f *field) files(root string) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(d.Name(), ".tmp") {
			return err
		}
		var seed uint64
		var size int
		if _, err := fmt.Sscanf(d.Name(), "s%d-%d", &seed, &size); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		got, err := os.ReadFile(path)
		if err == nil && !bytes.Equal(got, stream(seed, size)) {
			err = fmt.Errorf("%s: %d bytes that are others", path, len(got))
		}
		return err
	})
	if err != nil {
		f.t.Error(err)
	}
}

// empty gives everything up: the space comes back.
func (f *field) empty() {
	m := f.m
	bash(f.t, m.Dir, "rm -rf ./*")
	for _, list := range [][]string{{"snapshot", "ls"}, {"pin", "ls"}} {
		for line := range strings.Lines(m.MustCafs(list[0], list[1], "--repo", m.Repo)) {
			for field := range strings.FieldsSeq(line) {
				if strings.HasPrefix(field, "baf") {
					// Commits go by themselves as newer ones are made.
					if r := m.Cafs(list[0], "rm", field, "--repo", m.Repo); r.Code != 0 && r.Code != 8 {
						f.t.Errorf("rm %s: exit %d: %s", field, r.Code, r.Stderr)
					}
				}
			}
		}
	}
	m.Remount() // what a restore replaced is removed in the background
	for end := time.Now().Add(time.Minute); ; time.Sleep(500 * time.Millisecond) {
		m.MustCafs("gc", "--keep-last", "0", "--repo", m.Repo)
		if n := strings.Count(m.MustCafs("block", "ls", "--repo", m.Repo), "\n"); n < 20 {
			return
		} else if time.Now().After(end) {
			f.t.Fatalf("%d blocks are left", n)
		}
	}
}
