package tree_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/mount/tree"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
	"cafs/store/disk"
)

const chunk = 4096 // small, so that histories cross chunks often

var (
	seedFlag  = flag.Uint64("seed", 0, "seed of the random histories; 0 takes the clock")
	stepsFlag = flag.Int("steps", 1500, "operations of a random history")
)

func sum(b []byte) []byte { s := sha256.Sum256(b); return s[:6] }

func profile() unixfs.Profile {
	p := unixfs.V1_2025
	p.ChunkSize, p.MaxLinks, p.Fanout, p.DirLimit = chunk, 4, 8, 400
	return p
}

// rig is a tree on a model disk, which can be closed, opened and crashed.
type rig struct {
	t     testing.TB
	ctx   context.Context
	disk  *disk.Mem
	close func(clean bool)
	tree  *tree.Tree
	store *store.Dir
	db    *index.DB
	held  []tree.Ino
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, ctx: t.Context(), disk: disk.NewMem()}
	for _, dir := range []string{"blocks", "index", "staging"} {
		must(t, r.disk.Mkdir(dir, 0o755))
	}
	must(t, r.disk.SyncDir())
	r.open()
	t.Cleanup(func() { r.close(false) })
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) open() {
	t := r.t
	t.Helper()
	sub := func(name string) disk.FS {
		d, err := r.disk.Sub(name)
		must(t, err)
		return d
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	db, err := index.Open(sub("index"), index.Options{Logger: log})
	must(t, err)
	st, err := store.Open(sub("blocks"), store.Options{CreateIfMissing: true, Logger: log})
	must(t, err)
	sys := linksys.New(st, linksys.Options{})
	p := profile()
	var segs []index.Segment
	for s, err := range db.Segments() {
		must(t, err)
		segs = append(segs, s)
	}
	files, err := content.Open(content.Config{
		Staging: sub("staging"), Blocks: st, ChunkSize: chunk, Segments: segs, Logger: log, Leaf: p.Leaf,
		OpenBase: func(ctx context.Context, c cid.Cid) (content.Base, error) { return sys.OpenFile(ctx, c) },
		LeafData: func(ctx context.Context, c cid.Cid) ([]byte, error) {
			b, err := st.Get(ctx, c)
			if err != nil {
				return nil, err
			}
			return p.LeafData(c, b)
		},
	})
	must(t, err)
	tr, err := tree.Open(r.ctx, tree.Options{DB: db, Content: files, Sys: sys, Blocks: st, Profile: p, Logger: log,
		CommitInterval: time.Hour, SealAfter: time.Hour})
	must(t, err)
	r.tree, r.store, r.db = tr, st, db
	r.close = func(clean bool) {
		if clean {
			must(t, tr.Close(context.WithoutCancel(r.ctx)))
		} else {
			ctx, cancel := context.WithCancel(context.Background())
			cancel() // nothing is published: as if the process had been killed
			tr.Close(ctx)
		}
		files.Close()
		sys.Close()
		st.Close()
		db.Close()
		r.close = func(bool) {}
		r.held = nil
	}
}

// reopen ends the tree cleanly and opens it again.
func (r *rig) reopen() {
	r.close(true)
	r.open()
}

// dump describes the tree as the model's dump does, and checks that look-up,
// listing and attributes agree.
func (r *rig) dump() string {
	var b strings.Builder
	r.dumpNode("", tree.RootIno, &b, nil)
	return b.String()
}

// dumpNode calls contents, if there is one, instead of describing a file's bytes.
func (r *rig) dumpNode(path string, ino tree.Ino, b *strings.Builder, contents func(tree.Ino, []byte)) {
	a, err := r.tree.Getattr(ino)
	must(r.t, err)
	fmt.Fprintf(b, "%s ino=%d kind=%d perm=%o nlink=%d", path, ino, a.Kind, a.Perm, a.Nlink)
	switch a.Kind {
	case index.File:
		data := make([]byte, a.Size)
		if n, err := r.tree.Read(r.ctx, ino, data, 0); n != len(data) && err != nil {
			r.t.Fatalf("read %s: %d of %d bytes: %v", path, n, len(data), err)
		}
		if contents != nil {
			contents(ino, data)
		} else {
			fmt.Fprintf(b, " size=%d sum=%x", a.Size, sum(data))
		}
	case index.Symlink:
		target, err := r.tree.Readlink(ino)
		must(r.t, err)
		fmt.Fprintf(b, " target=%s", target)
	}
	names, err := r.tree.Listxattr(ino)
	must(r.t, err)
	slices.Sort(names)
	for _, k := range names {
		v, err := r.tree.Getxattr(ino, k)
		must(r.t, err)
		fmt.Fprintf(b, " %s=%q", k, v)
	}
	b.WriteByte('\n')
	if a.Kind != index.Dir {
		return
	}
	children := map[string]tree.Ino{}
	last := uint64(0)
	must(r.t, r.tree.Readdir(ino, 0, func(d tree.Dirent) bool {
		if _, twice := children[d.Name]; twice || d.Cookie <= last {
			r.t.Errorf("listing of %s: %q twice or out of order", path, d.Name)
		}
		last = d.Cookie
		children[d.Name] = d.Ino
		return true
	}))
	for _, name := range slices.Sorted(maps.Keys(children)) {
		c, err := r.tree.Lookup(ino, name)
		must(r.t, err)
		if c.Ino != children[name] {
			r.t.Errorf("%s/%s: look-up gives inode %d, listing %d", path, name, c.Ino, children[name])
		}
		r.dumpNode(path+"/"+name, c.Ino, b, contents)
		r.tree.Forget(c.Ino, 1)
	}
}

// cid builds the content address of the model at once.
func (n *node) cid(t testing.TB, p unixfs.Profile) unixfs.Root {
	drop := func(unixfs.Block) error { return nil }
	var root unixfs.Root
	var err error
	switch n.kind {
	case index.File:
		root, err = p.BuildFile(t.Context(), bytes.NewReader(n.data), drop)
	case index.Symlink:
		root, err = p.Symlink(n.target, drop)
	case index.Dir:
		root, err = p.BuildDir(t.Context(), func(yield func(unixfs.Entry, error) bool) {
			for name, c := range n.entries {
				if c.kind == index.Fifo {
					continue
				}
				r := c.cid(t, p)
				if !yield(unixfs.Entry{Name: name, Cid: r.Cid, Tsize: r.Tsize}, nil) {
					return
				}
			}
		}, drop)
	}
	must(t, err)
	return root
}

// TestModel runs random histories against the model: outcomes of every
// operation, the whole state and the content address, now and after a reopen.
func TestModel(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	w := newWorld(newRig(t), seed)
	for i := range *stepsFlag {
		if err := w.step(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if i%100 == 99 || i == *stepsFlag-1 {
			w.compare(t, fmt.Sprintf("step %d", i))
		}
		switch w.rng.IntN(200) {
		case 0:
			w.reopen()
			w.compare(t, fmt.Sprintf("step %d, reopened", i))
		case 1:
			must(t, w.tree.Sync(t.Context()))
		case 2:
			for _, ino := range w.held {
				w.tree.Forget(ino, 1)
			}
			w.held = nil
		}
	}
	w.reopen()
	w.compare(t, "the end")
	if n := w.orphans(); n != 0 {
		t.Errorf("%d inodes without names are left after a clean end", n)
	}
}

func (w *world) compare(t *testing.T, when string) {
	t.Helper()
	var want strings.Builder
	w.root.dump("", &want, true)
	if got := w.dump(); got != want.String() {
		t.Fatalf("%s: the tree differs from the model:\n%s", when, difference(got, want.String()))
	}
	root, err := w.tree.Seal(t.Context(), tree.RootIno)
	must(t, err)
	if want := w.root.cid(t, profile()); root.Cid != want.Cid {
		t.Fatalf("%s: CID %s, built at once %s", when, root.Cid, want.Cid)
	}
}

func (r *rig) orphans() (n int) {
	for _, err := range r.db.Orphans() {
		must(r.t, err)
		n++
	}
	return n
}

func difference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	var b strings.Builder
	for _, l := range g {
		if !slices.Contains(w, l) {
			fmt.Fprintf(&b, "got  %s\n", l)
		}
	}
	for _, l := range w {
		if !slices.Contains(g, l) {
			fmt.Fprintf(&b, "want %s\n", l)
		}
	}
	return b.String()
}
