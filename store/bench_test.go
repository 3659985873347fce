package store_test

import (
	"sync"
	"testing"

	"cafs/store"
	"cafs/store/storetest"
)

// BenchmarkStore measures this store alone; store/interop/flatfs compares it with
// others. Run parts of it, as in -bench 'Store/keys=65536/size=1000/op=put$/g=1$'.
func BenchmarkStore(b *testing.B) {
	storetest.Bench(b, []storetest.Bencher{storetest.Ours("cafs", store.Options{})})
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
