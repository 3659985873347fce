package store_test

import (
	"context"
	"os"
	"sync"
	"testing"

	"cafs/shard"
	"cafs/store"
	"cafs/store/disk"
	"cafs/store/storetest"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/storage/fsstore"
	"github.com/ipld/go-ipld-prime/storage/memstore"
	"github.com/multiformats/go-base32"
)

// BenchmarkStore compares stores; run parts of it, as in
// -bench 'Store/(cafs|fsstore)/keys=65536/size=1000/put'.
// CAFS_BENCH_DIR says where the folders are made.
func BenchmarkStore(b *testing.B) {
	for name, open := range map[string]func(b *testing.B) storetest.Target{
		"cafs":          func(b *testing.B) storetest.Target { return cafsTarget(b, store.Options{}) },
		"cafs-buffered": func(b *testing.B) storetest.Target { return cafsTarget(b, store.Options{Buffered: true}) },
		"cafs-r12":      func(b *testing.B) storetest.Target { return cafsTarget(b, store.Options{Shard: shard.R12}) },
		"cafs-r122":     func(b *testing.B) storetest.Target { return cafsTarget(b, store.Options{Shard: shard.R122}) },
		"cafs-r133":     func(b *testing.B) storetest.Target { return cafsTarget(b, store.Options{Shard: shard.R133}) },
		"fsstore":       fsstoreTarget,
		"memstore":      memstoreTarget,
	} {
		b.Run(name, func(b *testing.B) { storetest.Bench(b, open) })
	}
}

func benchFolder(b *testing.B) string {
	dir, err := os.MkdirTemp(os.Getenv("CAFS_BENCH_DIR"), "cafs-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func cafsTarget(b *testing.B, opts store.Options) storetest.Target {
	fs, err := disk.OS(benchFolder(b))
	if err != nil {
		b.Fatal(err)
	}
	opts.CreateIfMissing = true
	d, err := store.Open(fs, opts)
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	return storetest.Target{
		Put: func(c cid.Cid, block []byte) error { return d.Put(ctx, c, block) },
		Get: func(c cid.Cid) (int, error) {
			block, err := d.Get(ctx, c)
			return len(block), err
		},
		Range: func(c cid.Cid, p []byte, off int64) error {
			_, err := d.GetRange(ctx, c, p, off)
			return err
		},
		Has: func(c cid.Cid) (bool, error) { return d.Has(ctx, c) },
		List: func() (n int, err error) {
			for _, err := range d.Keys(ctx) {
				if err != nil {
					return n, err
				}
				n++
			}
			return n, nil
		},
		Delete: func(c cid.Cid) error { return d.Delete(ctx, c.Hash()) },
		Sync:   func() error { return d.Sync(ctx) },
		Close: func() error {
			if err := d.Close(); err != nil {
				return err
			}
			return fs.Close()
		},
	}
}

// fsstoreTarget is go-ipld-prime's fsstore. It never calls its escaping
// function, so the sharding function escapes; it loses races to make folders,
// so they are made before.
func fsstoreTarget(b *testing.B) storetest.Target {
	dir := benchFolder(b)
	var s fsstore.Store
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	for _, x := range letters {
		for _, y := range letters {
			if err := os.Mkdir(dir+"/"+string(x)+string(y), 0o755); err != nil {
				b.Fatal(err)
			}
		}
	}
	shardKey := func(key string, parts *[]string) {
		text := base32.RawStdEncoding.EncodeToString([]byte(key))
		*parts = append(*parts, text[len(text)-3:len(text)-1], text+".data")
	}
	if err := s.Init(dir, nil, shardKey); err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	return storetest.Target{
		Put: func(c cid.Cid, block []byte) error { return s.Put(ctx, string(c.Hash()), block) },
		Get: func(c cid.Cid) (int, error) {
			block, err := s.Get(ctx, string(c.Hash()))
			return len(block), err
		},
		Has:    func(c cid.Cid) (bool, error) { return s.Has(ctx, string(c.Hash())) },
		List:   nil,
		Delete: nil,
		Sync:   func() error { return nil },
		Close:  func() error { return nil },
	}
}

func memstoreTarget(b *testing.B) storetest.Target {
	s := &memstore.Store{}
	ctx := context.Background()
	return storetest.Target{
		Put: func(c cid.Cid, block []byte) error { return s.Put(ctx, string(c.Hash()), block) },
		Get: func(c cid.Cid) (int, error) {
			block, err := s.Get(ctx, string(c.Hash()))
			return len(block), err
		},
		Has:    func(c cid.Cid) (bool, error) { return s.Has(ctx, string(c.Hash())) },
		List:   func() (int, error) { return len(s.Bag), nil },
		Delete: func(c cid.Cid) error { delete(s.Bag, string(c.Hash())); return nil },
		Sync:   func() error { return nil },
		Close:  func() error { return nil },
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
				t := cafsTarget(b, opts)
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
