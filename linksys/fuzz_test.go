package linksys_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/linksys/linktest"
)

// FuzzNode: a dag-pb block of any bytes, which links to itself as far as that is
// possible (to one file and one directory), can be used in every way there is,
// and each use ends soon with a result or an error.
func FuzzNode(f *testing.F) {
	f.Add(linktest.FileNode(nil, nil, []byte("data"), 4))
	f.Add(linktest.DirNode([]byte{8, 1}, "a", "b"))
	f.Add(linktest.DirNode(linktest.HamtData([]byte{3}, 0x22, 256), "00a", "01"))
	f.Add(linktest.DirNode(linktest.HamtData([]byte{1}, 0x22, 8), "0a"))
	f.Add(linktest.DirNode([]byte{8, 4, 0x12, 1, 'x'}))
	f.Add(linktest.DirNode([]byte{8, 3}, ""))
	f.Add(linktest.FileNode([]cid.Cid{cid.MustParse("bafkqaaa")}, []uint64{0}, []byte("x"), 1))
	f.Fuzz(func(t *testing.T, block []byte) {
		s := linktest.NewStore()
		sys := linktest.NewSystem(t, s, linksys.Options{})
		c := s.Save(t, cid.DagProtobuf, block)
		outer := s.Save(t, cid.DagProtobuf, linktest.ShardNode([]byte{8, 1}, c, "x"))
		around := s.Save(t, cid.DagProtobuf, linktest.FileNode([]cid.Cid{c, c}, []uint64{5, 5}, nil, 10))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for _, c := range []cid.Cid{c, outer, around} {
			use(ctx, t, sys, c)
		}
		if ctx.Err() != nil {
			t.Fatal("took longer than 10 s")
		}
	})
}

func use(ctx context.Context, t *testing.T, sys *linksys.System, c cid.Cid) {
	info, serr := sys.Stat(ctx, c)
	if file, err := sys.OpenFile(ctx, c); err == nil {
		if serr != nil || info.Size != file.Size() {
			t.Fatalf("stat says %d, %v; the file has %d", info.Size, serr, file.Size())
		}
		for _, off := range []int64{0, file.Size() / 2, file.Size() - 1} {
			p := make([]byte, 100)
			n, err := file.ReadAt(ctx, p, off)
			if err == nil && n < len(p) {
				t.Fatalf("read %d of %d bytes without an error", n, len(p))
			}
			_, _ = file.NextData(ctx, off)
			_, _ = file.NextHole(ctx, off)
		}
	}
	n := 0
	for e, err := range sys.ReadDir(ctx, c) {
		if n++; err != nil || n > 1000 {
			break
		}
		found, err := sys.LookupDir(ctx, c, e.Name)
		if err != nil || found.Name != e.Name {
			t.Fatalf("%q is listed, and looking it up gives %v", e.Name, err)
		}
	}
	for _, path := range []string{"x", "x/a", "a", "Links/0/Hash"} {
		if target, err := sys.Resolve(ctx, c, path); err == nil && !target.Cid.Defined() {
			t.Fatalf("%s: no error and no target", path)
		}
	}
	var sink discard
	for _, o := range []linksys.Selection{{}, {Scope: linksys.ScopeEntity}} {
		if sel, err := sys.Select(ctx, c, o); err == nil {
			_ = sel.Blocks(ctx, func(cid.Cid, []byte) error { return nil })
		}
	}
	if err := sys.Complete(ctx, c); err != nil && !errors.Is(err, linksys.ErrIncomplete) {
		t.Fatal(err)
	}
	_ = sys.WriteJSON(ctx, &sink, linksys.Target{Cid: c})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
