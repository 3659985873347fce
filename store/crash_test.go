package store_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cafs/shard"
	"cafs/store"
	"cafs/store/disk"
	"cafs/store/storetest"

	"github.com/ipfs/go-cid"
)

var (
	seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0 takes the clock")
	runsFlag = flag.Int("runs", 25, "number of random runs")
)

// seed prints where the random choices of a test come from.
func seed(t *testing.T) uint64 {
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", s)
	return s
}

// workload puts blocks of all kinds from several goroutines, with Sync and
// Flush between, and knows what was acknowledged as durable.
type workload struct {
	d    *store.Dir
	rng  *rand.Rand
	stop atomic.Bool
	// logged is the most blocks that were seen in logs.
	logged atomic.Int64

	mu      sync.Mutex
	durable map[cid.Cid]bool
}

var workSizes = []int{0, 1, 100, 5000, 20 << 10, 64 << 10, 100 << 10, 256 << 10}

const workBlocks = 300

type testBlock struct {
	c cid.Cid
	b []byte
}

var blockTable = sync.OnceValue(func() (table []testBlock) {
	table = make([]testBlock, workBlocks)
	for i := range table {
		table[i].c, table[i].b = storetest.Block(uint64(i), workSizes[i%len(workSizes)])
	}
	return table
})

// workBlock is a block out of a few hundred, so that many puts repeat one.
func workBlock(i uint64) (cid.Cid, []byte) {
	w := &blockTable()[i]
	return w.c, w.b
}

func (w *workload) acked() []cid.Cid {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []cid.Cid
	for c := range w.durable {
		list = append(list, c)
	}
	return list
}

// run returns the first error. What a goroutine put before its own successful
// barrier is durable.
func (w *workload) run(ops int) error {
	errs := make([]error, 3)
	var wg sync.WaitGroup
	for g := range errs {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), uint64(g)))
		wg.Go(func() { errs[g] = w.one(rng, ops) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (w *workload) one(rng *rand.Rand, ops int) error {
	ctx := context.Background()
	var since []cid.Cid
	for range ops {
		if w.stop.Load() {
			return nil
		}
		var err error
		var safe []cid.Cid
		switch rng.IntN(30) {
		case 0:
			err, safe, since = w.d.Sync(ctx), since, nil
		case 1, 2:
			safe = since[len(since)/2:]
			err = w.d.Flush(ctx, safe)
		case 3, 4, 5, 6: // small ones: what goes to a log
			for range 3 + rng.IntN(5) {
				c, b := workBlock(rng.Uint64N(workBlocks/8)*8 + rng.Uint64N(5))
				if err = w.d.Put(ctx, c, b); err != nil {
					return err
				}
				safe = append(safe, c)
			}
			err = w.d.Flush(ctx, safe)
			w.logged.Store(max(w.logged.Load(), w.d.Logged()))
		default:
			c, b := workBlock(rng.Uint64N(workBlocks))
			if err = w.d.Put(ctx, c, b); err == nil {
				since = append(since, c)
				var got []byte
				if got, err = w.d.Get(ctx, c); err == nil && !bytes.Equal(got, b) {
					err = errors.New("read other bytes than were put")
				}
			}
		}
		if err != nil {
			return err
		}
		w.mu.Lock()
		for _, c := range safe {
			w.durable[c] = true
		}
		w.mu.Unlock()
	}
	return nil
}

// survived opens the store in fs and checks it: all of must are there, what is
// listed is whole, and it works on.
func survived(t *testing.T, fs disk.FS, must []cid.Cid) {
	t.Helper()
	ctx := context.Background()
	d, err := store.Open(fs, store.Options{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range must {
		if _, err := d.Get(ctx, c); err != nil {
			t.Errorf("acknowledged as durable: %v", err)
		}
	}
	storetest.Check(t, d)
	for i := range uint64(50) {
		c, b := workBlock(i)
		if err := d.Put(ctx, c, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

var shards = []shard.Func{shard.Default, shard.Prefix(5), shard.R122}

// TestPowerCut cuts the power before the n-th call of a random run, n random.
func TestPowerCut(t *testing.T) {
	s := seed(t)
	logs := int64(0)
	for run := range *runsFlag {
		rng := rand.New(rand.NewPCG(s, uint64(run)))
		mem := disk.NewMem()
		w := &workload{rng: rng, durable: map[cid.Cid]bool{}}
		var cut *disk.Mem
		var must []cid.Cid
		var once sync.Once
		at := int64(rng.IntN(2500))
		keep := []float64{0, 0.1, 0.5, 0.9, 1}[rng.IntN(5)]
		fs := disk.NewFault(mem, func(op disk.Op) error {
			if op.N >= at {
				once.Do(func() {
					must = w.acked() // before the cut: nothing later counts
					cut = mem.Crash(int64(s)+int64(run), keep)
				})
			}
			return nil
		})
		d, err := store.Open(fs, store.Options{CreateIfMissing: true, Shard: shards[run%len(shards)]})
		if err != nil {
			t.Fatal(err)
		}
		d.Shrink()
		w.d = d
		if err := w.run(120); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if cut == nil {
			must, cut = w.acked(), mem.Crash(int64(s), keep)
		}
		survived(t, cut, must)
		if t.Failed() {
			t.Fatalf("run %d, call %d, keep %v", run, at, keep)
		}
		logs += w.logged.Load()
	}
	if logs == 0 {
		t.Error("no run had a block in a log")
	}
}

// TestProcessKilled: names that a killed process left may not be durable. The
// next one must not take them for that.
func TestProcessKilled(t *testing.T) {
	ctx := context.Background()
	mem := disk.NewMem()
	var stuck atomic.Bool
	release := make(chan struct{})
	fs := disk.NewFault(mem, func(op disk.Op) error {
		if stuck.Load() && (op.Kind == disk.OpSyncDir || op.Kind == disk.OpSyncFS) {
			<-release // the process ends here, after the renames
			return syscall.EIO
		}
		return nil
	})
	first, err := store.Open(fs, store.Options{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	c, b := workBlock(3)
	if err := first.Put(ctx, c, b); err != nil {
		t.Fatal(err)
	}
	stuck.Store(true)
	soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if err := first.Sync(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("sync: %v", err)
	}
	second, err := store.Open(mem, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Put(ctx, c, b); err != nil {
		t.Fatal(err)
	}
	if second.Stats().Existing != 1 {
		t.Fatal("the test did not reach the case: the block had no name yet")
	}
	if err := second.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	survived(t, mem.Crash(1, 0), []cid.Cid{c})
	close(release)
}

// TestFailedCalls fails the n-th call that changes something, for every n that
// a run has: what was acknowledged is durable all the same, and a store whose
// write-out failed never succeeds again.
func TestFailedCalls(t *testing.T) {
	s := seed(t)
	kinds := []disk.OpKind{disk.OpCreate, disk.OpMkdir, disk.OpRemove, disk.OpRename, disk.OpLink, disk.OpSyncDir, disk.OpSyncFS, disk.OpWrite, disk.OpSync, disk.OpUsage}
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC, &disk.ShortWrite{N: 1, Err: syscall.ENOSPC}} {
		step := int64(1)
		for n := int64(1); ; n += step {
			if failedCall(t, s, n, cause, kinds) {
				break
			}
			if n > 60 {
				step = 1 + n/8
			}
		}
	}
}

// TestFailedParents: a barrier whose folders another barrier failed to flush has
// failed, too.
func TestFailedParents(t *testing.T) {
	fs := disk.NewFault(disk.NewMem(), disk.FailAt(1, syscall.EIO, disk.OpSyncDir))
	first, second := store.SyncFolders(fs, "AB")
	if !errors.Is(first, syscall.EIO) || !errors.Is(second, syscall.EIO) {
		t.Fatalf("%v, and then %v", first, second)
	}
}

// failedCall tells whether the run was over before the n-th call.
func failedCall(t *testing.T, s uint64, n int64, cause error, kinds []disk.OpKind) (over bool) {
	ctx := context.Background()
	mem := disk.NewMem()
	w := &workload{rng: rand.New(rand.NewPCG(s, 1)), durable: map[cid.Cid]bool{}}
	var hit atomic.Int64
	var kind atomic.Value
	fail := disk.FailAt(n, cause, kinds...)
	fs := disk.NewFault(mem, func(op disk.Op) error {
		err := fail(op)
		if err != nil {
			hit.Add(1)
			kind.Store(op.Kind)
		}
		return err
	})
	d, err := store.Open(fs, store.Options{CreateIfMissing: true})
	if err != nil {
		survived(t, mem.Crash(int64(n), 0.5), nil)
		return hit.Load() == 0
	}
	d.Shrink()
	w.d = d
	runErr := w.run(60)
	if hit.Load() > 0 {
		syncErr := d.Sync(ctx)
		if errors.Is(syncErr, syscall.ENOSPC) && !errors.Is(syncErr, store.ErrPoisoned) {
			syncErr = d.Sync(ctx) // the first one joined the batch that failed
		}
		lost := kind.Load() == disk.OpSync || kind.Load() == disk.OpSyncFS || kind.Load() == disk.OpSyncDir
		if lost && !errors.Is(syncErr, store.ErrPoisoned) {
			t.Fatalf("call %d, a failed %v (%v), and then sync says %v", n, kind.Load(), cause, syncErr)
		}
		if !lost && errors.Is(cause, syscall.ENOSPC) && syncErr != nil {
			t.Fatalf("call %d, a passing ENOSPC of %v, and then sync says %v", n, kind.Load(), syncErr)
		}
		c, b := storetest.Block(1<<30, 10)
		if err := d.Put(ctx, c, b); errors.Is(syncErr, store.ErrPoisoned) != errors.Is(err, store.ErrPoisoned) {
			t.Fatalf("call %d: sync says %v, put says %v", n, syncErr, err)
		}
	} else if runErr != nil {
		t.Fatal(runErr)
	}
	defer func() {
		if t.Failed() {
			t.Logf("call %d, a failed %v: %v", n, kind.Load(), cause)
		}
	}()
	must := w.acked()
	closeErr := d.Close()
	if hit.Load() == 0 && closeErr != nil {
		t.Fatal(closeErr)
	}
	survived(t, mem.Crash(int64(n), float64(n%3)/2), must)
	return hit.Load() == 0
}
