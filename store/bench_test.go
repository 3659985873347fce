package store_test

import (
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cafs/store"
	"cafs/store/disk"
	"cafs/store/storetest"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// BenchmarkStore measures this store alone; store/interop/flatfs compares it with
// others. Run parts of it, as in -bench 'Store/keys=65536/size=1000/op=put$/g=1$'.
func BenchmarkStore(b *testing.B) {
	storetest.Bench(b, []storetest.Bencher{storetest.Ours("cafs", store.Options{})})
}

// sums keeps page checksums as the index does.
type sums struct{ m sync.Map }

func (s *sums) LoadPages(h mh.Multihash) ([]uint32, bool, error) {
	v, ok := s.m.Load(string(h))
	if !ok {
		return nil, false, nil
	}
	return v.([]uint32), true, nil
}

func (s *sums) SavePages(h mh.Multihash, pages []uint32) error {
	s.m.Store(string(h), pages)
	return nil
}

// BenchmarkCold reads 4 KiB out of blocks of 1 MiB that are in no cache and whose
// page checksums are kept, and next to it the same bytes by open, pread and close.
func BenchmarkCold(b *testing.B) {
	dir := b.TempDir()
	pages := &sums{}
	root, err := disk.OS(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	open := func() *store.Dir {
		d, err := store.Open(root, store.Options{CreateIfMissing: true, Pages: pages})
		if err != nil {
			b.Fatal(err)
		}
		return d
	}
	d := open()
	blocks := make([]cid.Cid, 300) // more than handles are kept
	for i := range blocks {
		c, block := storetest.Block(uint64(i), 1<<20)
		if err := d.Put(b.Context(), c, block); err != nil {
			b.Fatal(err)
		}
		blocks[i] = c
	}
	if err := d.Close(); err != nil {
		b.Fatal(err)
	}
	d = open()
	defer d.Close()
	p := make([]byte, 4096)
	ways := map[string]func(c cid.Cid, off int64) error{
		"get4k": func(c cid.Cid, off int64) error {
			_, err := d.GetRange(b.Context(), c, p, off)
			return err
		},
		"pread": func(c cid.Cid, off int64) error {
			f, err := os.Open(filepath.Join(dir, d.Path(c)))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.ReadAt(p, off)
			return err
		},
	}
	for _, name := range []string{"get4k", "pread"} {
		b.Run("way="+name, func(b *testing.B) {
			var took time.Duration
			for i := range b.N {
				c := blocks[i%len(blocks)]
				evict(b, filepath.Join(dir, d.Path(c)))
				begin := time.Now()
				if err := ways[name](c, int64(i*7919%256)*4096); err != nil {
					b.Fatal(err)
				}
				took += time.Since(begin)
			}
			b.ReportMetric(float64(took)/float64(b.N), "ns/op")
		})
	}
}

// evict drops a file from the page cache.
func evict(b *testing.B, path string) {
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkStream writes 512 MiB in blocks of 1 MiB from two goroutines, then
// syncs: what a large file costs.
func BenchmarkStream(b *testing.B) {
	for name, opts := range map[string]store.Options{"buffered": {Buffered: true}, "direct": {}} {
		b.Run(name, func(b *testing.B) {
			const blocks = 512
			_, v := storetest.Block(1, 1<<20)
			b.SetBytes(blocks << 20)
			for i := range b.N {
				b.StopTimer()
				t, err := storetest.Ours(name, opts).Open(b.TempDir())
				if err != nil {
					b.Fatal(err)
				}
				names := storetest.Names(blocks, uint64(i)+1)
				b.StartTimer()
				var wg sync.WaitGroup
				for g := range 2 {
					wg.Go(func() {
						for k := g; k < blocks; k += 2 {
							if err := t.Put(names[k], v); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				if err := t.Sync(); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := t.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

var (
	sweepBlocks = flag.Int("sweep-blocks", 200_000, "blocks that BenchmarkSweep deletes")
	sweepers    = flag.Int("sweepers", 4, "goroutines that delete, in BenchmarkSweep")
	sweepDir    = flag.String("sweep-dir", "", "store that BenchmarkSweep empties; it is filled instead when it is not there yet, so that caches can be dropped between")
)

// BenchmarkSweep deletes blocks of about 30 bytes as a collection does: in the
// order they are listed in, from several goroutines.
func BenchmarkSweep(b *testing.B) {
	blocks, dir := *sweepBlocks, *sweepDir
	if dir == "" {
		dir = b.TempDir()
	}
	root, err := disk.OS(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	_, err = root.Stat("SHARDING")
	found := err == nil
	open := func() *store.Dir {
		d, err := store.Open(root, store.Options{CreateIfMissing: true})
		if err != nil {
			b.Fatal(err)
		}
		return d
	}
	fill := func() {
		d := open()
		for i := range blocks {
			block := fmt.Appendf(nil, "contents of file %d", i)
			if err := d.Put(b.Context(), storetest.CID(block), block); err != nil {
				b.Fatal(err)
			}
		}
		if err := d.Close(); err != nil {
			b.Fatal(err)
		}
	}
	if *sweepDir != "" && !found {
		fill()
		return
	}
	var took time.Duration
	for range b.N {
		if *sweepDir == "" {
			fill()
		}
		d := open()
		begin := time.Now()
		sweep := d.Sweep()
		var g errgroup.Group
		g.SetLimit(*sweepers)
		var gone atomic.Int64
		for batch := range batches(b, d, 64) {
			g.Go(func() error {
				for _, h := range batch {
					_, done, err := sweep.Delete(b.Context(), h)
					if err != nil {
						return err
					}
					if done {
						gone.Add(1)
					}
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
		sweep.End()
		took += time.Since(begin)
		if gone.Load() != int64(blocks) {
			b.Fatalf("%d of %d blocks deleted", gone.Load(), blocks)
		}
		if err := d.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(blocks*b.N)/took.Seconds(), "deletes/s")
}

// batches yields the multihashes of a store's blocks, n at a time.
func batches(b *testing.B, d *store.Dir, n int) iter.Seq[[]mh.Multihash] {
	return func(yield func([]mh.Multihash) bool) {
		var batch []mh.Multihash
		for h, err := range d.Keys(b.Context()) {
			if err != nil {
				b.Fatal(err)
			}
			if batch = append(batch, h); len(batch) == n {
				if !yield(batch) {
					return
				}
				batch = nil
			}
		}
		yield(batch)
	}
}
