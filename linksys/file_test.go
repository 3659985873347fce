package linksys_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	"github.com/ipfs/go-unixfsnode"
	dagpb "github.com/ipld/go-codec-dagpb"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/linking"
	cidlink "github.com/ipld/go-ipld-prime/linking/cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys"
	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
	"cafs/store"
)

// TestForeignLayouts reads files that boxo laid out in every way it can, whole
// and in pieces, against the bytes they were made of, and go-unixfsnode as a
// second reader.
func TestForeignLayouts(t *testing.T) {
	r := linktest.NewRand(t)
	for range 150 {
		f := randomForeign(r)
		data := make([]byte, r.IntN(20000))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		if r.IntN(3) == 0 { // holes
			clear(data[len(data)/3 : len(data)*2/3])
		}
		s := linktest.NewStore()
		c := f.build(t, s, data)
		t.Run(fmt.Sprintf("%+v,%d bytes", f, len(data)), func(t *testing.T) {
			sys := linktest.NewSystem(t, s, linksys.Options{CacheBytes: 1 + r.Int64N(1<<16)})
			file, err := sys.OpenFile(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			checkFile(t, r, file, data)
			if got := secondReader(t, sys, c); !bytes.Equal(got, data) {
				t.Error("go-unixfsnode reads other bytes through our LinkSystem")
			}
		})
	}
}

func checkFile(t *testing.T, r *rand.Rand, file *linksys.File, data []byte) {
	t.Helper()
	ctx := t.Context()
	if file.Size() != int64(len(data)) {
		t.Fatalf("size %d, want %d", file.Size(), len(data))
	}
	if got, err := readAll(file); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("whole: %v, equal %v", err, bytes.Equal(got, data))
	}
	for range 30 {
		off := r.Int64N(int64(len(data)) + 10)
		p := make([]byte, r.IntN(600))
		n, err := file.ReadAt(ctx, p, off)
		want := data[min(off, int64(len(data))):]
		if len(want) > len(p) {
			want = want[:len(p)]
		}
		if !bytes.Equal(p[:n], want) || (n < len(p) || off >= int64(len(data))) != errors.Is(err, io.EOF) {
			t.Fatalf("ReadAt(%d, %d): %d bytes, %v", len(p), off, n, err)
		}
		views, err := file.View(ctx, off, int64(len(p)))
		if got := bytes.Join(views, nil); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("View(%d, %d): %d bytes, %v", off, len(p), len(got), err)
		}
	}
	checkLeaves(t, file, data)
	checkHoles(t, file, data)
}

// checkLeaves: the leaves tile the file, without gap or overlap.
func checkLeaves(t *testing.T, file *linksys.File, data []byte) {
	t.Helper()
	for off := int64(0); off < int64(len(data)); {
		c, start, length, err := file.Leaf(t.Context(), off)
		if err != nil || start != off || length <= 0 || !c.Defined() {
			t.Fatalf("Leaf(%d) = %s, %d, %d, %v", off, c, start, length, err)
		}
		c2, start2, length2, err := file.Leaf(t.Context(), off+length-1)
		if c2 != c || start2 != start || length2 != length || err != nil {
			t.Fatalf("Leaf(%d) differs from Leaf(%d)", off+length-1, off)
		}
		off += length
	}
	if _, _, _, err := file.Leaf(t.Context(), int64(len(data))); !errors.Is(err, io.EOF) {
		t.Fatalf("Leaf past the end: %v", err)
	}
}

// checkHoles: what is called a hole is zeros, and data and holes alternate to the end.
func checkHoles(t *testing.T, file *linksys.File, data []byte) {
	t.Helper()
	end := int64(len(data))
	for off, steps := int64(0), 0; off < end; steps++ {
		if steps > len(data)+2 {
			t.Fatal("the search for holes does not end")
		}
		from, err := file.NextData(t.Context(), off)
		if err != nil || from < off || from > end {
			t.Fatalf("NextData(%d) = %d, %v", off, from, err)
		}
		if len(bytes.Trim(data[off:from], "\x00")) != 0 {
			t.Fatalf("[%d, %d) is called a hole and is none", off, from)
		}
		off, err = file.NextHole(t.Context(), from)
		if err != nil || off < from || off == from && from < end || off > end {
			t.Fatalf("NextHole(%d) = %d, %v", from, off, err)
		}
	}
}

// secondReader reads a file with go-unixfsnode through the LinkSystem.
func secondReader(t *testing.T, sys *linksys.System, c cid.Cid) []byte {
	t.Helper()
	ls := sys.LinkSystem()
	if c.Prefix().Codec == cid.Raw {
		_, b, err := ls.LoadPlusRaw(linking.LinkContext{}, cidlink.Link{Cid: c}, dagpb.Type.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	n, err := ls.Load(linking.LinkContext{}, cidlink.Link{Cid: c}, dagpb.Type.PBNode)
	if err != nil {
		t.Fatal(err)
	}
	if n, err = unixfsnode.Reify(linking.LinkContext{}, n, &ls); err != nil {
		t.Fatal(err)
	}
	r, err := n.(datamodel.LargeBytesNode).AsLargeBytes()
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestWrongSizes: whatever a node claims about its children and is not so, is an
// error at the latest when the bytes are read, and never zeros.
func TestWrongSizes(t *testing.T) {
	s := linktest.NewStore()
	leaf := s.Save(t, cid.Raw, bytes.Repeat([]byte("x"), 1000))
	wrapped := s.Save(t, cid.DagProtobuf, linktest.FileNode(nil, nil, bytes.Repeat([]byte("y"), 1000), 1000))
	inner := s.Save(t, cid.DagProtobuf, linktest.FileNode([]cid.Cid{leaf, leaf}, []uint64{1000, 1000}, nil, 2000))
	dir := s.Save(t, cid.DagProtobuf, []byte{0x0a, 2, 8, 1})
	missing := linktest.MustCid(t, cid.Raw, []byte("never stored"))
	for name, tc := range map[string]struct {
		node []byte
		want error
	}{
		"leaf shorter":    {linktest.FileNode([]cid.Cid{leaf}, []uint64{1001}, nil, 1001), unixfs.ErrMalformed},
		"leaf longer":     {linktest.FileNode([]cid.Cid{leaf}, []uint64{999}, nil, 999), unixfs.ErrMalformed},
		"wrapped shorter": {linktest.FileNode([]cid.Cid{wrapped}, []uint64{1001}, nil, 1001), unixfs.ErrMalformed},
		"wrapped longer":  {linktest.FileNode([]cid.Cid{wrapped}, []uint64{999}, nil, 999), unixfs.ErrMalformed},
		"node shorter":    {linktest.FileNode([]cid.Cid{inner}, []uint64{5000}, nil, 5000), unixfs.ErrMalformed},
		"node longer":     {linktest.FileNode([]cid.Cid{inner}, []uint64{500}, nil, 500), unixfs.ErrMalformed},
		"sum":             {linktest.FileNode([]cid.Cid{leaf}, []uint64{1000}, nil, 2000), unixfs.ErrMalformed},
		"no sizes":        {linktest.FileNode([]cid.Cid{leaf}, nil, nil, 1000), unixfs.ErrMalformed},
		"too many sizes":  {linktest.FileNode([]cid.Cid{leaf}, []uint64{1000, 5}, nil, 1005), unixfs.ErrMalformed},
		"overflow":        {linktest.FileNode([]cid.Cid{leaf, leaf}, []uint64{1 << 63, 1 << 63}, nil, 0), unixfs.ErrMalformed},
		"negative":        {linktest.FileNode([]cid.Cid{leaf}, []uint64{1 << 63}, nil, 1<<63), unixfs.ErrMalformed},
		"a directory":     {linktest.FileNode([]cid.Cid{dir}, []uint64{10}, nil, 10), unixfs.ErrMalformed},
		"missing leaf":    {linktest.FileNode([]cid.Cid{missing}, []uint64{12}, nil, 12), store.ErrNotFound},
		"other codec":     {linktest.FileNode([]cid.Cid{linktest.MustCid(t, cid.DagCBOR, []byte{0xa0})}, []uint64{1}, nil, 1), store.ErrNotFound},
		"truncated":       {linktest.FileNode([]cid.Cid{leaf}, []uint64{1000}, nil, 1000)[:20], unixfs.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.Save(t, cid.DagProtobuf, tc.node)
			for _, piece := range []int{1, 100, 100000} {
				sys := linktest.NewSystem(t, s, linksys.Options{})
				f, err := sys.OpenFile(t.Context(), c)
				if err == nil {
					p := make([]byte, piece)
					_, err = f.ReadAt(t.Context(), p, 0)
				}
				if !errors.Is(err, tc.want) {
					t.Errorf("reading %d bytes: got %v, want %v", piece, err, tc.want)
				}
				if errors.Is(tc.want, store.ErrNotFound) && !strings.Contains(fmt.Sprint(err), "ba") {
					t.Errorf("the error names no CID: %v", err)
				}
			}
		})
	}
}

// TestDeepAndShared: bombs end in bounded time, honest depth is read.
func TestDeepAndShared(t *testing.T) {
	s := linktest.NewStore()
	c, size := s.Save(t, cid.Raw, []byte("z")), uint64(1)
	for range 62 { // a file of 2^62 bytes in 63 blocks
		c, size = s.Save(t, cid.DagProtobuf, linktest.FileNode([]cid.Cid{c, c}, []uint64{size, size}, nil, 2*size)), 2*size
	}
	sys := linktest.NewSystem(t, s, linksys.Options{})
	f, err := sys.OpenFile(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var p [3]byte
	if _, err := f.ReadAt(t.Context(), p[:], 1<<61-1); err != nil || string(p[:]) != "zzz" {
		t.Errorf("in the middle of 2^62 bytes: %q, %v", p, err)
	}
	if off, err := f.NextHole(t.Context(), 5); err != nil || off != f.Size() {
		t.Errorf("NextHole = %d, %v", off, err)
	}
	for range 200 { // a chain of nodes with one child each
		c = s.Save(t, cid.DagProtobuf, linktest.FileNode([]cid.Cid{c}, []uint64{size}, nil, size))
	}
	if f, err = sys.OpenFile(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	_, err = f.ReadAt(t.Context(), p[:], 0)
	linktest.WantErr(t, "chain", err, linksys.ErrBudget)
	_, err = f.NextHole(t.Context(), 0)
	linktest.WantErr(t, "chain, holes", err, linksys.ErrBudget)
}

// TestSparse: a file of 8 EiB is searched for data by its nodes alone.
func TestSparse(t *testing.T) {
	s := linktest.NewStore()
	p := unixfs.V1_2025
	data := bytes.Repeat([]byte("d"), int(p.ChunkSize))
	leaf, err := p.Leaf(data)
	if err == nil {
		err = s.Emit(leaf)
	}
	if err != nil {
		t.Fatal(err)
	}
	const chunk = int64(5_000_000_000) // index of the only chunk of data
	root, err := p.EditFile(t.Context(), s.Get, cid.Undef, 1<<63-1, func(yield func(unixfs.Run, error) bool) {
		yield(unixfs.Run{First: chunk, Count: 1, Leaf: unixfs.LeafRoot(leaf, len(data))}, nil)
	}, s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	sys := linktest.NewSystem(t, s, linksys.Options{})
	f, err := sys.OpenFile(t.Context(), root.Cid)
	if err != nil {
		t.Fatal(err)
	}
	at := chunk * p.ChunkSize
	for _, q := range []struct {
		next      func(context.Context, int64) (int64, error)
		off, want int64
	}{
		{f.NextData, 0, at}, {f.NextData, at + 7, at + 7}, {f.NextData, at + p.ChunkSize, f.Size()},
		{f.NextHole, 0, 0}, {f.NextHole, at, at + p.ChunkSize}, {f.NextHole, at + p.ChunkSize + 1, at + p.ChunkSize + 1},
	} {
		if got, err := q.next(t.Context(), q.off); err != nil || got != q.want {
			t.Errorf("next from %d: %d, %v, want %d", q.off, got, err, q.want)
		}
	}
	s.Lose(linktest.MustCid(t, cid.Raw, make([]byte, p.ChunkSize))) // zeros are known by their name
	b := make([]byte, 10)
	if _, err := f.ReadAt(t.Context(), b, at-5); err != nil || string(b) != "\x00\x00\x00\x00\x00ddddd" {
		t.Errorf("across the edge: %q, %v", b, err)
	}
}

// TestReadPatterns: small reads here and there load no leaf; a reader
// that goes through the file loads each leaf once, also when many do.
func TestReadPatterns(t *testing.T) {
	s := linktest.NewStore()
	data := linktest.Stream(3, 24<<20)
	root, err := unixfs.V1_2025.BuildFile(t.Context(), bytes.NewReader(data), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	sys := linktest.NewSystem(t, s, linksys.Options{})
	f, err := sys.OpenFile(t.Context(), root.Cid)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4096)
	for i := range int64(24) {
		off := (i * 7 % 24) << 20
		if _, err := f.ReadAt(t.Context(), p, off+12345); err != nil || !bytes.Equal(p, data[off+12345:][:len(p)]) {
			t.Fatalf("at %d: %v", off, err)
		}
	}
	if s.Reads() != 1 || s.Ranges != 24 {
		t.Errorf("24 random reads made %d gets and %d range reads, want 1 and 24", s.Reads(), s.Ranges)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var got bytes.Buffer
			if _, err := f.Reader(t.Context()).WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), data) {
				t.Errorf("sequential: %v", err)
			}
		})
	}
	wg.Wait()
	sys.Close()
	for c, n := range s.Gets {
		if n != 1 {
			t.Errorf("%s was loaded %d times", c, n)
		}
	}
}

// TestLostBlock: a block that goes missing is an error for the reads that need
// it, and for no others.
func TestLostBlock(t *testing.T) {
	s := linktest.NewStore()
	data := linktest.Stream(4, 8<<20)
	root, err := unixfs.V1_2025.BuildFile(t.Context(), bytes.NewReader(data), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	sys := linktest.NewSystem(t, s, linksys.Options{})
	f, err := sys.OpenFile(t.Context(), root.Cid)
	if err != nil {
		t.Fatal(err)
	}
	bad, _, _, err := f.Leaf(t.Context(), 3<<20)
	if err != nil {
		t.Fatal(err)
	}
	s.Lose(bad)
	got, err := readAll(f)
	linktest.WantErr(t, "sequential", err, store.ErrNotFound)
	if !strings.Contains(err.Error(), bad.String()) || !bytes.Equal(got, data[:3<<20]) {
		t.Errorf("%d bytes, then %v", len(got), err)
	}
	p := make([]byte, 10)
	_, err = f.ReadAt(t.Context(), p, 3<<20+5)
	linktest.WantErr(t, "small", err, store.ErrNotFound)
	if _, err := f.ReadAt(t.Context(), p, 4<<20); err != nil {
		t.Error(err)
	}
}

// TestIdentity: data carried in CIDs is read without a store, up to a limit.
func TestIdentity(t *testing.T) {
	s := linktest.NewStore()
	sys := linktest.NewSystem(t, s, linksys.Options{})
	id := func(codec uint64, b []byte) cid.Cid {
		h, err := mh.Sum(b, mh.IDENTITY, -1)
		if err != nil {
			t.Fatal(err)
		}
		return cid.NewCidV1(codec, h)
	}
	hello := id(cid.Raw, []byte("hello "))
	world := id(cid.DagProtobuf, linktest.FileNode(nil, nil, []byte("world"), 5))
	c := s.Save(t, cid.DagProtobuf, linktest.FileNode([]cid.Cid{hello, world}, []uint64{6, 5}, []byte("> "), 13))
	for c, want := range map[cid.Cid]string{hello: "hello ", world: "world", c: "> hello world"} {
		f, err := sys.OpenFile(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readAll(f); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", c, got, err)
		}
	}
	_, err := sys.OpenFile(t.Context(), id(cid.Raw, make([]byte, 129)))
	linktest.WantErr(t, "long identity CID", err, unixfs.ErrMalformed)
}

// TestCancel: a reader can give up while others go on.
func TestCancel(t *testing.T) {
	s := linktest.NewStore()
	root, err := unixfs.V1_2025.BuildFile(t.Context(), bytes.NewReader(linktest.Stream(5, 3<<20)), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	sys := linktest.NewSystem(t, s, linksys.Options{})
	f, err := sys.OpenFile(t.Context(), root.Cid)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.NextHole(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("NextHole: %v", err)
	}
	if _, err := sys.Resolve(ctx, root.Cid, "Links/0/Hash"); !errors.Is(err, context.Canceled) {
		t.Errorf("Resolve: %v", err)
	}
}

// gate is a store in which no leaf arrives before several were asked for.
type gate struct {
	*linktest.Recorder
	mu    sync.Mutex
	open  chan struct{} // nil: not yet in use
	need  int
	asked map[cid.Cid]struct{}
}

func (g *gate) Get(ctx context.Context, c cid.Cid) ([]byte, error) {
	g.mu.Lock()
	open := g.open
	if open != nil && len(g.asked) < g.need {
		if g.asked[c] = struct{}{}; len(g.asked) == g.need {
			close(open)
		}
	}
	g.mu.Unlock()
	if open != nil {
		select {
		case <-open:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return g.Recorder.Get(ctx, c)
}

func (g *gate) use() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

// TestReadAhead: a sequential reader has three leaves fetched at the same time,
// raw ones and others, and a single large read too.
func TestReadAhead(t *testing.T) {
	for _, p := range []unixfs.Profile{unixfs.V1_2025, unixfs.V0_2015} {
		for _, piece := range []int{128 << 10, 12 << 20} {
			g := &gate{Recorder: linktest.NewStore(), need: 3, asked: map[cid.Cid]struct{}{}}
			data := linktest.Stream(6, 16<<20)
			root, err := p.BuildFile(t.Context(), bytes.NewReader(data), g.Emit)
			if err != nil {
				t.Fatal(err)
			}
			sys := linktest.NewSystem(t, g, linksys.Options{})
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			f, err := sys.OpenFile(ctx, root.Cid)
			if err != nil {
				t.Fatal(err)
			}
			if piece > maxFirst {
				g.use()
			}
			buf := make([]byte, piece)
			for off := 0; off < len(data); off += piece {
				n, err := f.ReadAt(ctx, buf, int64(off))
				if err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(buf[:n], data[off:off+n]) {
					t.Fatalf("pieces of %d: at %d: %v (%d leaves asked for)", piece, off, err, len(g.asked))
				}
				if off == 0 && piece < maxFirst {
					if n := g.Reads(); n > 2 { // the root, and the leaf if it had to be whole
						t.Errorf("the first read asked for %d blocks", n)
					}
					g.use()
				}
			}
		}
	}
}

// maxFirst is the longest read, in bytes, that alone makes no sequence.
const maxFirst = 2 << 20
