package storetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
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

// Bencher makes one kind of store in an empty folder.
type Bencher struct {
	Name string
	Open func(dir string) (Target, error)
}

const (
	// benchBytes is how much the blocks present may take, so that they stay in
	// memory; of large ones there are fewer than the name says.
	benchBytes = 1 << 30
	// sharedKeys is from how many keys on puts of one kind find those of the
	// kind before: filling takes too long, and changes the number little. So do
	// those that are synced one by one, of which there are few.
	sharedKeys = 1 << 20
	// sweptSize is the size from which folders are removed at once; those with
	// many files stay to the end, since creating is slow after a mass unlink.
	sweptSize = 64 << 10
)

// Bench is the benchmark body for every store. Names are
// keys=/size=/op=/g=/store=, so benchstat -col /store compares them, and the
// stores are measured one right after the other. Folders are made in
// CAFS_BENCH_DIR; with CAFS_BENCH_KEEP set they stay there, for who throws the
// file system away.
func Bench(b *testing.B, stores []Bencher) {
	for _, keys := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			for _, size := range []int{8, 1000, 4096, 256 << 10, 1 << 20} {
				if int64(keys)*int64(size) > 4*benchBytes {
					continue
				}
				b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
					s := &suite{stores: stores, keys: min(keys, benchBytes/size), size: size, shared: map[string]*filled{}}
					s.run(b)
				})
			}
		})
	}
}

// suite is what one number of keys and one size of blocks have in common.
type suite struct {
	stores     []Bencher
	keys, size int
	shared     map[string]*filled // by store
	names      uint64             // seeds used
	ends       []func()
}

// filled is a store with blocks in it.
type filled struct {
	Target
	list []cid.Cid // in random order
}

func (s *suite) end() {
	for _, end := range s.ends {
		end()
	}
}

func (s *suite) run(b *testing.B) {
	defer s.end()
	for _, g := range []int{1, 4, 64} {
		s.puts(b, "put", g, 0)
		s.puts(b, "put+sync1000", g, 1000)
		s.puts(b, "put+sync", g, 1)
	}
	v := value(s.size)
	for _, g := range []int{1, 4, 64} {
		s.each(b, "put-existing", g, func(t *filled, i int) error { return t.Put(t.list[i%s.keys], v) })
		s.each(b, "get", g, func(t *filled, i int) error {
			n, err := t.Get(t.list[i%s.keys])
			if err == nil && n != s.size {
				err = fmt.Errorf("%d bytes, want %d", n, s.size)
			}
			return err
		})
		if s.size >= 8192 {
			s.each(b, "get4k", g, func(t *filled, i int) error {
				if t.Range == nil {
					return errSkip
				}
				return t.Range(t.list[i%s.keys], make([]byte, 4096), int64(i*4096%(s.size-4095)))
			})
		}
		s.each(b, "has", g, func(t *filled, i int) error {
			ok, err := t.Has(t.list[i%s.keys])
			if err == nil && !ok {
				err = fmt.Errorf("not there")
			}
			return err
		})
	}
	s.lists(b)
	s.deletes(b)
}

// BenchList lists stores of 100,000 blocks of 8 bytes.
func BenchList(b *testing.B, stores []Bencher) {
	s := &suite{stores: stores, keys: 100_000, size: 8, shared: map[string]*filled{}}
	defer s.end()
	s.lists(b)
}

func (s *suite) lists(b *testing.B) {
	s.each(b, "list", 1, func(t *filled, _ int) error {
		if t.List == nil {
			return errSkip
		}
		n, err := t.List()
		if err == nil && n < s.keys {
			err = fmt.Errorf("%d listed, want %d", n, s.keys)
		}
		return err
	})
}

// op runs f for every store, in a folder of its own for every run.
func (s *suite) op(b *testing.B, name string, g int, f func(b *testing.B, store Bencher)) {
	b.Run(fmt.Sprintf("op=%s/g=%d", name, g), func(b *testing.B) {
		for _, store := range s.stores {
			b.Run("store="+store.Name, func(b *testing.B) {
				b.ReportAllocs()
				f(b, store)
			})
		}
	})
}

func (s *suite) open(b *testing.B, store Bencher, sweep bool) *filled {
	dir, err := os.MkdirTemp(os.Getenv("CAFS_BENCH_DIR"), "cafs-bench-")
	if err != nil {
		b.Fatal(err)
	}
	t, err := store.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	end := func() {
		t.Close()
		if os.Getenv("CAFS_BENCH_KEEP") == "" {
			os.RemoveAll(dir)
		}
	}
	if sweep {
		b.Cleanup(end)
	} else {
		s.ends = append(s.ends, end)
	}
	f := &filled{Target: t}
	f.list, err = fill(t, s.keys, s.size)
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// present is a store that several benchmarks share.
func (s *suite) present(b *testing.B, store Bencher) *filled {
	f := s.shared[store.Name]
	if f == nil {
		f = s.open(b, store, false)
		s.shared[store.Name] = f
		for _, c := range f.list { // all are read warm
			if _, err := f.Get(c); err != nil {
				b.Fatal(err)
			}
		}
	}
	return f
}

// puts puts new blocks, with a Sync after every so many (0: none) of all
// goroutines together.
func (s *suite) puts(b *testing.B, name string, g, every int) {
	s.op(b, name, g, func(b *testing.B, store Bencher) {
		if b.N == 1 {
			return // the first run finds nothing but b.N
		}
		var t *filled
		if s.keys >= sharedKeys || every == 1 {
			t = s.present(b, store)
		} else {
			t = s.open(b, store, s.size >= sweptSize)
		}
		s.names++
		names := Names(b.N, s.names)
		v := value(s.size)
		b.SetBytes(int64(s.size))
		b.ResetTimer()
		each(b, g, b.N, func(i int) error {
			err := t.Put(names[i], v)
			if err == nil && every > 0 && (i+1)%every == 0 {
				err = t.Sync()
			}
			return err
		})
		b.StopTimer()
		if err := t.Sync(); err != nil { // not in the time of the next
			b.Fatal(err)
		}
	})
}

var errSkip = fmt.Errorf("not of this store")

// each runs f on blocks that are there.
func (s *suite) each(b *testing.B, name string, g int, f func(t *filled, i int) error) {
	s.op(b, name, g, func(b *testing.B, store Bencher) {
		t := s.present(b, store)
		if f(t, 0) == errSkip {
			b.Skip()
		}
		b.ResetTimer()
		each(b, g, b.N, func(i int) error { return f(t, i) })
	})
}

// deletes is the last: blocks that more iterations than there are keys would
// need are not there any more.
func (s *suite) deletes(b *testing.B) {
	s.op(b, "delete", 1, func(b *testing.B, store Bencher) {
		t := s.present(b, store)
		if t.Delete == nil {
			b.Skip()
		}
		n := min(b.N, len(t.list))
		b.ResetTimer()
		each(b, 1, n, func(i int) error { return t.Delete(t.list[i]) })
		b.StopTimer()
		t.list = t.list[n:]
	})
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

// fillers is how many goroutines fill a store; one that syncs takes them all.
const fillers = 16

// fill puts keys blocks of size bytes and returns them in random order.
func fill(t Target, keys, size int) ([]cid.Cid, error) {
	list := make([]cid.Cid, keys)
	errs := make([]error, fillers)
	var wg sync.WaitGroup
	for g := range fillers {
		wg.Go(func() {
			v := value(size)
			for i := g; i < keys && errs[g] == nil; i += fillers {
				binary.LittleEndian.PutUint64(v, uint64(i))
				list[i] = CID(v)
				errs[g] = t.Put(list[i], v)
			}
		})
	}
	wg.Wait()
	rng := rand.New(rand.NewPCG(7, 7))
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list, errors.Join(append(errs, t.Sync())...)
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
