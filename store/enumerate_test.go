package store_test

import (
	"encoding/base32"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"cafs/store"
	"cafs/store/storetest"
)

// TestListMany lists a store of 100,000 names, in the long form of 10 million,
// with sizes: each once, in constant memory. The names of a folder are links to
// one file, since it is names that listing is about.
func TestListMany(t *testing.T) {
	n := 100_000
	if os.Getenv("CAFS_LONG") == "1" {
		n = 10_000_000
	}
	d, path := folder(t, store.Options{})
	const length = 10
	var sum uint64 // of the names, whatever their order
	var made sync.Map
	const batch = 100_000
	for done := 0; done < n; done += batch {
		names := storetest.Names(min(batch, n-done), uint64(done))
		for _, c := range names {
			sum += binary.LittleEndian.Uint64(c.Hash()[2:])
		}
		var wg sync.WaitGroup
		const linkers = 4
		for k := range linkers {
			wg.Go(func() {
				for i := k; i < len(names); i += linkers {
					text := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(names[i].Hash())
					dir := filepath.Join(path, text[len(text)-3:len(text)-1]) // next-to-last/2
					first, _ := made.LoadOrStore(dir, sync.OnceValue(func() error {
						if err := os.MkdirAll(dir, 0o755); err != nil {
							return err
						}
						return os.WriteFile(filepath.Join(dir, "first"), make([]byte, length), 0o644)
					}))
					if err := first.(func() error)(); err != nil {
						t.Error(err)
						return
					}
					if err := os.Link(filepath.Join(dir, "first"), filepath.Join(dir, text+".data")); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
	var m runtime.MemStats
	heap := func() int64 {
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, sizes := range []bool{true, false} {
		start, before := time.Now(), heap()
		count, most, left := 0, int64(0), sum
		see := func(h []byte) {
			left -= binary.LittleEndian.Uint64(h[2:])
			if count++; count%(n/10) == 0 {
				most = max(most, heap()-before)
			}
		}
		if sizes {
			for e, err := range d.All(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Size != length {
					t.Fatalf("%s: %d bytes", e.Hash, e.Size)
				}
				see(e.Hash)
			}
		} else {
			for h, err := range d.Keys(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				see(h)
			}
		}
		if count != n || left != 0 {
			t.Errorf("%d listed of %d; the sum of the names is %d too small", count, n, left)
		}
		if most > 32<<20 {
			t.Errorf("listing takes %d bytes of memory", most)
		}
		t.Logf("%d names, with sizes: %v: %v, %d KiB of memory", n, sizes, time.Since(start).Round(time.Millisecond), most>>10)
	}
}
