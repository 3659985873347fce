package linksys_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
)

// lender lends memory that turns to garbage when it is given back.
type lender struct {
	*linktest.Recorder
	t           *testing.T
	out, backed atomic.Int64
}

func (l *lender) Lend(ctx context.Context, c cid.Cid) ([]byte, func(), error) {
	b, err := l.Get(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	b = bytes.Clone(b)
	l.out.Add(1)
	var once atomic.Bool
	return b, func() {
		if once.Swap(true) {
			l.t.Error("given back twice")
		}
		l.backed.Add(1)
		for i := range b {
			b[i] = 0xAA
		}
	}, nil
}

// TestLent: memory goes back to the store while many read, and no reader ever
// sees what becomes of it: not through ReadAt, not through a Reader, not in
// slices that were handed out to be kept, not in an export.
func TestLent(t *testing.T) {
	s := &lender{Recorder: linktest.NewStore(), t: t}
	p := unixfs.V1_2025
	p.ChunkSize, p.MaxLinks = 5000, 4
	data := linktest.Stream(1, 300_000)
	root, err := p.BuildFile(t.Context(), bytes.NewReader(data), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	seed := linktest.NewRand(t).Uint64()
	sys := linktest.NewSystem(t, s, linksys.Options{CacheBytes: 40_000}) // six leaves
	file, err := sys.OpenFile(t.Context(), root.Cid)
	if err != nil {
		t.Fatal(err)
	}
	check := func(how string, off int64, got []byte, err error) error {
		if want := data[off:min(int(off)+len(got), len(data))]; err != nil && err != io.EOF || !bytes.Equal(got, want) {
			return fmt.Errorf("%s at %d: wrong bytes, or %v", how, off, err)
		}
		return nil
	}
	type kept struct {
		off   int64
		views [][]byte
	}
	readers := []func(r *rand.Rand, keep *[]kept) error{
		func(r *rand.Rand, _ *[]kept) error {
			p, off := make([]byte, 1+r.IntN(12_000)), r.Int64N(int64(len(data)))
			n, err := file.ReadAt(t.Context(), p, off)
			return check("ReadAt", off, p[:n], err)
		},
		func(r *rand.Rand, keep *[]kept) error {
			off := r.Int64N(int64(len(data)))
			views, err := file.View(t.Context(), off, 1+r.Int64N(12_000))
			*keep = append(*keep, kept{off, views})
			return check("View", off, bytes.Join(views, nil), err)
		},
		func(r *rand.Rand, _ *[]kept) error {
			var b bytes.Buffer
			_, err := file.Reader(t.Context()).WriteTo(&b)
			return check("Reader", 0, b.Bytes(), err)
		},
		func(r *rand.Rand, _ *[]kept) error {
			sel, err := sys.Select(t.Context(), root.Cid, linksys.Selection{})
			if err != nil {
				return err
			}
			return sel.Blocks(t.Context(), func(c cid.Cid, block []byte) error {
				if got := linktest.MustCid(t, c.Prefix().Codec, block); got != c {
					return fmt.Errorf("export: the bytes of %s are those of %s", c, got)
				}
				return nil
			})
		},
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(g)))
			var keep []kept
			for range 30 {
				if err := readers[(g+r.IntN(2))%len(readers)](r, &keep); err != nil {
					t.Error(err)
					return
				}
			}
			for _, k := range keep {
				if err := check("kept View", k.off, bytes.Join(k.views, nil), nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d times lent, %d given back", s.out.Load(), s.backed.Load())
	if s.backed.Load() < s.out.Load()/4 {
		t.Error("hardly any memory was given back")
	}
}
