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
	mdtest "github.com/ipfs/boxo/ipld/merkledag/test"
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

// millionLeaves is a 1 TiB file of 1 MiB chunks, each another leaf by CID; the
// leaves themselves do not exist, which shows that nobody looks at them.
func millionLeaves(b *testing.B, s trusting) unixfs.Root {
	list := make([]unixfs.Run, 1<<20)
	for i := range list {
		c := cid.NewCidV1(cid.Raw, mustSum([]byte(strconv.Itoa(i))))
		list[i] = unixfs.Run{First: int64(i), Count: 1, Leaf: unixfs.Root{Cid: c, Size: 1 << 20, Tsize: 1 << 20}}
	}
	root, err := unixfs.V1_2025.EditFile(b.Context(), nil, cid.Undef, 1<<40, runs(list), s.emit)
	if err != nil {
		b.Fatal(err)
	}
	return root
}

func BenchmarkEditFile1MLeaves(b *testing.B) {
	p, s := unixfs.V1_2025, trusting{}
	root := millionLeaves(b, s)
	leaf, err := p.ZeroLeaf()
	if err != nil {
		b.Fatal(err)
	}
	for _, k := range []int64{1, 1000} {
		b.Run(fmt.Sprintf("chunks=%d", k), func(b *testing.B) {
			cpu(b)
			for i := int64(0); b.Loop(); i++ {
				list := make([]unixfs.Run, k)
				for j := range list {
					list[j] = unixfs.Run{First: (i*7919)%1000 + int64(j)*1047, Count: 1, Leaf: leaf}
				}
				if _, err := p.EditFile(b.Context(), s.load, root.Cid, root.Size, runs(list), discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDagModifier1KLeaves is boxo's way to change one chunk, of a file of
// 1024 leaves of 4 KiB; the next bench is ours.
func BenchmarkDagModifier1KLeaves(b *testing.B) {
	p := unixfs.V1_2025
	p.ChunkSize = 4 << 10
	store := mdtest.Mock()
	s := trusting{}
	root, err := p.BuildFile(b.Context(), &stream{seed: 1, n: 4 << 20}, s.emit)
	if err != nil {
		b.Fatal(err)
	}
	nodes := make([]format.Node, 0, len(s))
	for c, data := range s {
		if c.Type() == cid.Raw {
			nd, err := dag.NewRawNodeWPrefix(data, cidBuilder(p))
			if err != nil {
				b.Fatal(err)
			}
			nodes = append(nodes, nd)
			continue
		}
		nd, err := dag.DecodeProtobuf(data)
		if err != nil {
			b.Fatal(err)
		}
		nd.SetCidBuilder(cidBuilder(p))
		nodes = append(nodes, nd)
	}
	if err := store.AddMany(b.Context(), nodes); err != nil {
		b.Fatal(err)
	}
	cpu(b)
	for i := 0; b.Loop(); i++ {
		nd, err := store.Get(b.Context(), root.Cid)
		if err != nil {
			b.Fatal(err)
		}
		m, err := mod.NewDagModifier(b.Context(), nd, store, func(r io.Reader) chunk.Splitter { return chunk.NewSizeSplitter(r, p.ChunkSize) })
		if err != nil {
			b.Fatal(err)
		}
		m.RawLeaves = true
		if _, err := m.WriteAt(bytes.Repeat([]byte{byte(i)}, 4<<10), int64(i*37%1024)<<12); err != nil {
			b.Fatal(err)
		}
		if _, err := m.GetNode(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEditFile1KLeaves(b *testing.B) {
	p, s := unixfs.V1_2025, trusting{}
	p.ChunkSize = 4 << 10
	root, err := p.BuildFile(b.Context(), &stream{seed: 1, n: 4 << 20}, s.emit)
	if err != nil {
		b.Fatal(err)
	}
	cpu(b)
	for i := 0; b.Loop(); i++ {
		leaf, err := p.Leaf(bytes.Repeat([]byte{byte(i)}, 4<<10))
		if err != nil {
			b.Fatal(err)
		}
		list := []unixfs.Run{{First: int64(i * 37 % 1024), Count: 1, Leaf: unixfs.LeafRoot(leaf, 4<<10)}}
		if _, err := p.EditFile(b.Context(), s.load, root.Cid, root.Size, runs(list), discard); err != nil {
			b.Fatal(err)
		}
	}
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

// BenchmarkDir changes, finds and removes one name of directories of n entries:
// a whole edit each time, from a root CID to a root CID.
func BenchmarkDir(b *testing.B) {
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		p, s := unixfs.V1_2025, trusting{}
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
		b.Run(fmt.Sprintf("n=%d/insert", n), func(b *testing.B) { change(b, root, insert) })
		b.Run(fmt.Sprintf("n=%d/remove", n), func(b *testing.B) { change(b, root, remove) })
		b.Run(fmt.Sprintf("n=%d/remove-unsized", n), func(b *testing.B) { change(b, unixfs.Root{Cid: root.Cid}, remove) })
		b.Run(fmt.Sprintf("n=%d/find", n), func(b *testing.B) {
			cpu(b)
			for i := 0; b.Loop(); i++ {
				if _, err := unixfs.Find(b.Context(), s.load, root.Cid, benchEntry(i*7919%n).Name); err != nil {
					b.Fatal(err)
				}
			}
		})
		if n <= 100_000 { // boxo's takes gigabytes to set up above this
			benchBoxoShard(b, n)
		}
	}
}

// benchBoxoShard does the same with boxo's hamt.Shard.
func benchBoxoShard(b *testing.B, n int) {
	store := mdtest.Mock()
	s, err := hamt.NewShard(store, 256)
	if err != nil {
		b.Fatal(err)
	}
	s.SetCidBuilder(cidBuilder(unixfs.V1_2025))
	link := func(i int) *format.Link {
		e := benchEntry(i)
		return &format.Link{Name: e.Name, Cid: e.Cid, Size: e.Tsize}
	}
	for i := range n {
		if err := s.SetLink(b.Context(), benchEntry(i).Name, link(i)); err != nil {
			b.Fatal(err)
		}
	}
	root, err := s.Node()
	if err != nil {
		b.Fatal(err)
	}
	bench := func(op string, f func(s *hamt.Shard, i int) error) {
		b.Run(fmt.Sprintf("n=%d/boxo-%s", n, op), func(b *testing.B) {
			cpu(b)
			for i := 0; b.Loop(); i++ {
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
