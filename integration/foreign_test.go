package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	chunk "github.com/ipfs/boxo/chunker"
	dag "github.com/ipfs/boxo/ipld/merkledag"
	mdtest "github.com/ipfs/boxo/ipld/merkledag/test"
	"github.com/ipfs/boxo/ipld/unixfs/importer/helpers"
	"github.com/ipfs/boxo/ipld/unixfs/importer/trickle"
	"github.com/ipfs/go-cid"
	gocar "github.com/ipld/go-car/v2"
	"github.com/ipld/go-car/v2/storage"
	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// trickled is a CAR of b in a layout that cafs never makes: trickle, with CIDs
// of version 0 and dag-pb leaves.
func trickled(t *testing.T, b []byte) (root, path string) {
	t.Helper()
	dags := mdtest.Mock()
	params := helpers.DagBuilderParams{Maxlinks: 7, CidBuilder: dag.V0CidPrefix(), Dagserv: dags}
	builder, err := params.New(chunk.NewSizeSplitter(bytes.NewReader(b), 30_000))
	if err != nil {
		t.Fatal(err)
	}
	node, err := trickle.Layout(builder)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(harness.Scratch(t), "trickle.car")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := storage.NewWritable(f, []cid.Cid{node.Cid()}, gocar.WriteAsCarV1(true))
	if err != nil {
		t.Fatal(err)
	}
	visit := func(c cid.Cid) bool {
		n, err := dags.Get(t.Context(), c)
		if err == nil {
			err = w.Put(t.Context(), c.KeyString(), n.RawData())
		}
		if err != nil {
			t.Fatal(err)
		}
		return true
	}
	if err := dag.Walk(t.Context(), dag.GetLinksDirect(dags), node.Cid(), visit); err != nil {
		t.Fatal(err)
	}
	return node.Cid().String(), path
}

// TestForeign: content that others made keeps its CID in the tree, whatever
// happens to its attributes and its name, until its bytes change; then it has
// the CID that these bytes have everywhere in the tree.
func TestForeign(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	data := noise(1_500_000)
	work := harness.Scratch(t)
	src := filepath.Join(work, "src")
	write(t, src, data)
	add := func(args ...string) string {
		t.Helper()
		return lastLine(m.MustCafs(append([]string{"add", "-q", "--repo", m.Repo}, args...)...))
	}
	root, car := trickled(t, data)
	if got := m.MustCafs("dag", "import", "--repo", m.Repo, car); got != root {
		t.Fatalf("import: %s, must be %s", got, root)
	}
	files := map[string]string{"trickle": root}
	for name, profile := range map[string]string{
		"version 0":    "unixfs-v0-2015",
		"odd chunks":   "unixfs-v1-2025,chunker=size-77777,max-links=5",
		"by content":   "unixfs-v1-2025,chunker=buzhash,hash=blake3",
		"dag-pb leaf":  "unixfs-v1-2025,raw-leaves=false,chunker=size-2000000",
		"another hash": "unixfs-v1-2025,hash=sha2-512",
	} {
		files[name] = add("--profile", profile, src)
	}
	for name, c := range files {
		m.MustCafs("cp", "--repo", m.Repo, c, m.Path(name))
	}
	check := func(when string) {
		t.Helper()
		for name, c := range files {
			if got := cidOf(t, m.Path(name)); got != c {
				t.Errorf("%s, %s: %s, must be %s", name, when, got, c)
			}
			wantFile(t, m.Path(name), data)
		}
	}
	check("adopted")
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = 1, 2
	}
	for name := range files {
		path := m.Path(name)
		if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, uid, gid), os.Chtimes(path, time.Unix(1, 2), time.Unix(3, 4)),
			unix.Setxattr(path, "user.x", []byte("y"), 0), os.Rename(path, path+".x"), os.Link(path+".x", path)); err != nil {
			t.Fatal(err)
		}
	}
	check("other attributes")
	m.MustCafs("snapshot", "create", "--repo", m.Repo)
	m.Remount()
	check("remounted")

	data[1_234_567] ^= 1
	write(t, src, data)
	want := add(src)
	for name := range files {
		if err := edit(m.Path(name), func(f *os.File) error { return put(f, data, 1_234_567, 1_234_568) }); err != nil {
			t.Fatal(err)
		}
		files[name] = want
	}
	check("changed")
	m.Remount()
	check("changed and remounted")
}

// TestForeignFolder: a folder that others sharded, where we would not and with
// another fan-out, keeps its CID until an entry changes. Then it is ours, and
// its other entries still have the CIDs they had.
func TestForeignFolder(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	src := mkdir(t, filepath.Join(harness.Scratch(t), "src"))
	for i := range 40 {
		write(t, fmt.Sprintf("%s/%d", src, i), []byte(fmt.Sprint(i)))
	}
	for _, profile := range []string{"unixfs-v0-2015,fanout=8,dir-limit=500", "unixfs-v1-2025,dir-limit=500"} {
		m.MustCafs("add", "-rq", "--repo", m.Repo, "--profile", profile, src)
		root := lastLine(m.MustCafs("add", "-rq", "--repo", m.Repo, "--profile", profile, src))
		dir, twin := m.Path(profile), mkdir(t, m.Path("twin of "+profile))
		m.MustCafs("cp", "--repo", m.Repo, root, dir)
		if err := os.Chmod(dir+"/7", 0o640); err != nil {
			t.Fatal(err)
		}
		if got := cidOf(t, dir); got != root {
			t.Errorf("%s: %s, must be %s", profile, got, root)
		}
		for i := range 40 {
			m.MustCafs("cp", "--repo", m.Repo, fmt.Sprintf("%s/%d", root, i), fmt.Sprintf("%s/%d", twin, i))
		}
		for _, d := range []string{dir, twin} {
			write(t, d+"/7", []byte("changed"))
			if err := os.Remove(d + "/8"); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := cidOf(t, dir), cidOf(t, twin); got != want {
			t.Errorf("%s: changed it is %s, one made entry by entry is %s", profile, got, want)
		}
		m.MustCafs("snapshot", "create", "--repo", m.Repo)
	}
}

// TestCollidingNames: names of one hash (linksys/unixfs, TestCollision) are
// names like others, also in a folder that is too large for one block: it has a
// CID, by which it can be read, and snapshots, from which it comes back.
func TestCollidingNames(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	twins := []string{
		"twin-001-of-two-\xa1\xea1CA\xa1\x10\x83\xc0E\xab\xda\xd1\xb9\x81~",
		"twin-002-of-two-@\xea\xccc<\xb3\xbb\xcb\xdf\xb3\xd0\xa2p\x8e\x17\x03",
	}
	dir := mkdir(t, m.Path("d"))
	fill := func(from, to int) {
		for i := from; i < to; i++ {
			write(t, fmt.Sprintf("%s/%0255d", dir, i), nil)
		}
	}
	for _, name := range twins {
		write(t, filepath.Join(dir, name), []byte(name))
	}
	fill(0, 1000)
	flat := cidOf(t, dir)
	copied := filepath.Join(harness.Scratch(t), "copy")
	command(t, "/", "cp", "-a", dir, copied)
	if got := m.MustCafs("add", "-rq", "--repo", m.Repo, copied); lastLine(got) != flat {
		t.Errorf("add: %s, must be %s", got, flat)
	}
	fill(1000, 7000)
	large := cidOf(t, dir)
	m.MustCafs("snapshot", "create", "--repo", m.Repo, "twins")
	m.Sync()
	m.Remount()
	view := m.Path(".cafs", "ipfs", large)
	for _, name := range twins {
		wantFile(t, filepath.Join(dir, name), []byte(name))
		wantFile(t, filepath.Join(view, name), []byte(name))
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got := cidOf(t, dir); got == large {
		t.Errorf("without them it still is %s", got)
	}
	m.MustCafs("restore", "--repo", m.Repo, "twins:d")
	if got := cidOf(t, dir); got != large {
		t.Errorf("restored it is %s, was %s", got, large)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 7002 {
		t.Errorf("%d entries, %v", len(list), err)
	}
	wantFile(t, filepath.Join(dir, twins[1]), []byte(twins[1]))
}
