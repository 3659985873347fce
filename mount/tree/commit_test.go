package tree_test

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/linksys/unixfs"
	"cafs/mount/tree"
	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
)

func (r *rig) load(ctx context.Context, c cid.Cid) ([]byte, error) { return r.store.Get(ctx, c) }

// content reads a file by its CID.
func (r *rig) content(c cid.Cid) []byte {
	f, err := r.sys.OpenFile(r.ctx, c)
	must(r.t, err)
	p := make([]byte, f.Size())
	if len(p) > 0 {
		_, err = f.ReadAt(r.ctx, p, 0)
		must(r.t, err)
	}
	return p
}

// dumpCommit describes a commit as the model describes itself, without inode
// numbers: link ids must stand for the same groups of names.
func (r *rig) dumpCommit(k tree.Kept) string {
	c, err := r.tree.LoadCommit(r.ctx, k.Cid)
	must(r.t, err)
	var b strings.Builder
	r.dumpEntry(&c, "", c.Root, &b)
	return b.String()
}

func (r *rig) dumpEntry(c *history.Commit, path string, e history.Entry, b *strings.Builder) {
	if e.Link != (history.LinkID{}) {
		l, ok, err := history.Find(r.ctx, r.load, c.Links, string(e.Link[:]))
		must(r.t, err)
		if !ok {
			r.t.Fatalf("%s: link id %x leads nowhere", path, e.Link)
		}
		if l.Nlink < 2 {
			r.t.Fatalf("%s: %d links", path, l.Nlink)
		}
		e = l
	}
	nlink := max(e.Nlink, 1)
	var below []history.Entry
	if e.Kind == index.Dir {
		nlink = 2
		for d, err := range history.List(r.ctx, r.load, e.Record) {
			must(r.t, err)
			below = append(below, d)
			if d.Kind == index.Dir {
				nlink++
			}
		}
	}
	fmt.Fprintf(b, "%s kind=%d perm=%o nlink=%d", path, e.Kind, e.Perm, nlink)
	switch e.Kind {
	case index.File:
		fmt.Fprintf(b, " size=%d sum=%x", e.Size, sum(r.content(e.Cid)))
	case index.Symlink:
		fmt.Fprintf(b, " target=%s", e.Target)
	}
	for _, x := range e.Xattrs {
		v, err := history.XattrValue(r.ctx, r.load, x)
		must(r.t, err)
		fmt.Fprintf(b, " %s=%q", x.Name, v)
	}
	b.WriteByte('\n')
	slices.SortFunc(below, func(a, b history.Entry) int { return strings.Compare(a.Name, b.Name) })
	for _, d := range below {
		r.dumpEntry(c, path+"/"+d.Name, d, b)
	}
}

// dumpModel is dump without inode numbers.
func dumpModel(n *node) string {
	var b strings.Builder
	n.dump("", &b, true)
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		path, rest, _ := strings.Cut(line, " ino=")
		_, rest, _ = strings.Cut(rest, " ")
		out.WriteString(path + " " + rest)
	}
	return out.String()
}

// scratch hides what earlier commits recorded.
type scratch struct{ *index.Snapshot }

func (s scratch) Inode(ino index.Ino) (index.Inode, error) {
	rec, err := s.Snapshot.Inode(ino)
	rec.Record = cid.Undef
	return rec, err
}

// links lists the inodes with several names, as if all of them were noted.
func (s scratch) UnrecordedLinks() iter.Seq2[index.LinkAt, error] {
	return func(yield func(index.LinkAt, error) bool) {
		for in, err := range s.Inodes(0) {
			if err != nil || in.Kind != index.Dir && in.Nlink > 1 {
				if !yield(index.LinkAt{ID: in.LinkID, Ino: in.Ino}, err) {
					return
				}
			}
		}
	}
}

// checkScratch compares a commit with one made from nothing: what is not noted
// must not have changed.
func (r *rig) checkScratch(k tree.Kept) error {
	c, err := r.tree.LoadCommit(r.ctx, k.Cid)
	must(r.t, err)
	_, err = r.tree.Seal(r.ctx, tree.RootIno)
	must(r.t, err)
	snap := r.db.Snapshot()
	defer snap.Close()
	put := func(b unixfs.Block) error { return r.store.Put(r.ctx, b.Cid, b.Data) }
	rec := history.Recorder{Source: scratch{snap}, Load: r.load, Emit: put,
		Inode: func(index.Ino) (index.Inode, bool) { return index.Inode{}, false },
		Root:  func(index.Ino) (unixfs.Root, bool) { return unixfs.Root{}, false }}
	root, _, err := rec.Record(r.ctx, tree.RootIno)
	must(r.t, err)
	links, _, err := rec.Links(r.ctx, cid.Undef)
	must(r.t, err)
	if root.Cid != c.Root.Cid {
		return fmt.Errorf("root %s; from nothing %s", c.Root.Cid, root.Cid)
	}
	a, b := history.Entry{Record: c.Links}, history.Entry{Record: links}
	if a, b := r.dumpAll(a), r.dumpAll(b); a != b {
		return fmt.Errorf("the links differ:\n%s\nfrom nothing:\n%s", a, b)
	}
	// How many bytes hold data is known only after the seal that the commit makes.
	if a, b := r.dumpAll(c.Root), r.dumpAll(root); a != b {
		return fmt.Errorf("the attribute trees differ:\n%s", difference(a, b))
	}
	return nil
}

func (r *rig) dumpAll(e history.Entry) string {
	var b strings.Builder
	var walk func(path string, e history.Entry)
	walk = func(path string, e history.Entry) {
		e.Data = 0
		record := e.Record
		e.Record = cid.Undef
		fmt.Fprintf(&b, "%s %+v\n", path, e)
		if record.Defined() {
			all := map[string]history.Entry{}
			for d, err := range history.List(r.ctx, r.load, record) {
				must(r.t, err)
				all[d.Name] = d
			}
			for _, name := range slices.Sorted(maps.Keys(all)) {
				walk(path+"/"+name, all[name])
			}
		}
	}
	walk("", e)
	return b.String()
}

// TestCommits makes commits at random moments of random histories. Each must
// equal the model, and a commit made from nothing.
func TestCommits(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	w := newWorld(newRig(t), seed)
	type made struct {
		k    tree.Kept
		want string
	}
	var all []made
	for i := range *stepsFlag {
		must(t, w.step())
		switch k := w.rng.IntN(100); {
		case k < 4:
			kept, _, err := w.tree.Commit(w.ctx, tree.CommitOptions{Reason: "snapshot"})
			must(t, err)
			want := dumpModel(w.root)
			if got := w.dumpCommit(kept); got != want {
				t.Fatalf("step %d: the commit has\n%s\nwant\n%s", i, got, want)
			}
			if err := w.checkScratch(kept); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
			all = append(all, made{kept, want})
		case k < 5:
			_, err := w.tree.Seal(w.ctx, w.pick(index.Dir).ino)
			must(t, err)
		case k < 6:
			w.reopen()
		}
	}
	for _, m := range all { // history does not change
		if got := w.dumpCommit(m.k); got != m.want {
			t.Fatalf("a commit is now\n%s\nwas\n%s", got, m.want)
		}
	}
}
