package content_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
	"cafs/store/disk"
)

// history is what may be found in a file after a crash: its published states
// from the last durable one on.
type history struct {
	states [][]byte // the first is empty
	synced int      // position of the last durable state
}

// cutter takes the power away at the n-th call into the disk.
type cutter struct {
	mu    sync.Mutex
	after int
	crash func() *disk.Mem
	found *disk.Mem // the disk after the crash
	files map[index.Ino]*history
	then  map[index.Ino]history // as of the crash
}

func (c *cutter) inject(disk.Op) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after--
	if c.after == 0 {
		c.found = c.crash()
		c.then = make(map[index.Ino]history)
		for ino, h := range c.files {
			c.then[ino] = *h
		}
	}
	return nil
}

// TestCrash takes the power away at random calls and compares what a new
// process finds with the states that were published.
func TestCrash(t *testing.T) {
	rng := seeded(t)
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	for range rounds {
		seed := rng.Uint64()
		crashOnce(t, rand.New(rand.NewPCG(seed, 2)))
		if t.Failed() {
			return
		}
	}
}

func crashOnce(t *testing.T, rng *rand.Rand) {
	mem := disk.NewMem()
	seed, keep := rng.Int64(), []float64{0, 0.1, 0.5, 0.9, 1}[rng.IntN(5)]
	c := &cutter{files: make(map[index.Ino]*history), crash: func() *disk.Mem { return mem.Crash(seed, keep) }}
	r, err := newRepo(t, disk.NewFault(mem, c.inject), nil, small(), 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.after = 1 + rng.IntN(3000)
	c.mu.Unlock()
	work := newWorkload(r, rng, c)
	for step := 0; step < 400 && !c.done(); step++ {
		work.step()
	}
	work.close()
	if !c.done() {
		c.mu.Lock()
		c.after = 1
		c.mu.Unlock()
		_ = c.inject(disk.Op{})
	}
	checkCrashed(t, c, rng)
}

func (c *cutter) done() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.found != nil
}

// workload changes three files and publishes them.
type workload struct {
	*repo
	rng   *rand.Rand
	c     *cutter
	ctx   context.Context
	files map[index.Ino]*content.File
	want  map[index.Ino][]byte
}

func newWorkload(r *repo, rng *rand.Rand, c *cutter) *workload {
	w := &workload{repo: r, rng: rng, c: c, ctx: context.Background(), files: make(map[index.Ino]*content.File), want: make(map[index.Ino][]byte)}
	for ino := index.Ino(1); ino <= 3; ino++ {
		w.files[ino] = r.files.New(ino)
		c.files[ino] = &history{states: [][]byte{nil}}
	}
	return w
}

func (w *workload) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *workload) step() {
	ino := index.Ino(1 + w.rng.IntN(3))
	f := w.files[ino]
	switch k := w.rng.IntN(20); {
	case k < 9:
		p := make([]byte, 1+w.rng.IntN(2*chunkSize))
		for i := range p {
			p[i] = byte(w.rng.Uint32())
		}
		off := w.rng.Int64N(5 * chunkSize)
		if k < 5 {
			off = int64(len(w.want[ino]))
		}
		w.must(f.WriteAt(w.ctx, p, off))
		w.want[ino] = grown(w.want[ino], off+int64(len(p)))
		copy(w.want[ino][off:], p)
	case k < 10:
		n := w.rng.Int64N(6 * chunkSize)
		w.must(f.Truncate(w.ctx, n))
		w.want[ino] = grown(w.want[ino], n)[:n:n]
	case k < 13:
		w.publish(ino, f.Cut())
	case k < 15:
		w.sync()
	case k < 18:
		c := f.Cut()
		root, err := w.seal(w.ctx, c)
		w.must(err)
		c.Rebase(root)
		w.publish(ino, f.Cut())
	default:
		w.must(w.repo.files.FreeSegments(w.ctx, w.db))
	}
}

// publish commits a cut of the current content.
func (w *workload) publish(ino index.Ino, c *content.Cut) {
	w.must(w.repo.files.Stage(w.ctx, []int{0, 32 << 10}[w.rng.IntN(2)], c))
	w.c.mu.Lock()
	h := w.c.files[ino]
	h.states = append(h.states, slices.Clone(w.want[ino]))
	w.c.mu.Unlock()
	w.must(w.commit(ino, c))
}

func (w *workload) sync() {
	w.must(w.db.Sync(w.ctx))
	w.c.mu.Lock()
	for _, h := range w.c.files {
		h.synced = len(h.states) - 1
	}
	w.c.mu.Unlock()
}

func (w *workload) close() {
	for _, f := range w.files {
		f.Release()
	}
	w.repo.close()
}

// checkCrashed opens what the crash left.
func checkCrashed(t *testing.T, c *cutter, rng *rand.Rand) {
	r, err := newRepo(t, c.found, nil, small(), 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	ctx := context.Background()
	check := func(ino index.Ino, h history) []byte {
		f := r.load(ino)
		defer f.Release()
		got := r.all(f)
		for _, s := range h.states[h.synced:] {
			if bytes.Equal(got, s) {
				return got
			}
		}
		t.Errorf("inode %d: %d bytes that are none of %d states", ino, len(got), len(h.states)-h.synced)
		return got
	}
	for ino, h := range c.then {
		check(ino, h)
	}
	// Life goes on, and segments are not mixed up.
	for ino, h := range c.then {
		check(ino, h)
		f := r.load(ino)
		p := []byte("after the crash")
		if err := f.WriteAt(ctx, p, rng.Int64N(chunkSize)); err != nil {
			t.Fatal(err)
		}
		got := r.all(f)
		if err := r.publish(ctx, ino, f, 0); err != nil {
			t.Fatal(err)
		}
		f.Release()
		if err := r.files.FreeSegments(ctx, r.db); err != nil {
			t.Fatal(err)
		}
		check(ino, history{states: [][]byte{got}})
	}
}

// TestFaults fails every call into staging in turn: whoever asked gets an
// error, what can be read is right, and what was reported durable is there.
func TestFaults(t *testing.T) {
	every := int64(1)
	if testing.Short() {
		every = 5
	}
	for _, cause := range []error{syscall.EIO, &disk.ShortWrite{N: 100, Err: syscall.ENOSPC}} {
		for n := int64(1); ; n += every {
			if !faultOnce(t, n, cause) || t.Failed() {
				break
			}
		}
	}
}

// faultOnce fails the n-th call and tells whether there was one.
func faultOnce(t *testing.T, n int64, cause error) bool {
	var kind disk.OpKind
	var mu sync.Mutex
	armed := false
	count := int64(0)
	inject := func(op disk.Op) error {
		mu.Lock()
		defer mu.Unlock()
		var short *disk.ShortWrite
		if !armed || (errors.As(cause, &short) && op.Kind != disk.OpWrite) {
			return nil
		}
		if count++; count == n {
			kind = op.Kind
			return cause
		}
		return nil
	}
	mem := disk.NewMem()
	blocks := store.NewMem()
	r, err := newRepo(t, mem, blocks, small(), 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.files.Close(); err != nil {
		t.Fatal(err)
	}
	r.disk = disk.NewFault(mem, func(op disk.Op) error { return inject(op) })
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	defer r.close()
	mu.Lock()
	armed = true
	mu.Unlock()
	faultWork(t, r, func() disk.OpKind {
		mu.Lock()
		defer mu.Unlock()
		return kind
	})
	return kind != ""
}

// faultWork writes and publishes; failed tells what kind of call has failed by now.
func faultWork(t *testing.T, r *repo, failed func() disk.OpKind) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(7, 7))
	f := r.files.New(1)
	var want []byte
	lost := false
	for step := range 30 {
		p := make([]byte, 1+rng.IntN(chunkSize))
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		off := rng.Int64N(8 * chunkSize)
		if err := f.WriteAt(ctx, p, off); err != nil {
			if failed() == "" {
				t.Fatalf("write failed without cause: %v", err)
			}
			continue // it waits for memory before it writes anything
		}
		want = grown(want, off+int64(len(p)))
		copy(want[off:], p)
		got := make([]byte, len(want))
		if _, err := f.ReadAt(ctx, got, 0); err == nil && !bytes.Equal(got, want) {
			t.Fatalf("after a failed %s: reads wrong bytes", failed())
		}
		if step%5 != 4 {
			continue
		}
		err := r.publish(ctx, 1, f, 0)
		if err == nil && lost {
			t.Fatalf("after a failed %s: published lost bytes", failed())
		}
		if err != nil && failed() == "" {
			t.Fatalf("publishing failed without cause: %v", err)
		}
		lost = lost || errors.Is(err, content.ErrLost)
		if err != nil && (failed() == disk.OpSync || failed() == disk.OpSyncDir) && !lost {
			t.Fatalf("a failed %s is not remembered: %v", failed(), err)
		}
		if err == nil {
			g := r.load(1)
			_, err := g.ReadAt(ctx, got, 0)
			if before := failed(); err != nil && before == "" || err == nil && !bytes.Equal(got, want) {
				t.Fatalf("after a failed %s: published wrong bytes: %v", before, err)
			}
			g.Release()
		}
	}
	if !lost && failed() != "" {
		// Nothing was lost: the next attempt succeeds.
		if err := r.publish(ctx, 1, f, 0); err != nil {
			t.Fatalf("after a failed %s: %v", failed(), err)
		}
	}
	f.Release()
}
