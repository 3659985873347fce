package linksys_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	chunk "github.com/ipfs/boxo/chunker"
	"github.com/ipfs/boxo/ipld/unixfs/importer/balanced"
	"github.com/ipfs/boxo/ipld/unixfs/importer/helpers"
	"github.com/ipfs/boxo/ipld/unixfs/importer/trickle"
	"github.com/ipfs/go-cid"
	ipld "github.com/ipfs/go-ipld-format"
	"github.com/ipld/go-ipld-prime/codec/dagjson"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/node/basicnode"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/store"
)

// stream returns n bytes of the generator described in unixfs/testdata/cids.tsv.
func stream(seed uint64, n int) []byte {
	b := make([]byte, n+8)
	for i := 0; i < n; i += 8 {
		binary.BigEndian.PutUint64(b[i:], (uint64(i/8)+1+seed)*0x9E3779B97F4A7C15)
	}
	return b[:n]
}

// recorder is a store that counts and can lose or fail what is asked of it.
type recorder struct {
	*store.Mem
	mu     sync.Mutex
	gets   map[cid.Cid]int
	ranges int
	lost   map[cid.Cid]error
}

func newStore() *recorder {
	return &recorder{Mem: store.NewMem(), gets: map[cid.Cid]int{}, lost: map[cid.Cid]error{}}
}

func (r *recorder) Get(ctx context.Context, c cid.Cid) ([]byte, error) {
	r.mu.Lock()
	r.gets[c]++
	err := r.lost[c]
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return r.Mem.Get(ctx, c)
}

func (r *recorder) GetRange(ctx context.Context, c cid.Cid, p []byte, off int64) (int, error) {
	r.mu.Lock()
	r.ranges++
	err := r.lost[c]
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return r.Mem.GetRange(ctx, c, p, off)
}

// put stores a block of a codec without looking at it.
func (r *recorder) put(t testing.TB, codec uint64, data []byte) cid.Cid {
	t.Helper()
	c, err := cid.V1Builder{Codec: codec, MhType: mh.SHA2_256}.Sum(data)
	if err == nil {
		err = r.Put(context.Background(), c, data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (r *recorder) emit(b unixfs.Block) error { return r.Put(context.Background(), b.Cid, b.Data) }

// lose makes a block missing.
func (r *recorder) lose(c cid.Cid) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost[c] = fmt.Errorf("store: get %s: %w", c, store.ErrNotFound)
}

// find undoes lose.
func (r *recorder) find(c cid.Cid) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lost, c)
}

// reads counts the blocks that were loaded.
func (r *recorder) reads() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.gets)
}

func newSystem(t testing.TB, s linksys.Blocks, o linksys.Options) *linksys.System {
	sys := linksys.New(s, o)
	t.Cleanup(func() {
		if err := sys.Close(); err != nil {
			t.Error(err)
		}
	})
	return sys
}

// boxoDAG lets boxo's importers put into our store.
type boxoDAG struct {
	ipld.DAGService
	s *recorder
}

func (d boxoDAG) Add(ctx context.Context, n ipld.Node) error {
	if n.Cid().Prefix().MhType == mh.IDENTITY {
		return nil
	}
	return d.s.Put(ctx, n.Cid(), n.RawData())
}

func (d boxoDAG) AddMany(ctx context.Context, ns []ipld.Node) error {
	for _, n := range ns {
		if err := d.Add(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// foreign is a layout other tools make.
type foreign struct {
	trickle bool
	raw     bool
	v0      bool
	chunk   int64
	links   int
}

func (f foreign) build(t testing.TB, s *recorder, data []byte) cid.Cid {
	t.Helper()
	p := helpers.DagBuilderParams{Dagserv: boxoDAG{s: s}, Maxlinks: f.links, RawLeaves: f.raw}
	if !f.v0 {
		p.CidBuilder = cid.V1Builder{Codec: cid.DagProtobuf, MhType: mh.SHA2_256}
	}
	b, err := p.New(chunk.NewSizeSplitter(bytes.NewReader(data), f.chunk))
	if err != nil {
		t.Fatal(err)
	}
	layout := balanced.Layout
	if f.trickle {
		layout = trickle.Layout
	}
	n, err := layout(b)
	if err != nil {
		t.Fatal(err)
	}
	return n.Cid()
}

func randomForeign(r *rand.Rand) foreign {
	return foreign{
		trickle: r.IntN(2) == 0, raw: r.IntN(2) == 0, v0: r.IntN(2) == 0,
		chunk: 1 + r.Int64N(300), links: 2 + r.IntN(9),
	}
}

func readAll(f *linksys.File) ([]byte, error) {
	return io.ReadAll(f.Reader(context.Background()))
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// logSink collects log lines.
type logSink struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logSink) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logSink) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logSink) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func mustHash(t testing.TB, code uint64, data []byte) mh.Multihash {
	t.Helper()
	h, err := mh.Sum(data, code, -1)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func parseJSON(t testing.TB, s string) datamodel.Node {
	t.Helper()
	nb := basicnode.Prototype.Any.NewBuilder()
	if err := dagjson.Decode(nb, strings.NewReader(s)); err != nil {
		t.Fatal(err)
	}
	return nb.Build()
}
