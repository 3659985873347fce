package car_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ipfs/go-cid"
	"github.com/ipfs/go-unixfsnode"
	gocar "github.com/ipld/go-car/v2"
	carstorage "github.com/ipld/go-car/v2/storage"
	dagpb "github.com/ipld/go-codec-dagpb"
	"github.com/ipld/go-ipld-prime/codec/dagjson"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/linking"
	"github.com/ipld/go-ipld-prime/node/basicnode"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys"
	"cafs/linksys/car"
	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
	"cafs/store"
)

// readCar reads a CAR with go-car's own reader, which verifies each hash.
func readCar(t testing.TB, b []byte) (roots []cid.Cid, blocks map[cid.Cid][]byte, order []cid.Cid) {
	t.Helper()
	br, err := gocar.NewBlockReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	blocks = map[cid.Cid][]byte{}
	for {
		k, err := br.Next()
		if errors.Is(err, io.EOF) {
			return br.Roots, blocks, order
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := blocks[k.Cid()]; twice {
			t.Errorf("%s is there twice", k.Cid())
		}
		blocks[k.Cid()] = k.RawData()
		order = append(order, k.Cid())
	}
}

// tree is a DAG with a sharded directory and files of several leaves, one of
// them sparse, for scopes to be told apart.
func tree(t testing.TB, s *linktest.Recorder) (root, sub, file cid.Cid, data []byte) {
	t.Helper()
	p := unixfs.V1_2025
	p.ChunkSize, p.MaxLinks, p.DirLimit = 100, 4, 200
	data = slices.Concat(linktest.Stream(1, 1000), make([]byte, 900), linktest.Stream(2, 333))
	f, err := p.BuildFile(t.Context(), bytes.NewReader(data), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	m := linktest.Entries(t, s, 400)
	m["file"] = unixfs.Entry{Name: "file", Cid: f.Cid, Tsize: f.Tsize}
	d, err := p.BuildDir(t.Context(), linktest.Seq(m), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.BuildDir(t.Context(), linktest.Seq(map[string]unixfs.Entry{"sub": {Name: "sub", Cid: d.Cid, Tsize: d.Tsize}}), s.Emit)
	if err != nil {
		t.Fatal(err)
	}
	return r.Cid, d.Cid, f.Cid, data
}

// TestExportImport round-trips whole DAGs in both versions, through our reader
// and go-car's.
func TestExportImport(t *testing.T) {
	s := linktest.NewStore()
	root, _, _, data := tree(t, s)
	var all int
	var size linksys.DagSize
	for e := range s.All(t.Context()) {
		all++
		size.Blocks, size.Bytes = size.Blocks+1, size.Bytes+e.Size
	}
	if got, err := linktest.NewSystem(t, s, linksys.Options{}).Measure(t.Context(), root); err != nil || got != size {
		t.Errorf("measured %+v, %v, want %+v", got, err, size)
	}
	for version := 1; version <= 2; version++ {
		sys := linktest.NewSystem(t, s, linksys.Options{})
		var out bytes.Buffer
		stats, err := car.Export(t.Context(), sys, &out, root, car.ExportOptions{Version: version})
		if err != nil {
			t.Fatal(err)
		}
		roots, blocks, _ := readCar(t, out.Bytes())
		if !slices.Equal(roots, []cid.Cid{root}) || len(blocks) != all || stats.Blocks != int64(all) || stats.Written != int64(out.Len()) {
			t.Errorf("v%d: roots %v, %d blocks of %d, %+v, %d bytes", version, roots, len(blocks), all, stats, out.Len())
		}
		if version == 2 {
			checkIndex(t, out.Bytes(), blocks)
		}
		other := linktest.NewStore()
		sys2 := linktest.NewSystem(t, other, linksys.Options{})
		res, err := car.Import(t.Context(), sys2, bytes.NewReader(out.Bytes()), car.ImportOptions{})
		if err != nil || !slices.Equal(res.Roots, roots) || res.Blocks != int64(all) || res.Version != version {
			t.Fatalf("v%d: import %+v, %v", version, res, err)
		}
		var got bytes.Buffer
		if _, err := sys2.CopyRange(t.Context(), &got, root, "sub/file", 0, 1<<62); err != nil || !bytes.Equal(got.Bytes(), data) {
			t.Errorf("v%d: the file came back as %d bytes, %v", version, got.Len(), err)
		}
	}
}

// checkIndex finds every block of a version 2 through its index.
func checkIndex(t *testing.T, b []byte, blocks map[cid.Cid][]byte) {
	t.Helper()
	rc, err := carstorage.OpenReadable(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for c, want := range blocks {
		if got, err := rc.Get(context.Background(), c.KeyString()); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("index: %s: %v", c, err)
		}
	}
}

// TestScopes: each scope has the blocks its definition says, and reading what it
// promises from only these blocks works.
func TestScopes(t *testing.T) {
	s := linktest.NewStore()
	root, sub, file, data := tree(t, s)
	sys := linktest.NewSystem(t, s, linksys.Options{})
	export := func(o car.ExportOptions) (*linksys.System, []cid.Cid) {
		t.Helper()
		var out bytes.Buffer
		if _, err := car.Export(t.Context(), sys, &out, root, o); err != nil {
			t.Fatal(err)
		}
		other := linktest.NewStore()
		got := linktest.NewSystem(t, other, linksys.Options{})
		_, err := car.Import(t.Context(), got, bytes.NewReader(out.Bytes()), car.ImportOptions{})
		linktest.WantErr(t, "import of a part", err, linksys.ErrIncomplete)
		if _, err := car.Import(t.Context(), got, &out, car.ImportOptions{Partial: true}); err != nil {
			t.Fatal(err)
		}
		_, _, order := readCar(t, exportBytes(t, sys, root, o))
		return got, order
	}
	missing := func(err error) bool { return errors.Is(err, store.ErrNotFound) }

	got, order := export(car.ExportOptions{Selection: linksys.Selection{Path: "sub/file", Scope: linksys.ScopeBlock}})
	if order[0] != root || order[len(order)-1] != file {
		t.Errorf("block: begins with %s, ends with %s", order[0], order[len(order)-1])
	}
	if target, err := got.Resolve(t.Context(), root, "sub/file"); err != nil || target.Cid != file {
		t.Errorf("block: path leads to %v, %v", target, err)
	}

	got, _ = export(car.ExportOptions{Selection: linksys.Selection{Path: "sub/file", Scope: linksys.ScopeEntity}})
	var b bytes.Buffer
	if _, err := got.CopyRange(t.Context(), &b, root, "sub/file", 0, 1<<62); err != nil || !bytes.Equal(b.Bytes(), data) {
		t.Errorf("entity: %d bytes, %v", b.Len(), err)
	}

	got, _ = export(car.ExportOptions{Selection: linksys.Selection{Path: "sub", Scope: linksys.ScopeEntity}})
	n := 0
	for _, err := range got.ReadDir(t.Context(), sub) {
		if err != nil {
			t.Error(err)
		}
		n++
	}
	if _, err := got.Stat(t.Context(), file); n != 401 || !missing(err) {
		t.Errorf("entity: %d entries; stat of a file in it: %v", n, err)
	}
	for _, r := range [][2]int64{{0, 1}, {150, 420}, {950, 2000}, {-100, 1 << 62}, {0, -2000}} {
		o := car.ExportOptions{Selection: linksys.Selection{Path: "sub/file", Scope: linksys.ScopeEntity, Bytes: &linksys.ByteRange{From: r[0], To: r[1]}}}
		got, order = export(o)
		want, have := new(bytes.Buffer), new(bytes.Buffer)
		if _, err := sys.CopyRange(t.Context(), want, root, "sub/file", r[0], r[1]); err != nil {
			t.Fatal(err)
		}
		if _, err := got.CopyRange(t.Context(), have, root, "sub/file", r[0], r[1]); err != nil || !bytes.Equal(have.Bytes(), want.Bytes()) {
			t.Errorf("bytes %v: %v", r, err)
		}
		if _, err := got.CopyRange(t.Context(), io.Discard, root, "sub/file", 0, 1<<62); !missing(err) {
			t.Errorf("bytes %v: the whole file is there (%d blocks), %v", r, len(order), err)
		}
	}
}

func exportBytes(t testing.TB, sys *linksys.System, root cid.Cid, o car.ExportOptions) []byte {
	t.Helper()
	var out bytes.Buffer
	if _, err := car.Export(t.Context(), sys, &out, root, o); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestSelector exports what a selector in dag-json says, ranges included, and
// what go-car's own selective writer exports for it.
func TestSelector(t *testing.T) {
	s := linktest.NewStore()
	root, _, _, _ := tree(t, s)
	sys := linktest.NewSystem(t, s, linksys.Options{})
	for _, sel := range []string{
		`{"R":{"l":{"none":{}},":>":{"a":{">":{"@":{}}}}}}`,
		`{"~":{"as":"unixfs",">":{"f":{"f>":{"sub":{"~":{"as":"unixfs",">":{"f":{"f>":{"file":{"~":{"as":"unixfs",">":{".":{"subset":{"[":150,"]":450}}}}}}}}}}}}}}}`,
		`{".":{}}`,
	} {
		_, ours, _ := readCar(t, exportBytes(t, sys, root, car.ExportOptions{Selection: linksys.Selection{Selector: sel}}))
		for _, reifier := range []linking.NodeReifier{nil, unixfsnode.Reify} { // ours, go-unixfsnode's
			ls := sys.LinkSystem()
			if reifier != nil {
				ls.KnownReifiers["unixfs"] = reifier
			}
			var out bytes.Buffer
			w, err := gocar.NewSelectiveWriter(t.Context(), &ls, root, parseJSON(t, sel), gocar.WithoutIndex(),
				gocar.WithTraversalPrototypeChooser(dagpb.AddSupportToChooser(
					func(datamodel.Link, linking.LinkContext) (datamodel.NodePrototype, error) {
						return basicnode.Prototype.Any, nil
					})))
			if err == nil {
				_, err = w.WriteTo(&out)
			}
			if err != nil {
				t.Fatal(err)
			}
			_, theirs, _ := readCar(t, out.Bytes())
			if !maps.EqualFunc(ours, theirs, bytes.Equal) {
				t.Errorf("%.40s: %d blocks, go-car exports %d", sel, len(ours), len(theirs))
			}
		}
	}
	if _, err := car.Export(t.Context(), sys, io.Discard, root, car.ExportOptions{Selection: linksys.Selection{Selector: `{"nonsense":1}`}}); err == nil {
		t.Error("a broken selector was accepted")
	}
}

// TestExportErrors: nothing is written for a path that leads nowhere, and a
// missing block is named.
func TestExportErrors(t *testing.T) {
	s := linktest.NewStore()
	root, sub, file, _ := tree(t, s)
	sys := linktest.NewSystem(t, s, linksys.Options{})
	var out bytes.Buffer
	if _, err := car.Export(t.Context(), sys, &out, root, car.ExportOptions{Selection: linksys.Selection{Path: "sub/none"}}); err == nil || out.Len() > 0 {
		t.Errorf("%d bytes, %v", out.Len(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := car.Export(ctx, sys, io.Discard, root, car.ExportOptions{})
	linktest.WantErr(t, "cancelled", err, context.Canceled)
	for _, lost := range []cid.Cid{sub, file} {
		s.Lose(lost)
		fresh := linktest.NewSystem(t, s, linksys.Options{})
		for _, o := range []car.ExportOptions{{}, {Version: 2}, {Selection: linksys.Selection{Path: "sub/file", Scope: linksys.ScopeEntity}}} {
			_, err := car.Export(t.Context(), fresh, io.Discard, root, o)
			if linktest.WantErr(t, "lost block", err, store.ErrNotFound); err != nil && !strings.Contains(err.Error(), lost.String()) {
				t.Errorf("the block is not named: %v", err)
			}
		}
		s.Find(lost)
	}
}

// TestImportRefuses: a damaged, lying or oversized CAR gives an error and no root.
func TestImportRefuses(t *testing.T) {
	s := linktest.NewStore()
	root, _, _, _ := tree(t, s)
	good := exportBytes(t, linktest.NewSystem(t, s, linksys.Options{}), root, car.ExportOptions{})
	header := int(good[0]) + 1
	flipped := slices.Clone(good)
	flipped[len(flipped)-1] ^= 1
	huge := binary.AppendUvarint(slices.Clone(good[:header]), 3<<20)
	huge = append(append(huge, root.Bytes()...), make([]byte, 3<<20)...)
	empty := exportBytes(t, linktest.NewSystem(t, s, linksys.Options{}), root, car.ExportOptions{Selection: linksys.Selection{Scope: linksys.ScopeBlock}})
	weak := cid.NewCidV1(cid.Raw, mustHash(t, 0xd5, []byte("md5"))) // a hash nobody should trust
	weakCar := append(binary.AppendUvarint(slices.Clone(good[:header]), uint64(weak.ByteLen()+3)), append(weak.Bytes(), "md5"...)...)
	for name, tc := range map[string]struct {
		car  []byte
		want error // nil: any
	}{
		"flipped bit":      {flipped, store.ErrMismatch},
		"cut short":        {good[:len(good)-1], nil},
		"missing blocks":   {empty, linksys.ErrIncomplete},
		"no blocks":        {good[:header], linksys.ErrIncomplete},
		"huge section":     {huge, nil},
		"huge header":      {binary.AppendUvarint(nil, 1<<30), nil},
		"weak hash":        {weakCar, nil},
		"empty":            {nil, nil},
		"text":             {[]byte("not a car at all"), nil},
		"negative varints": {bytes.Repeat([]byte{0xff}, 30), nil},
	} {
		t.Run(name, func(t *testing.T) {
			sys := linktest.NewSystem(t, linktest.NewStore(), linksys.Options{})
			res, err := car.Import(t.Context(), sys, bytes.NewReader(tc.car), car.ImportOptions{})
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) || res.Roots != nil {
				t.Errorf("%v, %v", res, err)
			}
		})
	}
}

// TestForeignCar imports what go-car writes for both versions from the same blocks.
func TestForeignCar(t *testing.T) {
	s := linktest.NewStore()
	root, _, _, _ := tree(t, s)
	_, blocks, _ := readCar(t, exportBytes(t, linktest.NewSystem(t, s, linksys.Options{}), root, car.ExportOptions{}))
	for _, v1 := range []bool{true, false} {
		f, err := os.Create(filepath.Join(t.TempDir(), "x.car"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		w, err := carstorage.NewWritable(f, []cid.Cid{root}, gocar.WriteAsCarV1(v1), gocar.UseDataPadding(100))
		for _, c := range slices.SortedFunc(maps.Keys(blocks), func(a, b cid.Cid) int { return strings.Compare(a.KeyString(), b.KeyString()) }) {
			if err == nil {
				err = w.Put(t.Context(), c.KeyString(), blocks[c])
			}
		}
		if err == nil {
			err = w.Finalize()
		}
		if err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
		if err != nil {
			t.Fatal(err)
		}
		sys := linktest.NewSystem(t, linktest.NewStore(), linksys.Options{})
		if res, err := car.Import(t.Context(), sys, f, car.ImportOptions{}); err != nil || res.Blocks != int64(len(blocks)) {
			t.Errorf("v1=%v: %+v, %v", v1, res, err)
		}
	}
}

// FuzzImport: whatever bytes come, an import ends, in little memory, and returns
// roots only when their DAGs are complete.
func FuzzImport(f *testing.F) {
	s := linktest.NewStore()
	root, _, file, _ := tree(f, s)
	sys := linktest.NewSystem(f, s, linksys.Options{})
	for version := 1; version <= 2; version++ {
		f.Add(exportBytes(f, sys, file, car.ExportOptions{Version: version}))
		f.Add(exportBytes(f, sys, root, car.ExportOptions{Version: version, Selection: linksys.Selection{Scope: linksys.ScopeBlock}}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		sys := linktest.NewSystem(t, linktest.NewStore(), linksys.Options{})
		res, err := car.Import(t.Context(), sys, bytes.NewReader(b), car.ImportOptions{})
		if err != nil && res.Roots != nil {
			t.Fatal("an error and roots")
		}
		if err == nil {
			if err := sys.Complete(t.Context(), res.Roots...); err != nil {
				t.Fatal(fmt.Errorf("imported, but %w", err))
			}
		}
	})
}

// TestExportBounded: bombs cost what their blocks do, a deep chain is no problem,
// and one that is too deep for a selector is an error instead of a CAR with
// something missing.
func TestExportBounded(t *testing.T) {
	s := linktest.NewStore()
	c, size := s.Save(t, cid.Raw, []byte("z")), uint64(1)
	for range 62 {
		c, size = s.Save(t, cid.DagProtobuf, linktest.FileNode([]cid.Cid{c, c}, []uint64{size, size}, nil, 2*size)), 2*size
	}
	sys := linktest.NewSystem(t, s, linksys.Options{})
	for _, o := range []car.ExportOptions{
		{}, {Version: 2}, {Selection: linksys.Selection{Scope: linksys.ScopeEntity}},
		{Selection: linksys.Selection{Scope: linksys.ScopeEntity, Bytes: &linksys.ByteRange{From: 12345, To: -1}}},
	} {
		if _, blocks, _ := readCar(t, exportBytes(t, sys, c, o)); len(blocks) != 63 {
			t.Errorf("%+v: %d blocks", o, len(blocks))
		}
	}
	for range 5000 {
		c = s.Save(t, cid.DagProtobuf, linktest.ShardNode([]byte{8, 1}, c, "d"))
	}
	if stats, err := car.Export(t.Context(), sys, io.Discard, c, car.ExportOptions{}); err != nil || stats.Blocks != 5063 {
		t.Errorf("chain: %+v, %v", stats, err)
	}
	_, err := car.Export(t.Context(), sys, io.Discard, c, car.ExportOptions{Selection: linksys.Selection{Selector: `{"R":{"l":{"none":{}},":>":{"a":{">":{"@":{}}}}}}`}})
	linktest.WantErr(t, "chain by selector", err, linksys.ErrBudget)
	if err := sys.Complete(t.Context(), c); err != nil {
		t.Errorf("chain: %v", err)
	}
}

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

// TestAsKubo: a whole DAG is exported byte for byte as "ipfs dag export" does,
// which is a go-car traversal with the selector below that crosses each link
// once, and begins with the header written out here.
func TestAsKubo(t *testing.T) {
	s := linktest.NewStore()
	root, sub, _, _ := tree(t, s)
	twice := s.Save(t, cid.DagProtobuf, linktest.ShardNode([]byte{8, 1}, sub, "a", "b")) // two names for one subtree
	sys := linktest.NewSystem(t, s, linksys.Options{})
	for _, c := range []cid.Cid{root, twice} {
		ls := sys.LinkSystem()
		var kubo bytes.Buffer
		_, err := gocar.TraverseV1(t.Context(), &ls, c, parseJSON(t, `{"R":{"l":{"none":{}},":>":{"a":{">":{"@":{}}}}}}`), &kubo,
			gocar.WithTraversalPrototypeChooser(dagpb.AddSupportToChooser(
				func(datamodel.Link, linking.LinkContext) (datamodel.NodePrototype, error) {
					return basicnode.Prototype.Any, nil
				})))
		if err != nil {
			t.Fatal(err)
		}
		ours := exportBytes(t, sys, c, car.ExportOptions{})
		if !bytes.Equal(ours, kubo.Bytes()) {
			t.Errorf("%s: %d bytes, Kubo writes %d others", c, len(ours), kubo.Len())
		}
		header := slices.Concat([]byte("\x3a\xa2\x65roots\x81\xd8\x2a\x58\x25\x00"), c.Bytes(), []byte("\x67version\x01"))
		if !bytes.HasPrefix(ours, header) {
			t.Errorf("begins with %x", ours[:len(header)])
		}
	}
}
