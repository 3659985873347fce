package unixfs_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"

	chunk "github.com/ipfs/boxo/chunker"
	dag "github.com/ipfs/boxo/ipld/merkledag"
	mdtest "github.com/ipfs/boxo/ipld/merkledag/test"
	"github.com/ipfs/boxo/ipld/unixfs/importer/balanced"
	"github.com/ipfs/boxo/ipld/unixfs/importer/helpers"
	"github.com/ipfs/boxo/ipld/unixfs/importer/trickle"
	uio "github.com/ipfs/boxo/ipld/unixfs/io"
	"github.com/ipfs/go-cid"
	format "github.com/ipfs/go-ipld-format"
	mh "github.com/multiformats/go-multihash"
)

// random returns a generator that prints its seed.
func random(t testing.TB) *rand.Rand { return linktest.NewRand(t) }

func cidBuilder(p unixfs.Profile) cid.Builder {
	return cid.Prefix{Version: uint64(p.CidVersion), Codec: cid.DagProtobuf, MhType: p.Hash, MhLength: -1}
}

// boxoFile is the second opinion on files: boxo's importer.
func boxoFile(t testing.TB, p unixfs.Profile, stat unixfs.Stat, data []byte) unixfs.Root {
	t.Helper()
	params := helpers.DagBuilderParams{
		Maxlinks: p.MaxLinks, RawLeaves: p.RawLeaves && stat == unixfs.Stat{}, CidBuilder: cidBuilder(p), Dagserv: mdtest.Mock(),
		FileModTime: stat.Mtime, FileMode: fileMode(stat.Mode),
	}
	splitter := chunk.NewSizeSplitter(bytes.NewReader(data), p.ChunkSize)
	var err error
	if p.Chunker != "" {
		if splitter, err = chunk.FromString(bytes.NewReader(data), p.Chunker); err != nil {
			t.Fatal(err)
		}
	}
	b, err := params.New(splitter)
	if err != nil {
		t.Fatal(err)
	}
	nd, err := balanced.Layout(b)
	if err != nil {
		t.Fatal(err)
	}
	return boxoRoot(t, nd, uint64(len(data)))
}

func boxoRoot(t testing.TB, nd format.Node, size uint64) unixfs.Root {
	t.Helper()
	tsize, err := nd.Size()
	if err != nil {
		t.Fatal(err)
	}
	return unixfs.Root{Cid: nd.Cid(), Size: size, Tsize: tsize}
}

// small are profiles whose thresholds lie a few bytes apart.
func small(rnd *rand.Rand) unixfs.Profile {
	p := unixfs.V1_2025
	p.ChunkSize = 1 + rnd.Int64N(9)
	p.MaxLinks = 2 + rnd.IntN(5)
	p.RawLeaves = rnd.IntN(2) == 0
	p.CidVersion = rnd.IntN(2)
	if p.CidVersion == 1 {
		p.Hash = []uint64{mh.SHA2_256, mh.SHA2_512, mh.BLAKE2B_MIN + 31, mh.BLAKE3}[rnd.IntN(4)]
	}
	p.Fanout = 8 << rnd.IntN(3)
	p.DirSize = unixfs.SizeMode(rnd.IntN(3))
	p.DirLimit = 50 + rnd.IntN(900)
	if p.DirSize == unixfs.SizeNone || rnd.IntN(4) == 0 {
		p.DirLinks = 1 + rnd.IntN(12)
	}
	return p
}

// TestFilesLikeBoxo compares files whose leaf counts lie around powers of the
// fan-out, where nodes of a single child are.
func TestFilesLikeBoxo(t *testing.T) {
	rnd := random(t)
	shapes := 5000
	if testing.Short() {
		shapes = 1000
	}
	for range shapes {
		p := small(rnd)
		leaves := int64(1)
		for range rnd.IntN(6) {
			if leaves < 100 {
				leaves *= int64(p.MaxLinks)
			}
		}
		size := leaves*(1+rnd.Int64N(2))*p.ChunkSize + rnd.Int64N(2*p.ChunkSize+1) - p.ChunkSize
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(rnd.IntN(3)) // few values: equal leaves occur
		}
		var stat unixfs.Stat
		if rnd.IntN(3) == 0 {
			stat = unixfs.Stat{Mode: uint32(rnd.IntN(0o10000)), Mtime: time.Unix(rnd.Int64N(1<<40)-1<<39, rnd.Int64N(3)/2*5)}
		}
		store := blocks{}
		got, err := unixfs.Builder{Profile: p, Stat: stat}.File(t.Context(), bytes.NewReader(data), store.emit)
		if err != nil {
			t.Fatal(err)
		}
		if want := boxoFile(t, p, stat, data); got != want {
			t.Fatalf("%v, %d bytes, %+v: got %+v, want %+v", p, size, stat, got, want)
		}
		if back := readFile(t, store, got); !bytes.Equal(back, data) {
			t.Fatalf("%v: reads back %d bytes, want %d", p, len(back), size)
		}
	}
}

// TestChunkersLikeBoxo compares files cut by content, with all other settings
// at random.
func TestChunkersLikeBoxo(t *testing.T) {
	rnd := random(t)
	data := make([]byte, 3<<20)
	for i := range data {
		data[i] = byte(rnd.Uint32())
	}
	for i := range 24 {
		p := small(rnd)
		p.Chunker = []string{"buzhash", "rabin-262144", "rabin-5000", "rabin-600-4096-20000"}[i%4]
		if i%2 == 0 {
			p.MaxLinks = unixfs.V1_2025.MaxLinks
		}
		data := data[:rnd.IntN(len(data))]
		got, err := unixfs.Builder{Profile: p, Workers: 2}.File(t.Context(), bytes.NewReader(data), discard)
		if err != nil {
			t.Fatal(err)
		}
		if want := boxoFile(t, p, unixfs.Stat{}, data); got != want {
			t.Fatalf("%v, %d bytes: got %+v, want %+v", p, len(data), got, want)
		}
	}
}

// readFile decodes a file's whole DAG.
func readFile(t testing.TB, s blocks, root unixfs.Root) []byte {
	t.Helper()
	n, err := unixfs.DecodeNode(root.Cid, s[root.Cid])
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Clone(n.Data)
	tsize := uint64(len(s[root.Cid]))
	for i, l := range n.Links {
		data = append(data, readFile(t, s, unixfs.Root{Cid: l.Cid, Size: n.BlockSizes[i], Tsize: l.Tsize})...)
		tsize += l.Tsize
	}
	if n.FileSize != root.Size || uint64(len(data)) != root.Size || tsize != root.Tsize {
		t.Fatalf("%s: %d bytes, file size %d, Tsize %d; link says %+v", root.Cid, len(data), n.FileSize, tsize, root)
	}
	return data
}

// child is a directory entry whose link lengths vary, and the node for boxo.
func child(t testing.TB, rnd *rand.Rand, i int) (unixfs.Entry, format.Node) {
	t.Helper()
	name := fmt.Sprintf("%d", i)
	if rnd.IntN(2) == 0 {
		name += string(bytes.Repeat([]byte{'x'}, rnd.IntN(120)))
	}
	nd, err := dag.NewRawNodeWPrefix(make([]byte, rnd.IntN(129)), cid.V1Builder{Codec: cid.Raw, MhType: []uint64{mh.SHA2_256, mh.IDENTITY}[rnd.IntN(16)/15]})
	if err != nil {
		t.Fatal(err)
	}
	return unixfs.Entry{Name: name, Cid: nd.Cid(), Tsize: uint64(len(nd.RawData()))}, nd
}

// TestDirsLikeBoxo compares directories that grow past the limit.
func TestDirsLikeBoxo(t *testing.T) {
	rnd := random(t)
	shards := 0
	for range 300 {
		p := small(rnd)
		opts := []uio.DirectoryOption{
			uio.WithMaxHAMTFanout(p.Fanout), uio.WithCidBuilder(cidBuilder(p)), uio.WithMaxLinks(p.DirLinks),
			uio.WithSizeEstimationMode(map[unixfs.SizeMode]uio.SizeEstimationMode{
				unixfs.SizeBlock: uio.SizeEstimationBlock, unixfs.SizeLinks: uio.SizeEstimationLinks, unixfs.SizeNone: uio.SizeEstimationDisabled,
			}[p.DirSize]),
		}
		b := unixfs.Builder{Profile: p}
		if rnd.IntN(3) == 0 {
			b.Stat = unixfs.Stat{Mode: 0o750, Mtime: time.Unix(rnd.Int64N(1<<40), rnd.Int64N(2))}
			opts = append(opts, uio.WithStat(fileMode(b.Stat.Mode), b.Stat.Mtime))
		}
		dir, err := uio.NewDirectory(mdtest.Mock(), opts...)
		if err != nil {
			t.Fatal(err)
		}
		dir.SetHAMTShardingSize(p.DirLimit)
		var entries []unixfs.Entry
		for i := range rnd.IntN(60) {
			e, nd := child(t, rnd, i)
			entries = append(entries, e)
			if err := dir.AddChild(t.Context(), e.Name, nd); err != nil {
				t.Fatal(err)
			}
			if rnd.IntN(4) > 0 {
				continue
			}
			rnd.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
			store := blocks{}
			got, err := b.Dir(t.Context(), seq(entries...), store.emit)
			if err != nil {
				t.Fatal(err)
			}
			node, err := dir.GetNode()
			if err != nil {
				t.Fatal(err)
			}
			if want := boxoRoot(t, node, got.Size); got != want {
				t.Fatalf("%v, %d entries, %+v: got %+v, want %+v", p, len(entries), b.Stat, got, want)
			}
			if checkDir(t, store, got, entries) == unixfs.HAMT {
				shards++
			}
		}
	}
	if shards < 100 {
		t.Errorf("only %d sharded directories", shards)
	}
}

// checkDir lists a directory and looks up every entry of it.
func checkDir(t testing.TB, s blocks, root unixfs.Root, entries []unixfs.Entry) unixfs.Type {
	t.Helper()
	want := map[string]unixfs.Entry{}
	for _, e := range entries {
		want[e.Name] = e
		if got, err := unixfs.Find(t.Context(), s.load, root.Cid, e.Name); err != nil || got != e {
			t.Fatalf("find %q: %+v, %v; want %+v", e.Name, got, err, e)
		}
	}
	for e, err := range unixfs.List(t.Context(), s.load, root.Cid) {
		if err != nil || want[e.Name] != e {
			t.Fatalf("list: %+v, %v", e, err)
		}
		delete(want, e.Name)
	}
	if len(want) > 0 {
		t.Fatalf("%d entries are not listed", len(want))
	}
	n, err := unixfs.DecodeNode(root.Cid, s[root.Cid])
	if err != nil {
		t.Fatal(err)
	}
	return n.Type
}

// TestDecodesTrickle reads a layout that is not ours.
func TestDecodesTrickle(t *testing.T) {
	store := mdtest.Mock()
	params := helpers.DagBuilderParams{Maxlinks: 3, CidBuilder: cidBuilder(unixfs.V0_2015), Dagserv: store}
	data, err := io.ReadAll(&stream{seed: 3, n: 4000})
	if err != nil {
		t.Fatal(err)
	}
	b, err := params.New(chunk.NewSizeSplitter(bytes.NewReader(data), 7))
	if err != nil {
		t.Fatal(err)
	}
	root, err := trickle.Layout(b)
	if err != nil {
		t.Fatal(err)
	}
	var read func(c cid.Cid) []byte
	read = func(c cid.Cid) []byte {
		nd, err := store.Get(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		n, err := unixfs.DecodeNode(c, nd.RawData())
		if err != nil {
			t.Fatal(err)
		}
		content := bytes.Clone(n.Data)
		for _, l := range n.Links {
			content = append(content, read(l.Cid)...)
		}
		if uint64(len(content)) != n.FileSize {
			t.Fatalf("%s: %d bytes, file size %d", c, len(content), n.FileSize)
		}
		return content
	}
	if !bytes.Equal(read(root.Cid()), data) {
		t.Error("other bytes")
	}
	// As a base of edits it is refused, not taken for balanced.
	p := unixfs.V0_2015
	p.ChunkSize, p.MaxLinks = 7, 3
	load := func(ctx context.Context, c cid.Cid) ([]byte, error) {
		nd, err := store.Get(ctx, c)
		if err != nil {
			return nil, err
		}
		return nd.RawData(), nil
	}
	wantErr(t, unixfs.ErrForeign, func() error {
		_, err := p.EditFile(t.Context(), load, root.Cid(), 5000, nil, discard)
		return err
	})
}
