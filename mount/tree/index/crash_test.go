package index_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cafs/mount/tree/index"
	"cafs/store/disk"
)

var (
	seeds     = flag.Uint64("seeds", 200, "number of random crashes to try")
	firstSeed = flag.Uint64("seed", 0, "first of them")
)

var quiet = slog.New(slog.DiscardHandler)

// history is the states an index went through, one for each batch.
type history struct {
	states  []model // states[n]: after n batches
	synced  atomic.Int64
	started atomic.Int64
}

// run makes random batches, syncs and table writes until an error.
func (h *history) run(rng *rand.Rand, db *index.DB, batches int) error {
	h.states = []model{{}}
	b := db.NewBatch()
	defer b.Close()
	for range batches {
		next := maps.Clone(h.states[len(h.states)-1])
		next.change(rng, b)
		h.states = append(h.states, next)
		h.started.Add(1)
		if err := b.Commit(); err != nil {
			return err
		}
		switch rng.IntN(20) {
		case 0, 1, 2:
			n := h.started.Load()
			if err := db.Sync(context.Background()); err != nil {
				return err
			}
			h.synced.Store(n)
		case 3:
			if err := db.Flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// prefix checks that got is one of the states from first to last.
func (h *history) prefix(t *testing.T, got model, first, last int64) {
	t.Helper()
	for n := first; n <= last; n++ {
		if maps.Equal(got, h.states[n]) {
			return
		}
	}
	t.Errorf("the index is in none of the states %d to %d", first, last)
	diff(t, got, h.states[first])
}

// TestCrash cuts the power before a random call of the file layer, keeping a
// random part of what was not synced, opens what is left, and cuts the power
// again. What is found must be the state after some number of whole batches,
// no fewer than the last Sync promised, and stay that.
func TestCrash(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+*seeds && !t.Failed(); seed++ {
		rng := rand.New(rand.NewPCG(seed, 2))
		keep := []float64{0, 0.3, 0.8, 1}[rng.IntN(4)]
		mem := disk.NewMem()
		var (
			h           history
			at          = 1 + rng.Int64N(400)
			once        sync.Once
			left        *disk.Mem
			first, last int64
		)
		cut := func() {
			first = h.synced.Load()
			left = mem.Crash(int64(seed), keep)
			last = h.started.Load()
		}
		db, err := index.Open(disk.NewFault(mem, func(op disk.Op) error {
			if op.N == at {
				once.Do(cut)
			}
			return nil
		}), index.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.run(rng, db, 150); err != nil {
			t.Fatal(err)
		}
		once.Do(cut) // not so many calls
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		found := reopen(t, left)
		h.prefix(t, found, first, last)
		diff(t, reopen(t, left.Crash(int64(seed), keep)), found)
		if t.Failed() {
			t.Logf("-seed %d: power cut before call %d, keeping %v", seed, at, keep)
		}
	}
}

// reopen opens an index, reads everything and lets it lie.
func reopen(t *testing.T, fs disk.FS) model {
	t.Helper()
	db := open(t, fs)
	m := dump(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return m
}

var changes = []disk.OpKind{
	disk.OpCreate, disk.OpRemove, disk.OpRename, disk.OpSyncDir, disk.OpWrite, disk.OpSync, disk.OpWriteOut, disk.OpAllocate,
}

// TestFault fails the n-th call of the file layer, for every n, alone or with
// all that follow. Either nothing comes of it, or the index cannot be opened,
// or a batch cannot be made because reading failed, or it becomes read-only,
// still answers, and closes; and what is on disk after a power cut is a state no
// older than the last successful Sync.
func TestFault(t *testing.T) {
	step := int64(1)
	if testing.Short() {
		step = 3
	}
	short := &disk.ShortWrite{N: 100, Err: syscall.EIO}
	for name, inject := range map[string]func(n int64) func(disk.Op) error{
		"once":        func(n int64) func(disk.Op) error { return disk.FailAt(n, syscall.EIO) },
		"from then":   func(n int64) func(disk.Op) error { return disk.FailFrom(n, syscall.EIO, changes...) },
		"short write": func(n int64) func(disk.Op) error { return disk.FailAt(n, short, disk.OpWrite) },
		"full once":   func(n int64) func(disk.Op) error { return disk.FailAt(n, syscall.ENOSPC, changes...) },
	} {
		t.Run(name, func(t *testing.T) {
			n, failures := int64(1), 0
			for ; ; n += step {
				happened, failed := faultAt(t, inject(n), float64(n%2)/2)
				if failed {
					failures++
				}
				if !happened {
					break
				}
				if t.Failed() {
					t.Fatalf("call %d", n)
				}
			}
			t.Logf("%d calls, in steps of %d: %d fatal to writing", n-1, step, failures)
			if failures == 0 {
				t.Error("no fault had any effect")
			}
		})
	}
}

func faultAt(t *testing.T, inject func(disk.Op) error, keep float64) (happened, readOnly bool) {
	var hit, hitRead atomic.Bool
	mem := disk.NewMem()
	h := &history{states: []model{{}}}
	watchdog := time.AfterFunc(time.Minute, func() {
		debug.SetTraceback("all")
		panic("the index hangs")
	})
	defer watchdog.Stop()
	db, err := index.Open(disk.NewFault(mem, func(op disk.Op) error {
		err := inject(op)
		if err != nil {
			hit.Store(true)
			hitRead.Store(!op.Kind.Changes())
		}
		return err
	}), index.Options{Logger: quiet, RoomWait: 100 * time.Millisecond})
	if err == nil {
		err = h.run(rand.New(rand.NewPCG(1, 3)), db, 80)
		switch {
		case err == nil:
		case hitRead.Load() && db.Err() == nil: // a batch that reads could not
		case !errors.Is(err, index.ErrReadOnly) || !errors.Is(db.Err(), index.ErrReadOnly):
			t.Errorf("not read-only but: %v; %v", err, db.Err())
		default:
			readOnly = true
			<-db.Failed()
			h.prefix(t, dump(t, db), h.started.Load()-1, h.started.Load())
			if _, err := db.ReserveInos(1); !errors.Is(err, index.ErrReadOnly) {
				t.Errorf("reserve after a failure: %v", err)
			}
		}
		if err := db.Close(); (err != nil) != (db.Err() != nil) || err != nil && !errors.Is(err, index.ErrReadOnly) {
			t.Errorf("close: %v; failure: %v", err, db.Err())
		}
		readOnly = readOnly || db.Err() != nil
	}
	h.prefix(t, reopen(t, mem.Crash(1, keep)), h.synced.Load(), h.started.Load())
	return hit.Load(), readOnly
}

// TestCrashInOpen cuts the power before every call of opening and closing an
// index, a new one and then one with something in it: it opens again.
func TestCrashInOpen(t *testing.T) {
	begin := disk.NewMem()
	for _, what := range []string{"new", "used", "used again"} {
		var mem *disk.Mem
		var images []*disk.Mem
		var calls []disk.Op
		var mu sync.Mutex // the engine removes files in the background
		mem = begin.Crash(0, 1)
		db, err := index.Open(disk.NewFault(mem, func(op disk.Op) error {
			if op.Kind.Changes() {
				mu.Lock()
				defer mu.Unlock()
				for seed := range int64(6) {
					images, calls = append(images, mem.Crash(seed, 0.5)), append(calls, op)
				}
			}
			return nil
		}), index.Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(commit(db, func(b *index.Batch) { b.SetRef(what, nil) }), db.Flush(), db.Close()); err != nil {
			t.Fatal(err)
		}
		for i, image := range images {
			db, err := index.Open(image, index.Options{Logger: quiet})
			if err != nil {
				t.Fatalf("%s: power cut before call %d, %s %s: %v", what, calls[i].N, calls[i].Kind, calls[i].Name, err)
			}
			if _, err := db.Ref("new"); err != nil && what != "new" {
				t.Errorf("%s: power cut before call %d, %s %s: %v", what, calls[i].N, calls[i].Kind, calls[i].Name, err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}
		begin = mem
	}
}
