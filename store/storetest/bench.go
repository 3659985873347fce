package storetest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// Target is a store as the benchmarks see it. Nil functions are skipped.
type Target struct {
	Put    func(c cid.Cid, block []byte) error
	Get    func(c cid.Cid) (int, error) // the block's length
	Range  func(c cid.Cid, p []byte, off int64) error
	Has    func(c cid.Cid) (bool, error)
	List   func() (int, error) // the number of blocks
	Delete func(c cid.Cid) error
	Sync   func() error
	Close  func() error
}

// Bench is the benchmark body for every store: open makes a new, empty one in a
// fresh folder. Names are op/keys/size/goroutines, for benchstat and -bench.
func Bench(b *testing.B, open func(b *testing.B) Target) {
	for _, keys := range []int{0, 4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			for _, size := range []int{8, 1000, 4096, 256 << 10, 1 << 20} {
				if int64(keys)*int64(size) > 4<<30 {
					continue
				}
				keys := min(keys, 1<<30/size) // so that it stays in memory
				b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) { benchSize(b, open, keys, size) })
			}
		})
	}
}

func benchSize(b *testing.B, open func(b *testing.B) Target, keys, size int) {
	for _, g := range []int{1, 4, 64} {
		b.Run(fmt.Sprintf("put/g=%d", g), func(b *testing.B) { benchPut(b, open, keys, size, g, 0) })
		b.Run(fmt.Sprintf("put+sync1000/g=%d", g), func(b *testing.B) { benchPut(b, open, keys, size, g, 1000) })
		b.Run(fmt.Sprintf("put+sync/g=%d", g), func(b *testing.B) { benchPut(b, open, keys, size, g, 1) })
	}
	if keys > 0 {
		benchRead(b, open, keys, size)
	}
}

// Names makes CIDs of random digests: a put does not hash, so their blocks may
// be any bytes where only puts are measured.
func Names(n int, seed uint64) []cid.Cid {
	src := rand.NewPCG(seed, 42)
	list := make([]cid.Cid, n)
	for i := range list {
		h := mh.Multihash{mh.SHA2_256, 32}
		for range 4 {
			h = binary.LittleEndian.AppendUint64(h, src.Uint64())
		}
		list[i] = cid.NewCidV1(cid.Raw, h)
	}
	return list
}

func value(size int) []byte {
	_, v := Block(uint64(size), size)
	return v
}

// fill puts keys blocks of size bytes and returns them.
func fill(b *testing.B, t Target, keys, size int) []cid.Cid {
	v := value(size)
	list := make([]cid.Cid, keys)
	for i := range list {
		if size >= 8 {
			binary.LittleEndian.PutUint64(v, uint64(i))
		}
		list[i] = CID(v)
		if err := t.Put(list[i], v); err != nil {
			b.Fatal(err)
		}
	}
	if err := t.Sync(); err != nil {
		b.Fatal(err)
	}
	return list
}

// each runs f for 0 to n-1 from g goroutines and stops at the first error.
func each(b *testing.B, g, n int, f func(i int) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range g {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// benchPut puts new blocks, with a Sync after every so many (0: none) of all
// goroutines together.
func benchPut(b *testing.B, open func(b *testing.B) Target, keys, size, g, every int) {
	t := open(b)
	fill(b, t, keys, size)
	names := Names(b.N, uint64(b.N)+uint64(g)<<32+1)
	v := value(size)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	each(b, g, b.N, func(i int) error {
		err := t.Put(names[i], v)
		if err == nil && every > 0 && (i+1)%every == 0 {
			err = t.Sync()
		}
		return err
	})
	b.StopTimer()
	if err := t.Close(); err != nil {
		b.Fatal(err)
	}
}

func benchRead(b *testing.B, open func(b *testing.B) Target, keys, size int) {
	t := open(b)
	list := fill(b, t, keys, size)
	rng := rand.New(rand.NewPCG(7, 7))
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, c := range list { // all are read warm
		if _, err := t.Get(c); err != nil {
			b.Fatal(err)
		}
	}
	v := value(size)
	run := func(name string, g int, f func(i int) error) {
		b.Run(fmt.Sprintf("%s/g=%d", name, g), func(b *testing.B) {
			b.ReportAllocs()
			each(b, g, b.N, f)
		})
	}
	for _, g := range []int{1, 4, 64} {
		run("get", g, func(i int) error {
			n, err := t.Get(list[i%keys])
			if err == nil && n != size {
				err = fmt.Errorf("%d bytes, want %d", n, size)
			}
			return err
		})
		if t.Range != nil && size >= 8192 {
			run("get4k", g, func(i int) error {
				return t.Range(list[i%keys], make([]byte, 4096), int64(i*4096%(size-4095)))
			})
		}
		run("has", g, func(i int) error {
			ok, err := t.Has(list[i%keys])
			if err == nil && !ok {
				err = fmt.Errorf("not there")
			}
			return err
		})
		run("put-existing", g, func(i int) error { return t.Put(list[i%keys], v) })
	}
	if t.List == nil || t.Delete == nil {
		return
	}
	run("list", 1, func(int) error {
		n, err := t.List()
		if err == nil && n != keys {
			err = fmt.Errorf("%d listed, want %d", n, keys)
		}
		return err
	})
	b.Run("delete", func(b *testing.B) {
		n := min(b.N, len(list)) // blocks beyond that are not there any more
		each(b, 1, n, func(i int) error { return t.Delete(list[i]) })
		list = list[n:]
	})
	if err := t.Close(); err != nil {
		b.Fatal(err)
	}
}
