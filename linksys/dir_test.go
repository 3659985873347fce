package linksys_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/ipfs/go-cid"
	"github.com/ipfs/go-unixfsnode"
	dagpb "github.com/ipld/go-codec-dagpb"
	"github.com/ipld/go-ipld-prime/linking"
	cidlink "github.com/ipld/go-ipld-prime/linking/cid"

	"cafs/linksys"
	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
	"cafs/store"
)

// TestDirectories lists and searches flat and sharded directories of several
// fan-outs, with go-unixfsnode as a second opinion on the sharded ones.
func TestDirectories(t *testing.T) {
	for _, tc := range []struct {
		n, fanout, limit int
	}{{0, 256, 1}, {1, 256, 1 << 18}, {300, 256, 1 << 18}, {1, 8, 1}, {2000, 8, 1}, {2000, 16, 1}, {3000, 256, 1}, {3000, 1024, 1}} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			s := linktest.NewStore()
			want := linktest.Entries(t, s, tc.n)
			p := unixfs.V1_2025
			p.Fanout, p.DirLimit = tc.fanout, tc.limit
			root, err := p.BuildDir(t.Context(), linktest.Seq(want), s.Emit)
			if err != nil {
				t.Fatal(err)
			}
			sys := linktest.NewSystem(t, s, linksys.Options{})
			checkDir(t, sys, root.Cid, want)
			ls := sys.LinkSystem()
			n, err := ls.Load(linking.LinkContext{}, cidlink.Link{Cid: root.Cid}, dagpb.Type.PBNode)
			if err != nil {
				t.Fatal(err)
			}
			if n, err = unixfsnode.Reify(linking.LinkContext{}, n, &ls); err != nil {
				t.Fatal(err)
			}
			if n.Length() != int64(tc.n) {
				t.Errorf("go-unixfsnode finds %d entries", n.Length())
			}
		})
	}
}

func checkDir(t *testing.T, sys *linksys.System, c cid.Cid, want map[string]unixfs.Entry) {
	t.Helper()
	left := maps.Clone(want)
	for e, err := range sys.ReadDir(t.Context(), c) {
		if err != nil {
			t.Fatal(err)
		}
		if left[e.Name] != e.Entry || e.Type != linksys.Regular {
			t.Fatalf("listed %+v, want %+v", e, left[e.Name])
		}
		delete(left, e.Name)
	}
	if len(left) > 0 {
		t.Errorf("%d entries were not listed", len(left))
	}
	for name, w := range want {
		if e, err := sys.LookupDir(t.Context(), c, name); err != nil || e.Entry != w {
			t.Fatalf("lookup %q: %+v, %v", name, e, err)
		}
		_, err := sys.LookupDir(t.Context(), c, name+"!")
		linktest.WantErr(t, "missing name", err, fs.ErrNotExist)
	}
	for _, name := range []string{"", ".", "..", "a/b", "nul\x00", strings.Repeat("n", 256), "no such entry"} {
		_, err := sys.LookupDir(t.Context(), c, name)
		linktest.WantErr(t, "lookup of "+name, err, fs.ErrNotExist)
	}
}

// TestLookupReadsThePath: one name of a large directory costs one node a level.
func TestLookupReadsThePath(t *testing.T) {
	s := linktest.NewStore()
	want := linktest.Entries(t, s, 20000)
	root, err := unixfs.V1_2025.BuildDir(t.Context(), linktest.Seq(want), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	sys := linktest.NewSystem(t, s, linksys.Options{})
	for name := range want {
		if _, err := sys.LookupDir(t.Context(), root.Cid, name); err != nil {
			t.Fatal(err)
		}
		break
	}
	if n := s.Reads(); n > 3 {
		t.Errorf("one look-up read %d nodes", n)
	}
	clear(s.Gets)
	n := 0
	for range sys.ReadDir(t.Context(), root.Cid) {
		if n++; n == 10 {
			break
		}
	}
	sys.Close()
	if len(s.Gets) > 40 {
		t.Errorf("ten entries read %d nodes", len(s.Gets))
	}
}

// TestMissingIsNotAbsent: a missing block never looks like a missing name, in
// whatever way it is asked for.
func TestMissingIsNotAbsent(t *testing.T) {
	s := linktest.NewStore()
	want := linktest.Entries(t, s, 3000)
	p := unixfs.V1_2025
	p.DirLimit = 1
	sub, err := p.BuildDir(t.Context(), linktest.Seq(want), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	root, err := p.BuildDir(t.Context(), linktest.Seq(map[string]unixfs.Entry{"sub": {Name: "sub", Cid: sub.Cid}}), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	rootNode, err := unixfs.DecodeNode(sub.Cid, mustGet(t, s, sub.Cid))
	if err != nil {
		t.Fatal(err)
	}
	shards := slices.Collect(rootNode.Shards())
	for _, lost := range []cid.Cid{root.Cid, sub.Cid, shards[len(shards)/2].Cid} {
		s.Lose(lost)
		sys := linktest.NewSystem(t, s, linksys.Options{})
		failed, absent := 0, 0
		for name := range want {
			for _, path := range []string{"sub/" + name, "sub/" + name + "?"} {
				_, err := sys.Resolve(t.Context(), root.Cid, path)
				switch {
				case errors.Is(err, store.ErrNotFound) && !errors.Is(err, fs.ErrNotExist):
					failed++
					if !strings.Contains(err.Error(), lost.String()) {
						t.Fatalf("error does not name the block: %v", err)
					}
				case errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(path, "?"):
					absent++
				case err != nil || strings.HasSuffix(path, "?"):
					t.Fatalf("%s: %v", path, err)
				}
			}
		}
		if failed == 0 || lost == shards[len(shards)/2].Cid && (failed > len(want) || absent == 0) {
			t.Errorf("without %s: %d failures, %d absent of %d", lost, failed, absent, len(want))
		}
		var err error
		for _, err = range sys.ReadDir(t.Context(), sub.Cid) {
		}
		if lost != root.Cid {
			linktest.WantErr(t, "listing", err, store.ErrNotFound)
		}
		s.Find(lost)
	}
}

func mustGet(t testing.TB, s *linktest.Recorder, c cid.Cid) []byte {
	t.Helper()
	b, err := s.Mem.Get(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestHostileNames: names no file system can have are hidden and reported,
// and cannot be asked for; the others stay.
func TestHostileNames(t *testing.T) {
	long := strings.Repeat("n", 300)
	names := []string{"good", "..", ".", "a/b", "", "nul\x00", long, "twice", "twice", "also good"}
	s := linktest.NewStore()
	c := s.Save(t, cid.DagProtobuf, linktest.DirNode([]byte{8, 1}, names...))
	var log logSink
	sys := linktest.NewSystem(t, s, linksys.Options{Logger: log.logger()})
	var got []string
	for e, err := range sys.ReadDir(t.Context(), c) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Name)
	}
	if want := []string{"good", "twice", "also good"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	if n := strings.Count(log.String(), "directory entry hidden"); n != 7 {
		t.Errorf("%d entries reported, want 7:\n%s", n, log.String())
	}
	for _, name := range []string{"..", ".", "a/b", "", "nul\x00", long} {
		_, err := sys.LookupDir(t.Context(), c, name)
		linktest.WantErr(t, fmt.Sprintf("lookup of %.9q", name), err, fs.ErrNotExist)
	}
	_, err := sys.Resolve(t.Context(), c, "a/b")
	linktest.WantErr(t, "path a/b", err, fs.ErrNotExist)
	_, err = sys.Resolve(t.Context(), c, "../x")
	linktest.WantErr(t, "path ..", err, fs.ErrNotExist)
}

// TestHostileShards: each gives an error from listing and look-up, in bounded time.
func TestHostileShards(t *testing.T) {
	s := linktest.NewStore()
	self := s.Save(t, cid.DagProtobuf, linktest.DirNode(linktest.HamtData([]byte{1}, 0x22, 256), "00name"))
	for range 12 { // deeper than a name's hash
		self = s.Save(t, cid.DagProtobuf, linktest.ShardNode(linktest.HamtData([]byte{1}, 0x22, 256), self, "00"))
	}
	full := slices.Repeat([]byte{0xff}, 32)
	slots := make([]string, 256)
	for i := range slots {
		slots[i] = fmt.Sprintf("%02X", i)
	}
	bomb := s.Save(t, cid.DagProtobuf, linktest.DirNode(linktest.HamtData(nil, 0x22, 256)))
	for range 8 { // 2^64 empty shards in nine blocks
		bomb = s.Save(t, cid.DagProtobuf, linktest.ShardNode(linktest.HamtData(full, 0x22, 256), bomb, slots...))
	}
	for name, c := range map[string]cid.Cid{
		"deep":         self,
		"bomb":         bomb,
		"fan-out 0":    s.Save(t, cid.DagProtobuf, linktest.DirNode(linktest.HamtData(nil, 0x22, 0))),
		"fan-out 3":    s.Save(t, cid.DagProtobuf, linktest.DirNode(linktest.HamtData(nil, 0x22, 3))),
		"fan-out 2^20": s.Save(t, cid.DagProtobuf, linktest.DirNode(linktest.HamtData(nil, 0x22, 1<<20))),
		"other hash":   s.Save(t, cid.DagProtobuf, linktest.DirNode(linktest.HamtData(nil, 0x12, 256))),
		"bitfield":     s.Save(t, cid.DagProtobuf, linktest.DirNode(linktest.HamtData([]byte{3}, 0x22, 256), "00x")),
		"wrong slot":   s.Save(t, cid.DagProtobuf, linktest.DirNode(linktest.HamtData([]byte{1}, 0x22, 256), "01x")),
		"other child":  s.Save(t, cid.DagProtobuf, linktest.DirNode(linktest.HamtData([]byte{1}, 0x22, 256), "00")),
		"garbage":      s.Save(t, cid.DagProtobuf, []byte("garbage")),
	} {
		t.Run(name, func(t *testing.T) {
			sys := linktest.NewSystem(t, s, linksys.Options{})
			var err error
			n := 0
			for _, err = range sys.ReadDir(t.Context(), c) {
				n++
			}
			if err == nil || n != 1 {
				t.Errorf("listed %d entries, then %v", n, err)
			}
			if name != "bomb" && name != "deep" { // no name's hash leads far enough there
				for i := range 2000 {
					if _, err = sys.LookupDir(t.Context(), c, fmt.Sprint(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
						return
					}
				}
				t.Error("no look-up met the error")
			}
		})
	}
}

// TestNotDir: what has no entries says so.
func TestNotDir(t *testing.T) {
	s := linktest.NewStore()
	sys := linktest.NewSystem(t, s, linksys.Options{})
	raw := s.Save(t, cid.Raw, []byte("x"))
	file := s.Save(t, cid.DagProtobuf, linktest.FileNode(nil, nil, []byte("x"), 1))
	cbor := s.Save(t, cid.DagCBOR, []byte{0xa0})
	dir := s.Save(t, cid.DagProtobuf, linktest.ShardNode([]byte{8, 1}, file, "f"))
	for _, c := range []cid.Cid{raw, file, cbor} {
		_, err := sys.LookupDir(t.Context(), c, "x")
		linktest.WantErr(t, "lookup", err, unixfs.ErrNotDir)
		for _, err = range sys.ReadDir(t.Context(), c) {
		}
		linktest.WantErr(t, "listing", err, unixfs.ErrNotDir)
	}
	for _, c := range []cid.Cid{dir, cbor} {
		_, err := sys.OpenFile(t.Context(), c)
		linktest.WantErr(t, "open", err, linksys.ErrNotFile)
	}
	_, err := sys.Resolve(t.Context(), dir, "f/below")
	linktest.WantErr(t, "below a file", err, unixfs.ErrNotDir)
	_, err = sys.Resolve(t.Context(), raw, "below")
	linktest.WantErr(t, "below a raw block", err, unixfs.ErrNotDir)
}
