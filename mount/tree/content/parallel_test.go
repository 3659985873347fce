package content_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
	"cafs/store/disk"

	"github.com/ipfs/go-cid"
)

// gated is a store whose puts wait for the gate.
type gated struct {
	*store.Mem
	entered chan struct{} // a put has begun
	gate    chan struct{} // closed: puts go on
}

func (g *gated) Put(ctx context.Context, c cid.Cid, block []byte) error {
	block = bytes.Clone(block) // as of now, as a hash is
	select {
	case g.entered <- struct{}{}:
	default:
	}
	select {
	case <-g.gate:
	case <-ctx.Done():
		return ctx.Err()
	}
	return g.Mem.Put(ctx, c, block)
}

// TestWhileHashed changes a chunk while a worker makes a block of it: what the
// worker brings back must not undo anything.
func TestWhileHashed(t *testing.T) {
	ctx := context.Background()
	fill := func(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }
	fills := map[string]func(*content.File) error{
		"in one write": func(f *content.File) error { return f.WriteAt(ctx, fill('a', chunkSize), 0) },
		"across a cut": func(f *content.File) error {
			err := f.WriteAt(ctx, fill('a', chunkSize/2), 0)
			f.Cut().Abort()
			return errors.Join(err, f.WriteAt(ctx, fill('a', chunkSize/2), chunkSize/2))
		},
	}
	changes := map[string]func(*content.File) error{
		"nothing":       func(*content.File) error { return nil },
		"write":         func(f *content.File) error { return f.WriteAt(ctx, fill('b', 100), 50) },
		"write all":     func(f *content.File) error { return f.WriteAt(ctx, fill('b', chunkSize), 0) },
		"punch":         func(f *content.File) error { return f.Punch(ctx, 100, 1000) },
		"punch all":     func(f *content.File) error { return f.Punch(ctx, 0, chunkSize) },
		"truncate":      func(f *content.File) error { return f.Truncate(ctx, 77) },
		"empty, refill": func(f *content.File) error { return errors.Join(f.Truncate(ctx, 0), f.WriteAt(ctx, fill('c', 9), 5)) },
		"shrink, grow":  func(f *content.File) error { return errors.Join(f.Truncate(ctx, 9), f.Truncate(ctx, 2*chunkSize)) },
	}
	for how, first := range fills {
		for what, change := range changes {
			for _, cut := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, cut %v", how, what, cut), func(t *testing.T) {
					g := &gated{Mem: store.NewMem(), entered: make(chan struct{}, 1), gate: make(chan struct{})}
					r, err := newRepo(t, disk.NewMem(), g, small(), 1<<20)
					if err != nil {
						t.Fatal(err)
					}
					defer r.close()
					f := r.files.New(1)
					if err := first(f); err != nil {
						t.Fatal(err)
					}
					want := r.all(f)
					<-g.entered
					var before *content.Cut
					if cut {
						before = f.Cut()
					}
					if err := change(f); err != nil {
						t.Fatal(err)
					}
					after := r.all(f)
					if (what == "nothing") != bytes.Equal(want, after) {
						t.Error("the change does not show while the chunk is hashed")
					}
					close(g.gate)
					// Publishing waits for the worker or for its turn of the file.
					if err := r.publish(ctx, 1, f, 0); err != nil {
						t.Fatal(err)
					}
					r.files.Drain()
					if got := r.all(f); !bytes.Equal(got, after) {
						t.Errorf("differs at %d of %d after the chunk was hashed", differ(got, after), len(after))
					}
					if cut {
						got := make([]byte, len(want))
						if _, err := before.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, want) {
							t.Errorf("the cut changed: %v", err)
						}
						before.Abort()
					}
					if bad := f.Check(); bad != "" {
						t.Error(bad)
					}
					f.Release()
				})
			}
		}
	}
}

// TestParallel has writers, readers, publishers and sealers on the same files,
// under a limit that is always reached. Each writer owns a stripe of each file and
// checks it.
func TestParallel(t *testing.T) {
	rng := seeded(t)
	r, err := newRepo(t, disk.NewMem(), store.NewMem(), small(), 256<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	const writers, files = 8, 3
	steps := 400
	if testing.Short() {
		steps = 100
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var all [files]*content.File
	var publish [files]sync.Mutex
	for i := range all {
		all[i] = r.files.New(index.Ino(i + 1))
	}
	var wg, background sync.WaitGroup
	for w := range writers {
		seed := rng.Uint64()
		wg.Go(func() { stripe(ctx, t, all[w%files], int64(w), steps, rand.New(rand.NewPCG(seed, 3))) })
	}
	stop := make(chan struct{})
	for i := range all {
		background.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				publishOrSeal(ctx, t, r, all[i], index.Ino(i+1), &publish[i], k)
			}
		})
	}
	wg.Wait()
	close(stop)
	background.Wait()
	for i, f := range all {
		if err := r.publish(ctx, index.Ino(i+1), f, 0); err != nil {
			t.Fatal(err)
		}
		g := r.load(index.Ino(i + 1))
		if !bytes.Equal(r.all(f), r.all(g)) {
			t.Errorf("file %d: published content differs", i)
		}
		f.Release()
		g.Release()
	}
}

// stripe writes and reads back the pages of one writer.
func stripe(ctx context.Context, t *testing.T, f *content.File, w int64, steps int, rng *rand.Rand) {
	const pages, unit = 48, 1000
	want := make(map[int64]byte)
	buf := make([]byte, unit)
	for range steps {
		off := (rng.Int64N(pages)*8 + w) * unit
		if b, ok := want[off]; ok && rng.IntN(3) == 0 {
			if _, err := f.ReadAt(ctx, buf, off); err != nil || buf[0] != b || buf[unit-1] != b {
				t.Errorf("at %d: %d, want %d: %v", off, buf[0], b, err)
				return
			}
			continue
		}
		b := byte(rng.Uint32())
		if err := f.WriteAt(ctx, bytes.Repeat([]byte{b}, unit), off); err != nil {
			t.Errorf("write: %v", err)
			return
		}
		want[off] = b
	}
}

func publishOrSeal(ctx context.Context, t *testing.T, r *repo, f *content.File, ino index.Ino, mu *sync.Mutex, k int) {
	mu.Lock()
	defer mu.Unlock()
	if k%3 == 2 {
		c := f.Cut()
		root, err := r.seal(ctx, c)
		if err != nil {
			t.Errorf("seal: %v", err)
			c.Abort()
			return
		}
		if !c.Rebase(root) {
			t.Error("rebase was refused")
		}
	}
	if err := r.publish(ctx, ino, f, 2000); err != nil {
		t.Errorf("publish: %v", err)
	}
	f.Blocks()
	if err := r.files.FreeSegments(ctx, r.db); k%5 == 4 && err != nil {
		t.Errorf("free: %v", err)
	}
}

// TestMemoryLimit writes many times the limit in ways that make blocks, and in
// ways that do not, one file or many, and looks at the memory in use.
func TestMemoryLimit(t *testing.T) {
	const limit = 1 << 20
	ctx := context.Background()
	page := make([]byte, 4096)
	patterns := map[string]func(i int64) (file, off int64){
		"one file in order":    func(i int64) (int64, int64) { return 0, i * 4096 },
		"one file backwards":   func(i int64) (int64, int64) { return 0, (4096 - i) * 4096 },
		"many files in order":  func(i int64) (int64, int64) { return i % 64, i / 64 * 4096 },
		"many files scattered": func(i int64) (int64, int64) { return i % 64, i / 64 * 50000 },
		"bytes far apart":      func(i int64) (int64, int64) { return 0, i * 100000 },
	}
	for name, at := range patterns {
		t.Run(name, func(t *testing.T) {
			r, err := newRepo(t, disk.NewMem(), store.NewMem(), small(), limit)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			files := make(map[int64]*content.File)
			most := int64(0)
			for i := range int64(4096) {
				ino, off := at(i)
				if files[ino] == nil {
					files[ino] = r.files.New(index.Ino(ino + 1))
				}
				page[0], page[1] = byte(i), byte(i>>8)
				if err := files[ino].WriteAt(ctx, page, off); err != nil {
					t.Fatal(err)
				}
				most = max(most, r.files.Stats().Dirty)
			}
			// A buffer may grow while a writer passes; one writer at a time here.
			if most > limit+2*chunkSize {
				t.Errorf("%d bytes in use, limit %d", most, limit)
			}
			for i := range int64(4096) {
				ino, off := at(i)
				if _, err := files[ino].ReadAt(ctx, page[:2], off); err != nil || page[0] != byte(i) || page[1] != byte(i>>8) {
					t.Fatalf("write %d reads %v: %v", i, page[:2], err)
				}
			}
			for _, f := range files {
				f.Release()
			}
		})
	}
}

// TestWaitEnds checks that a writer that waits for memory can be interrupted,
// and hears of the reason when none can be freed.
func TestWaitEnds(t *testing.T) {
	mem := disk.NewMem()
	var mu sync.Mutex
	var fail error
	stuck := make(chan struct{})
	r, err := newRepo(t, mem, store.NewMem(), small(), 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.files.Close(); err != nil {
		t.Fatal(err)
	}
	r.disk = disk.NewFault(mem, func(op disk.Op) error {
		if op.Kind != disk.OpCreate && op.Kind != disk.OpWrite {
			return nil
		}
		<-stuck
		mu.Lock()
		defer mu.Unlock()
		return fail
	})
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	defer r.close()
	f := r.files.New(1)
	page := make([]byte, 4096)
	fillUp := func(ctx context.Context) (err error) {
		for i := int64(0); err == nil; i++ {
			err = f.WriteAt(ctx, page, (1000-2*i)*4096)
		}
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for r.files.Waiting() == 0 {
			time.Sleep(time.Millisecond) // polls for a state, orders nothing
		}
		cancel()
	}()
	if err := fillUp(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted writer: %v", err)
	}
	mu.Lock()
	fail = syscall.ENOSPC
	mu.Unlock()
	close(stuck)
	if err := fillUp(context.Background()); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("writer on a full disk: %v", err)
	}
	mu.Lock()
	fail = nil
	mu.Unlock()
	if err := f.WriteAt(context.Background(), page, 0); err != nil {
		t.Fatalf("with room again: %v", err)
	}
	f.Release()
}
