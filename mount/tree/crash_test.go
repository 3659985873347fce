package tree_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
	"cafs/mount/verify"
	"cafs/store/disk"
)

var crashesFlag = flag.Int("crashes", 5000, "random histories with power cuts")

// states is what a crash may leave: the namespace after every step since the
// last barrier, and the contents that each file had.
type states struct {
	names []string // dumps without contents, by step
	files map[tree.Ino]*fileHistory

	mu  sync.Mutex // guards now, which crashes look at from other goroutines
	now moment
}

// moment is what was promised at the time of a crash.
type moment struct {
	last    int // the newest step that can have had any effect
	barrier int // no namespace older than this step may come back
	acks    int // barriers that returned
}

// fileHistory has the states of a file's contents and the steps at which they
// began to be there; and what was promised of them.
type fileHistory struct {
	sums      [][]byte
	since     []int
	seen      []byte // the contents of the last state
	published []published
}

// published says that in a namespace as of the step or later, contents are as
// they were at that step, or newer; if it is of a barrier, after its return only.
type published struct{ step, ack int }

func newStates() *states { return &states{files: map[tree.Ino]*fileHistory{}} }

// note records the model after a step. Until the next call a crash may also
// leave one step more.
func (h *states) note(w *world) {
	step := len(h.names)
	var b strings.Builder
	w.root.dump("", &b, false)
	h.names = append(h.names, b.String())
	for _, n := range w.all(func(n *node) bool { return n.kind == index.File }) {
		f := h.files[n.ino]
		if f == nil {
			f = &fileHistory{}
			h.files[n.ino] = f
		}
		if len(f.sums) > 0 && len(n.data) > 0 && len(f.seen) == len(n.data) && &f.seen[0] == &n.data[0] {
			continue // the model does not change data in place
		}
		f.seen = n.data
		s := sum(n.data)
		if k := len(f.sums); k == 0 || !bytes.Equal(f.sums[k-1], s) {
			f.sums, f.since = append(f.sums, s), append(f.since, step)
		}
	}
	h.mu.Lock()
	h.now.last = step + 1
	h.mu.Unlock()
}

// replaced records that a rename under way publishes a file's contents with it.
func (h *states) replaced(n *node) {
	if f := h.files[n.ino]; f != nil {
		f.published = append(f.published, published{step: len(h.names)})
	}
}

// acknowledge records that a barrier returned, after the last step, for the
// namespace and these files.
func (h *states) acknowledge(files ...*node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now.acks++
	h.now.barrier = len(h.names) - 1
	for _, n := range files {
		if f := h.files[n.ino]; f != nil {
			f.published = append(f.published, published{h.now.barrier, h.now.acks})
		}
	}
}

// allows reports whether the file may have these contents in a namespace as of
// step: those of some moment, no older than the last promise up to step.
func (f *fileHistory) allows(s []byte, step int, m moment) bool {
	oldest := 0
	for _, p := range f.published {
		if p.step <= step && p.ack <= m.acks {
			oldest = max(oldest, p.step)
		}
	}
	for i := range f.sums {
		gone := i+1 < len(f.sums) && f.since[i+1] <= oldest
		if !gone && f.since[i] <= m.last && bytes.Equal(f.sums[i], s) {
			return true
		}
	}
	return false
}

// wrong compares what came back with what may; "" is as it should be.
func (h *states) wrong(r *rig, m moment) string {
	sums := map[tree.Ino][]byte{}
	var b strings.Builder
	r.dumpNode("", tree.RootIno, &b, func(ino tree.Ino, data []byte) { sums[ino] = sum(data) })
	got := b.String()
	last := min(m.last, len(h.names)-1)
	reason := ""
	for step := last; step >= m.barrier; step-- {
		if h.names[step] != got {
			continue
		}
		reason = ""
		for ino, s := range sums {
			if f := h.files[ino]; f == nil || !f.allows(s, step, m) {
				reason = fmt.Sprintf("file %d has contents that it did not have, or that are older than promised (step %d)", ino, step)
			}
		}
		if reason == "" {
			return ""
		}
	}
	if reason != "" {
		return reason
	}
	return fmt.Sprintf("no step from %d to %d had this namespace:\n%s", m.barrier, last, difference(got, h.names[last]))
}

// crashes collects power cuts while a history runs.
type crashes struct {
	h    *states
	disk *disk.Mem

	mu     sync.Mutex
	rng    *rand.Rand
	keeps  func(disk.Op, *rand.Rand) []float64 // the power cuts to try before a call
	images []image
}

// image is a disk after a power cut, and what was promised when it came.
type image struct {
	disk *disk.Mem
	moment
	why string
}

// before is told of every call into the disk.
func (c *crashes) before(op disk.Op) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, keep := range c.keeps(op, c.rng) {
		c.cut(keep, fmt.Sprintf("before %s %s", op.Kind, op.Name))
	}
	return nil
}

// cut adds a power cut at this moment. What has been promised is read first: a
// barrier that returns meanwhile is not held against the disk.
func (c *crashes) cut(keep float64, why string) {
	c.h.mu.Lock()
	m := c.h.now
	c.h.mu.Unlock()
	i := image{disk: c.disk.Crash(c.rng.Int64(), keep), moment: m, why: fmt.Sprintf("power cut %s, keeping %v", why, keep)}
	c.h.mu.Lock() // nor is a step that began while it was taken
	i.last = c.h.now.last
	c.h.mu.Unlock()
	c.images = append(c.images, i)
}

// check opens every image and compares it with the history, now and after it
// was used and closed. It gives up at the first that is wrong.
func (c *crashes) check(t *testing.T, what string) {
	t.Helper()
	for i, img := range c.images {
		reason := c.h.checkImage(t, img, i%8 == 7 || i == len(c.images)-1)
		if reason != "" {
			t.Errorf("%s\n%s (step %d of %d): %s", what, img.why, img.last, len(c.h.names)-1, reason)
			return
		}
	}
}

func (h *states) checkImage(t *testing.T, img image, thorough bool) string {
	r := &rig{t: t, ctx: t.Context(), disk: img.disk, log: quiet}
	if err := r.tryOpen(); err != nil {
		return fmt.Sprintf("cannot be opened: %v", err)
	}
	defer func() { r.close(false) }()
	if reason := h.wrong(r, img.moment); reason != "" {
		return reason
	}
	if reason := unsound(r); reason != "" || !thorough {
		return reason
	}
	// What came back must also be sound for what comes next: addresses are those
	// of the contents, and nothing appears or vanishes later.
	root, err := r.tree.Seal(t.Context(), tree.RootIno)
	if err != nil {
		return fmt.Sprintf("seal: %v", err)
	}
	if want := r.address(tree.RootIno); root.Cid != want.Cid {
		return fmt.Sprintf("the tree's CID is %s, built from what it shows %s", root.Cid, want.Cid)
	}
	must(t, r.tree.Reclaim(t.Context()))
	r.reopen()
	if reason := h.wrong(r, img.moment); reason != "" {
		return "once used and closed: " + reason
	}
	return unsound(r)
}

// unsound looks for what dangles in the index.
func unsound(r *rig) (reason string) {
	snap := r.db.Snapshot()
	defer snap.Close()
	must(r.t, verify.CheckIndex(r.ctx, snap, nil, func(f verify.Finding) error { reason = f.Detail; return nil }))
	return reason
}

// TestCrash cuts the power at random moments of random histories. What comes
// back is the namespace of one step, no older than the last barrier, with
// contents that each file had, no older than when they were last made durable
// or moved over an existing name (DESIGN 6, promises 2 and 3).
func TestCrash(t *testing.T) {
	n := *crashesFlag
	if testing.Short() {
		n = min(n, 100)
	}
	first := *seedFlag
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	t.Logf("%d histories from -seed %d", n, first)
	var cuts atomic.Int64
	spread(t, n, func(t *testing.T, i int) { cuts.Add(crashOnce(t, first+uint64(i))) })
	t.Logf("%d power cuts", cuts.Load())
}

// spread calls f(0) to f(n-1) until one fails, some at a time: most of them wait
// for background work most of the time.
func spread(t *testing.T, n int, f func(t *testing.T, i int)) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var next atomic.Int64
	var failed atomic.Bool
	var running sync.WaitGroup
	for worker := range 2 * runtime.GOMAXPROCS(0) {
		running.Go(func() {
			t.Run(fmt.Sprint(worker), func(t *testing.T) {
				for i := int(next.Add(1)) - 1; i < n && !failed.Load(); i = int(next.Add(1)) - 1 {
					f(t, i)
					if t.Failed() {
						failed.Store(true)
					}
				}
			})
		})
	}
	running.Wait()
}

func crashOnce(t *testing.T, seed uint64) (cuts int64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	h := newStates()
	c := &crashes{h: h, disk: emptyDisk(t), rng: rng, keeps: rarely}
	r := openRig(t, c.disk, c.before) // power cuts while the index is made are in it
	defer func() { r.close(false) }()
	w := newWorld(r, seed)
	h.note(w)
	h.acknowledge() // Open made the root durable
	w.published = h.replaced
	for range 20 + w.rng.IntN(120) {
		if err := w.step(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		h.note(w)
		w.barrier(t, h)
	}
	c.mu.Lock()
	c.cut(keepSome[rng.IntN(len(keepSome))], "at the end")
	c.keeps = never
	c.mu.Unlock()
	c.check(t, fmt.Sprintf("-seed %d -crashes 1", seed))
	return int64(len(c.images))
}

var keepSome = []float64{0, 0.1, 0.5, 0.9, 1}

func never(disk.Op, *rand.Rand) []float64 { return nil }

// rarely cuts the power about twice in a history.
func rarely(op disk.Op, rng *rand.Rand) []float64 {
	if !op.Kind.Changes() || rng.IntN(150) > 0 {
		return nil
	}
	return []float64{keepSome[rng.IntN(len(keepSome))]}
}

// barrier makes things durable now and then, and notes what that promises.
func (w *world) barrier(t *testing.T, h *states) {
	switch w.rng.IntN(14) {
	case 0:
		must(t, w.tree.Sync(t.Context()))
		h.acknowledge(w.all(func(n *node) bool { return n.kind == index.File })...)
	case 1:
		n := w.pick(0)
		must(t, w.tree.Fsync(t.Context(), n.ino))
		h.acknowledge(n)
	case 2:
		_, err := w.tree.Seal(t.Context(), w.pick(index.Dir).ino)
		must(t, err)
	case 3:
		must(t, w.tree.Publish(t.Context()))
	case 4:
		must(t, w.tree.Reclaim(t.Context()))
	}
}

// TestTick: without any fsync, what was done is durable after a commit interval.
func TestTick(t *testing.T) {
	h := newStates()
	r := &rig{t: t, ctx: t.Context(), disk: emptyDisk(t), log: quiet, tick: time.Millisecond, close: func(bool) {}}
	r.open()
	defer func() { r.close(false) }()
	w := newWorld(r, 1)
	h.note(w)
	want, got := w.create(w.root, "f", index.File)
	noErr(t, "create", errors.Join(want, got))
	noErr(t, "write", w.write(w.root.entries["f"], 10, 3*chunk))
	h.note(w)
	for end := time.Now().Add(20 * time.Second); r.tree.Stats().Dirty > 0 || r.db.Unsynced(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is not")
		}
	}
	h.acknowledge(w.root.entries["f"])
	if reason := h.checkImage(t, image{disk: r.disk.Crash(1, 0), moment: h.now}, true); reason != "" {
		t.Error(reason)
	}
}
