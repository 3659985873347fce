package unixfs_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"syscall"
	"testing"
	"time"

	"cafs/linksys/unixfs"

	chunk "github.com/ipfs/boxo/chunker"
	dag "github.com/ipfs/boxo/ipld/merkledag"
	"github.com/ipfs/boxo/ipld/unixfs/hamt"
	"github.com/ipfs/boxo/ipld/unixfs/mod"
	"github.com/ipfs/go-cid"
	format "github.com/ipfs/go-ipld-format"
)

// cpu adds the processor time per operation to a bench's results: on a shared
// machine it is the steadier figure.
func cpu(b *testing.B) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	start := used()
	b.ReportAllocs()
	b.Cleanup(func() { b.ReportMetric(float64(used()-start)/float64(b.N), "cpu-ns/op") })
}

// trusting is a store for benches: it believes CIDs.
type trusting map[cid.Cid][]byte

func (s trusting) emit(b unixfs.Block) error {
	s[b.Cid] = bytes.Clone(b.Data)
	return nil
}

func (s trusting) load(_ context.Context, c cid.Cid) ([]byte, error) {
	if b, ok := s[c]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("no block %s", c)
}

func BenchmarkSparse8EiB(b *testing.B) {
	for _, size := range []uint64{1 << 62, math.MaxInt64} {
		b.Run(strconv.FormatUint(size, 10), func(b *testing.B) {
			cpu(b)
			for b.Loop() {
				if _, err := unixfs.V1_2025.EditFile(b.Context(), nil, cid.Undef, size, nil, discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

const benchChunk = 4 << 10 // bytes

// syntheticFile is a file of n chunks, each another leaf by CID; the leaves
// themselves do not exist, which shows that nobody looks at them.
func syntheticFile(b *testing.B, p unixfs.Profile, s trusting, n int) unixfs.Root {
	list := make([]unixfs.Run, n)
	for i := range list {
		c := cid.NewCidV1(cid.Raw, mustSum([]byte(strconv.Itoa(i))))
		list[i] = unixfs.Run{First: int64(i), Count: 1, Leaf: unixfs.Root{Cid: c, Size: benchChunk, Tsize: benchChunk}}
	}
	root, err := p.EditFile(b.Context(), nil, cid.Undef, uint64(n)*benchChunk, runs(list), s.emit)
	if err != nil {
		b.Fatal(err)
	}
	return root
}

// BenchmarkEditFile changes chunks of files of n leaves: a whole edit each time,
// from a root CID to a root CID, the new leaves included. boxo's way to do that
// is DagModifier.
func BenchmarkEditFile(b *testing.B) {
	p := unixfs.V1_2025
	p.ChunkSize = benchChunk
	for _, n := range []int{1 << 10, 1 << 20} {
		s := trusting{}
		root := syntheticFile(b, p, s, n)
		for _, k := range []int{1, 1000} {
			b.Run(fmt.Sprintf("leaves=%d/changed=%d", n, k), func(b *testing.B) {
				cpu(b)
				for i := 0; b.Loop(); i++ {
					list := make([]unixfs.Run, k)
					for j := range list {
						leaf, err := p.Leaf(bytes.Repeat([]byte{byte(i), byte(j)}, benchChunk/2))
						if err != nil {
							b.Fatal(err)
						}
						at := j * (n / k)
						if k == 1 {
							at = i * 7919 % n
						}
						list[j] = unixfs.Run{First: int64(at), Count: 1, Leaf: unixfs.LeafRoot(leaf, benchChunk)}
					}
					if _, err := p.EditFile(b.Context(), s.load, root.Cid, root.Size, runs(list), discard); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		b.Run(fmt.Sprintf("leaves=%d/changed=1/boxo", n), func(b *testing.B) {
			store := newBoxoStore(s, p)
			cpu(b)
			for i := 0; b.Loop(); i++ {
				clear(store.fresh)
				nd, err := store.Get(b.Context(), root.Cid)
				if err != nil {
					b.Fatal(err)
				}
				m, err := mod.NewDagModifier(b.Context(), nd, store, func(r io.Reader) chunk.Splitter { return chunk.NewSizeSplitter(r, p.ChunkSize) })
				if err != nil {
					b.Fatal(err)
				}
				m.RawLeaves = true
				if _, err := m.WriteAt(bytes.Repeat([]byte{byte(i)}, benchChunk), int64(i*7919%n)*benchChunk); err != nil {
					b.Fatal(err)
				}
				if _, err := m.GetNode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// boxoStore gives boxo the blocks we built, and for leaves, which do not exist,
// zeros. It keeps what is added until the operation ends, and costs less than
// any store of boxo's.
type boxoStore struct {
	format.DAGService
	s       trusting
	builder cid.Builder
	fresh   map[cid.Cid]format.Node
}

func newBoxoStore(s trusting, p unixfs.Profile) *boxoStore {
	return &boxoStore{s: s, builder: cidBuilder(p), fresh: map[cid.Cid]format.Node{}}
}

func (s *boxoStore) Get(ctx context.Context, c cid.Cid) (format.Node, error) {
	if nd, ok := s.fresh[c]; ok {
		return nd, nil
	}
	if c.Type() == cid.Raw {
		return dag.NewRawNodeWPrefix(make([]byte, benchChunk), s.builder)
	}
	data, err := s.s.load(ctx, c)
	if err != nil {
		return nil, format.ErrNotFound{Cid: c}
	}
	nd, err := dag.DecodeProtobuf(data)
	if err != nil {
		return nil, err
	}
	return nd, nd.SetCidBuilder(s.builder)
}

func (s *boxoStore) Add(_ context.Context, nd format.Node) error {
	s.fresh[nd.Cid()] = nd
	return nil
}

func BenchmarkBuildFile(b *testing.B) {
	data, err := io.ReadAll(&stream{seed: 2, n: 128 << 20})
	if err != nil {
		b.Fatal(err)
	}
	for _, workers := range []int{1, 2} {
		for _, size := range []int{4 << 10, 128 << 20} {
			b.Run(fmt.Sprintf("workers=%d/size=%d", workers, size), func(b *testing.B) {
				cpu(b)
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := (unixfs.Builder{Profile: unixfs.V1_2025, Workers: workers}).File(b.Context(), bytes.NewReader(data[:size]), discard); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func benchEntry(i int) unixfs.Entry {
	return unixfs.Entry{Name: fmt.Sprintf("file-%07d", i), Cid: cid.NewCidV1(cid.Raw, mustSum([]byte(strconv.Itoa(i)))), Tsize: 1}
}

// BenchmarkDir inserts, removes and finds one name in directories of n entries: a
// whole edit each time, from a root CID to a root CID.
func BenchmarkDir(b *testing.B) {
	b.Run("n=1000/one-node", func(b *testing.B) { benchDir(b, unixfs.V1_2025, 1000) })
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		p := unixfs.V1_2025
		p.DirLimit = min(p.DirLimit, 20*n) // so that each is sharded
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) { benchDir(b, p, n) })
	}
}

func benchDir(b *testing.B, p unixfs.Profile, n int) {
	s := trusting{}
	root, err := p.BuildDir(b.Context(), func(yield func(unixfs.Entry, error) bool) {
		for i := range n {
			if !yield(benchEntry(i), nil) {
				return
			}
		}
	}, s.emit)
	if err != nil {
		b.Fatal(err)
	}
	change := func(b *testing.B, base unixfs.Root, name func(i int) unixfs.Change) {
		cpu(b)
		for i := 0; b.Loop(); i++ {
			if _, err := p.EditDirSized(b.Context(), s.load, base, []unixfs.Change{name(i)}, discard); err != nil {
				b.Fatal(err)
			}
		}
	}
	insert := func(i int) unixfs.Change {
		e := benchEntry(n + i%1000)
		return unixfs.Change{Name: e.Name, Set: true, Entry: e}
	}
	remove := func(i int) unixfs.Change { return unixfs.Change{Name: benchEntry(i * 7919 % n).Name} }
	b.Run("insert", func(b *testing.B) { change(b, root, insert) })
	b.Run("remove", func(b *testing.B) { change(b, root, remove) })
	b.Run("remove-unsized", func(b *testing.B) { change(b, unixfs.Root{Cid: root.Cid}, remove) })
	b.Run("find", func(b *testing.B) {
		cpu(b)
		for i := 0; b.Loop(); i++ {
			if _, err := unixfs.Find(b.Context(), s.load, root.Cid, benchEntry(i*7919%n).Name); err != nil {
				b.Fatal(err)
			}
		}
	})
	if len(s) > 1 {
		benchBoxoShard(b, n, newBoxoStore(s, p), root)
	}
}

// benchBoxoShard does the same with boxo's hamt.Shard.
func benchBoxoShard(b *testing.B, n int, store *boxoStore, dir unixfs.Root) {
	link := func(i int) *format.Link {
		e := benchEntry(i)
		return &format.Link{Name: e.Name, Cid: e.Cid, Size: e.Tsize}
	}
	root, err := store.Get(b.Context(), dir.Cid)
	if err != nil {
		b.Fatal(err)
	}
	bench := func(op string, f func(s *hamt.Shard, i int) error) {
		b.Run("boxo-"+op, func(b *testing.B) {
			cpu(b)
			for i := 0; b.Loop(); i++ {
				clear(store.fresh)
				s, err := hamt.NewHamtFromDag(store, root)
				if err != nil {
					b.Fatal(err)
				}
				if err := f(s, i); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	write := func(s *hamt.Shard, err error) error {
		if err != nil {
			return err
		}
		_, err = s.Node()
		return err
	}
	bench("insert", func(s *hamt.Shard, i int) error {
		e := benchEntry(n + i%1000)
		return write(s, s.SetLink(b.Context(), e.Name, link(n+i%1000)))
	})
	bench("remove", func(s *hamt.Shard, i int) error { return write(s, s.Remove(b.Context(), benchEntry(i*7919%n).Name)) })
	bench("find", func(s *hamt.Shard, i int) error {
		_, err := s.Find(b.Context(), benchEntry(i*7919%n).Name)
		return err
	})
}

func BenchmarkBuildDir(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			entries := make([]unixfs.Entry, n)
			for i := range entries {
				entries[i] = benchEntry(i)
			}
			cpu(b)
			for b.Loop() {
				if _, err := unixfs.V1_2025.BuildDir(b.Context(), seq(entries...), discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeNode(b *testing.B) {
	s := trusting{}
	p := unixfs.V1_2025
	p.ChunkSize = 8
	root, err := p.BuildFile(b.Context(), &stream{n: 8 << 10}, s.emit)
	if err != nil {
		b.Fatal(err)
	}
	block := s[root.Cid]
	b.Run("ours", func(b *testing.B) {
		cpu(b)
		for b.Loop() {
			if _, err := unixfs.DecodeNode(root.Cid, block); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("boxo", func(b *testing.B) {
		cpu(b)
		for b.Loop() {
			if _, err := dag.DecodeProtobuf(block); err != nil {
				b.Fatal(err)
			}
		}
	})
}
