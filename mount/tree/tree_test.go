package tree_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
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

var quiet = slog.New(slog.DiscardHandler)

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
	fault func(disk.Op) error // sees every call into the disk; may be nil
	log   *slog.Logger
	// ballast keeps room for deleting; it slows down the copying of disks.
	ballast bool
	tick    time.Duration    // the commit interval; 0: never
	close   func(clean bool) // an unclean one publishes nothing: as if the process had been killed
	tree    *tree.Tree
	files   *content.Files
	store   *store.Dir
	db      *index.DB
	sys     *linksys.System
	held    []tree.Ino
}

func newRig(t testing.TB) *rig {
	r := openRig(t, emptyDisk(t), nil)
	t.Cleanup(func() { r.close(false) })
	return r
}

// emptyDisk has the folders of a repository and nothing else.
func emptyDisk(t testing.TB) *disk.Mem {
	d := disk.NewMem()
	for _, dir := range []string{"blocks", "index", "staging"} {
		must(t, d.Mkdir(dir, 0o755))
	}
	must(t, d.SyncDir())
	return d
}

// openRig leaves closing to the caller.
func openRig(t testing.TB, d *disk.Mem, fault func(disk.Op) error) *rig {
	r := &rig{t: t, ctx: context.WithoutCancel(t.Context()), disk: d, fault: fault, log: quiet}
	r.close = func(bool) {}
	r.open()
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) open() {
	r.t.Helper()
	must(r.t, r.tryOpen())
}

// tryOpen opens index, store, contents and tree in this order; when one cannot
// be opened, those before it are closed.
func (r *rig) tryOpen() (err error) {
	var parts []func()
	shut := func() {
		for i := len(parts) - 1; i >= 0; i-- {
			parts[i]()
		}
		parts = nil
	}
	defer func() {
		if err != nil {
			shut()
		}
	}()
	var top disk.FS = r.disk
	if r.fault != nil {
		top = disk.NewFault(top, r.fault)
	}
	var sub [3]disk.FS
	for i, name := range []string{"index", "blocks", "staging"} {
		if sub[i], err = top.Sub(name); err != nil {
			return err
		}
	}
	// Small memtables and segments: histories should get to see their ends.
	o := index.Options{Logger: r.log, MemTable: 256 << 10, RoomWait: 50 * time.Millisecond}
	if r.ballast {
		o.RoomWait = 10 * time.Second // the engine removes its old files in the background
	}
	cfg := content.Config{Staging: sub[2], SegmentSize: 64 << 10}
	if r.ballast {
		if cfg.Ballast, err = content.OpenBallast(sub[2], r.log); err != nil {
			return err
		}
		o.NoRoom, cfg.SpaceReserve = cfg.Ballast.Release, 8<<20
	}
	if r.db, err = index.Open(sub[0], o); err != nil {
		return err
	}
	parts = append(parts, func() { r.db.Close() })
	if r.store, err = store.Open(sub[1], store.Options{CreateIfMissing: true, Logger: r.log}); err != nil {
		return err
	}
	parts = append(parts, func() { r.store.Close() })
	sys := linksys.New(r.store, linksys.Options{})
	r.sys = sys
	parts = append(parts, func() { sys.Close() })
	if r.files, err = r.contents(cfg, sys); err != nil {
		return err
	}
	parts = append(parts, func() { r.files.Close() })
	tick := r.tick
	if tick == 0 {
		tick = time.Hour
	}
	r.tree, err = tree.Open(r.ctx, tree.Options{DB: r.db, Content: r.files, Sys: sys, Blocks: r.store, Profile: profile(), Logger: r.log,
		CommitInterval: tick, SealAfter: time.Hour, Inodes: 1})
	if err != nil {
		return err
	}
	tr := r.tree
	r.close = func(clean bool) {
		ctx, cancel := context.WithCancel(r.ctx)
		if !clean {
			cancel()
		}
		if err := tr.Close(ctx); clean {
			must(r.t, err)
		}
		cancel()
		shut()
		r.close = func(bool) {}
		r.held = nil
	}
	return nil
}

func (r *rig) contents(cfg content.Config, sys *linksys.System) (*content.Files, error) {
	p, st := profile(), r.store
	for s, err := range r.db.Segments() {
		if err != nil {
			return nil, err
		}
		cfg.Segments = append(cfg.Segments, s)
	}
	cfg.Failed = r.db.Err
	cfg.Blocks, cfg.ChunkSize, cfg.Logger, cfg.Leaf = st, chunk, r.log, p.Leaf
	cfg.OpenBase = func(ctx context.Context, c cid.Cid) (content.Base, error) { return sys.OpenFile(ctx, c) }
	cfg.LeafData = func(ctx context.Context, c cid.Cid) ([]byte, error) {
		b, err := st.Get(ctx, c)
		if err != nil {
			return nil, err
		}
		return p.LeafData(c, b)
	}
	return content.Open(cfg)
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
	last := ^uint64(0)
	must(r.t, r.tree.Readdir(ino, 0, func(d tree.Dirent) bool {
		if _, twice := children[d.Name]; twice || d.Cookie >= last {
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
				if c.kind == index.Fifo || c.kind == index.CharDev {
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

// address builds the content address of what the tree shows at once.
func (r *rig) address(ino tree.Ino) unixfs.Root {
	drop := func(unixfs.Block) error { return nil }
	a, err := r.tree.Getattr(ino)
	must(r.t, err)
	var root unixfs.Root
	switch p := profile(); a.Kind {
	case index.File:
		data := make([]byte, a.Size)
		if n, err := r.tree.Read(r.ctx, ino, data, 0); n != len(data) {
			r.t.Fatalf("read inode %d: %d of %d bytes: %v", ino, n, len(data), err)
		}
		root, err = p.BuildFile(r.ctx, bytes.NewReader(data), drop)
	case index.Symlink:
		target, err := r.tree.Readlink(ino)
		must(r.t, err)
		root, err = p.Symlink(target, drop)
		must(r.t, err)
	case index.Dir:
		var entries []tree.Dirent
		must(r.t, r.tree.Readdir(ino, 0, func(d tree.Dirent) bool {
			entries = append(entries, d)
			return true
		}))
		root, err = p.BuildDir(r.ctx, func(yield func(unixfs.Entry, error) bool) {
			for _, d := range entries {
				if d.Kind != index.File && d.Kind != index.Dir && d.Kind != index.Symlink {
					continue
				}
				c := r.address(d.Ino)
				if !yield(unixfs.Entry{Name: d.Name, Cid: c.Cid, Tsize: c.Tsize}, nil) {
					return
				}
			}
		}, drop)
	}
	must(r.t, err)
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
	if d := w.differs(); d != "" {
		t.Fatalf("%s: the tree differs from the model:\n%s", when, d)
	}
	root, err := w.tree.Seal(t.Context(), tree.RootIno)
	must(t, err)
	if want := w.root.cid(t, profile()); root.Cid != want.Cid {
		t.Fatalf("%s: CID %s, built at once %s", when, root.Cid, want.Cid)
	}
}

// differs says how the tree differs from the model, "" if it does not.
func (w *world) differs() string {
	var want strings.Builder
	w.root.dump("", &want, true)
	if got := w.dump(); got != want.String() {
		return difference(got, want.String())
	}
	return ""
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
