package linksys_test

import (
	"bytes"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/codec/dagjson"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/fluent/qp"
	"github.com/ipld/go-ipld-prime/linking"
	cidlink "github.com/ipld/go-ipld-prime/linking/cid"
	"github.com/ipld/go-ipld-prime/node/basicnode"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys"
	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
)

// world is a DAG of every kind: a dag-cbor block that links to a directory with
// a file, a symbolic link and a dag-json block.
type world struct {
	cbor, json, dir, file, link, leaf cid.Cid
}

func build(t testing.TB, s *linktest.Recorder, sys *linksys.System) (w world) {
	t.Helper()
	p := unixfs.V1_2025
	p.ChunkSize = 10
	fail := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	file, err := p.BuildFile(t.Context(), strings.NewReader("a file of more than ten bytes"), s.Emit)
	fail(err)
	link, err := p.Symlink("../target", s.Emit)
	fail(err)
	w.leaf = s.Save(t, cid.Raw, []byte("leaf"))
	ls := sys.LinkSystem()
	save := func(codec uint64, n datamodel.Node, err error) cid.Cid {
		fail(err)
		lp := cidlink.LinkPrototype{Prefix: cid.Prefix{Version: 1, Codec: codec, MhType: mh.SHA2_256, MhLength: -1}}
		l, err := ls.Store(linking.LinkContext{Ctx: t.Context()}, lp, n)
		fail(err)
		return l.(cidlink.Link).Cid
	}
	w.json = save(0x0129, basicnode.NewString("json"), nil)
	dir, err := p.BuildDir(t.Context(), linktest.Seq(map[string]unixfs.Entry{
		"f": {Name: "f", Cid: file.Cid}, "l": {Name: "l", Cid: link.Cid},
		"j": {Name: "j", Cid: w.json}, "leaf": {Name: "leaf", Cid: w.leaf},
	}), s.Emit)
	fail(err)
	w.dir, w.file, w.link = dir.Cid, file.Cid, link.Cid
	n, err := qp.BuildMap(basicnode.Prototype.Any, -1, func(ma datamodel.MapAssembler) {
		qp.MapEntry(ma, "root", qp.Link(cidlink.Link{Cid: dir.Cid}))
		qp.MapEntry(ma, "list", qp.List(-1, func(la datamodel.ListAssembler) {
			qp.ListEntry(la, qp.Int(7))
			qp.ListEntry(la, qp.Link(cidlink.Link{Cid: w.leaf}))
		}))
	})
	w.cbor = save(cid.DagCBOR, n, err)
	return w
}

func TestResolve(t *testing.T) {
	s := linktest.NewStore()
	sys := linktest.NewSystem(t, s, linksys.Options{})
	w := build(t, s, sys)
	for _, tc := range []struct {
		root cid.Cid
		path string
		want cid.Cid
		rest string
	}{
		{w.dir, "", w.dir, ""}, {w.dir, "///", w.dir, ""}, {w.dir, "/f/", w.file, ""},
		{w.cbor, "root/f", w.file, ""}, {w.cbor, "root/l", w.link, ""}, {w.cbor, "root/j", w.json, ""},
		{w.cbor, "root", w.dir, ""}, {w.cbor, "list/1", w.leaf, ""}, {w.cbor, "list/0", w.cbor, "list/0"},
		{w.cbor, "list", w.cbor, "list"},
	} {
		got, err := sys.Resolve(t.Context(), tc.root, tc.path)
		if err != nil || got.Cid != tc.want || strings.Join(got.Remaining, "/") != tc.rest {
			t.Errorf("%s/%s: %v, %v", tc.root, tc.path, got, err)
		}
	}
	for _, path := range []string{"x", "root/x", "list/2", "list/x", "root/f/x", "list/0/x"} {
		got, err := sys.Resolve(t.Context(), w.cbor, path)
		if err == nil || slices.Contains([]string{"x", "root/x"}, path) && !strings.Contains(err.Error(), fs.ErrNotExist.Error()) {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	_, err := sys.Resolve(t.Context(), w.cbor, strings.Repeat("a/", 1<<20))
	linktest.WantErr(t, "path of a million segments", err, linksys.ErrBudget)
	if s.Gets[w.leaf] > 0 || s.Gets[w.link] > 0 {
		t.Error("the block a path ends at was read")
	}
}

func TestWriteJSON(t *testing.T) {
	s := linktest.NewStore()
	sys := linktest.NewSystem(t, s, linksys.Options{})
	w := build(t, s, sys)
	for path, want := range map[string]string{
		"":       `{"list":[7,{"/":"` + w.leaf.String() + `"}],"root":{"/":"` + w.dir.String() + `"}}`,
		"list/0": "7",
		"root/j": `"json"`,
		"list/1": `{"/":{"bytes":"bGVhZg"}}`,
	} {
		target, err := sys.Resolve(t.Context(), w.cbor, path)
		var got bytes.Buffer
		if err == nil {
			err = sys.WriteJSON(t.Context(), &got, target)
		}
		if err != nil || got.String() != want {
			t.Errorf("%q: %s, %v", path, &got, err)
		}
	}
	var got bytes.Buffer
	if err := sys.WriteJSON(t.Context(), &got, linksys.Target{Cid: w.file}); err != nil {
		t.Fatal(err)
	}
	nb := basicnode.Prototype.Any.NewBuilder()
	if err := dagjson.Decode(nb, &got); err != nil {
		t.Fatal(err)
	}
	if links, err := nb.Build().LookupByString("Links"); err != nil || links.Length() != 3 {
		t.Errorf("a file as dag-json: %v", err)
	}
}

func TestStat(t *testing.T) {
	s := linktest.NewStore()
	sys := linktest.NewSystem(t, s, linksys.Options{})
	w := build(t, s, sys)
	mtime := time.Unix(1700000000, 123456789).UTC()
	withStat, err := unixfs.Builder{Profile: unixfs.V1_2025, Stat: unixfs.Stat{Mode: 0o4755, Mtime: mtime}}.
		File(t.Context(), strings.NewReader("stat"), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	for c, want := range map[cid.Cid]linksys.Info{
		w.leaf:       {Type: linksys.Regular, Codec: cid.Raw, Size: 4},
		w.file:       {Type: linksys.Regular, Codec: cid.DagProtobuf, Size: 29, Links: 3},
		w.dir:        {Type: linksys.Directory, Codec: cid.DagProtobuf, Links: 4},
		w.link:       {Type: linksys.Symlink, Codec: cid.DagProtobuf, Size: 9, Target: "../target"},
		w.json:       {Codec: 0x0129, Size: 6},
		withStat.Cid: {Type: linksys.Regular, Codec: cid.DagProtobuf, Size: 4, Mode: 0o4755, Mtime: mtime},
	} {
		if got, err := sys.Stat(t.Context(), c); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", c, got, err, want)
		}
	}
	if s.Gets[w.leaf] > 0 {
		t.Error("a raw block was read to learn its size")
	}
}

// TestCopyRange compares byte ranges of a path with slices.
func TestCopyRange(t *testing.T) {
	s := linktest.NewStore()
	sys := linktest.NewSystem(t, s, linksys.Options{})
	w := build(t, s, sys)
	const data = "a file of more than ten bytes"
	n := int64(len(data))
	for from := -n - 2; from <= n+2; from++ {
		for _, to := range []int64{-n - 1, -3, -1, 0, 1, 10, 11, n, n + 5} {
			var got bytes.Buffer
			_, err := sys.CopyRange(t.Context(), &got, w.cbor, "root/f", from, to)
			abs := func(v int64) int64 {
				if v < 0 {
					v += n
				}
				return min(max(v, 0), n)
			}
			want := ""
			if abs(from) < abs(to) {
				want = data[abs(from):abs(to)]
			}
			if err != nil || got.String() != want {
				t.Fatalf("[%d, %d): %q, %v, want %q", from, to, &got, err, want)
			}
		}
	}
}

// TestZeroCopy: loading a leaf through the LinkSystem gives the store's own bytes.
func TestZeroCopy(t *testing.T) {
	s := linktest.NewStore()
	sys := linktest.NewSystem(t, s, linksys.Options{})
	data := linktest.Stream(9, 1<<20)
	c := s.Save(t, cid.Raw, data)
	ls := sys.LinkSystem()
	n, err := ls.Load(linking.LinkContext{}, cidlink.Link{Cid: c}, basicnode.Prototype.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	b, err := n.AsBytes()
	if err != nil || !bytes.Equal(b, data) || &b[0] != &mustGet(t, s, c)[0] {
		t.Errorf("the bytes were copied or are wrong: %v", err)
	}
}
