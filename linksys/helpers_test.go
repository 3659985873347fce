package linksys_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"

	chunk "github.com/ipfs/boxo/chunker"
	"github.com/ipfs/boxo/ipld/unixfs/importer/balanced"
	"github.com/ipfs/boxo/ipld/unixfs/importer/helpers"
	"github.com/ipfs/boxo/ipld/unixfs/importer/trickle"
	"github.com/ipfs/go-cid"
	ipld "github.com/ipfs/go-ipld-format"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys"
	"cafs/linksys/linktest"
)

// boxoDAG lets boxo's importers put into our store.
type boxoDAG struct {
	ipld.DAGService
	s *linktest.Recorder
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

func (f foreign) build(t testing.TB, s *linktest.Recorder, data []byte) cid.Cid {
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
