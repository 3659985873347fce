package tree_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree"
	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
)

// learn makes the model what the tree is.
func (w *world) learn() {
	byIno := map[tree.Ino]*node{}
	var walk func(ino tree.Ino) *node
	walk = func(ino tree.Ino) *node {
		if n := byIno[ino]; n != nil {
			return n
		}
		a, err := w.tree.Getattr(ino)
		must(w.t, err)
		n := newNode(a.Kind, a.Perm)
		n.ino = ino
		byIno[ino] = n
		names, err := w.tree.Listxattr(ino)
		must(w.t, err)
		for _, k := range names {
			v, err := w.tree.Getxattr(ino, k)
			must(w.t, err)
			n.xattrs[k] = string(v)
		}
		switch a.Kind {
		case index.File:
			n.nlink = int(a.Nlink)
			n.data = make([]byte, a.Size)
			if _, err := w.tree.Read(w.ctx, ino, n.data, 0); a.Size > 0 {
				must(w.t, err)
			}
		case index.Symlink:
			n.nlink = int(a.Nlink)
			n.target, err = w.tree.Readlink(ino)
			must(w.t, err)
		case index.Dir:
			children := map[string]tree.Ino{}
			must(w.t, w.tree.Readdir(ino, 0, func(d tree.Dirent) bool { children[d.Name] = d.Ino; return true }))
			for _, name := range slices.Sorted(maps.Keys(children)) {
				n.put(name, walk(children[name]))
			}
		default:
			n.nlink = int(a.Nlink)
		}
		return n
	}
	w.root = walk(tree.RootIno)
}

// anonymous describes a recorded tree completely but for its link ids, which
// are numbered in order of appearance, and the attributes of link ids.
func (r *rig) anonymous(k tree.Kept) string {
	c, err := r.tree.LoadCommit(r.ctx, k.Cid)
	must(r.t, err)
	ids := map[history.LinkID]string{}
	count := map[history.LinkID]int{}
	r.eachEntry("", c.Root, func(_ string, e history.Entry) { count[e.Link]++ })
	var b strings.Builder
	r.eachEntry("", c.Root, func(path string, e history.Entry) {
		if e.Link != (history.LinkID{}) && count[e.Link] == 1 {
			l, _, err := history.Find(r.ctx, r.load, c.Links, string(e.Link[:]))
			must(r.t, err)
			l.Name, l.Nlink = e.Name, 0
			e = l
		}
		if e.Link != (history.LinkID{}) {
			id, known := ids[e.Link]
			if !known {
				id = fmt.Sprint("link ", len(ids))
				ids[e.Link] = id
				l, ok, err := history.Find(r.ctx, r.load, c.Links, string(e.Link[:]))
				if must(r.t, err); !ok {
					r.t.Fatalf("%s: link id leads nowhere", path)
				}
				l.Name, l.Data, l.Nlink = "", 0, uint32(count[e.Link])
				fmt.Fprintf(&b, "%s %+v\n", id, l)
			}
			fmt.Fprintf(&b, "%s %s\n", path, id)
			return
		}
		e.Record, e.Data, e.Hard = cid.Undef, 0, 0
		fmt.Fprintf(&b, "%s %+v\n", path, e)
	})
	return b.String()
}

// eachEntry visits a recorded tree in the order of paths.
func (r *rig) eachEntry(path string, e history.Entry, visit func(string, history.Entry)) {
	visit(path, e)
	if !e.Record.Defined() {
		return
	}
	all := map[string]history.Entry{}
	for d, err := range history.List(r.ctx, r.load, e.Record) {
		must(r.t, err)
		all[d.Name] = d
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r.eachEntry(path+"/"+name, all[name], visit)
	}
}

func (w *world) restore(t *testing.T, k tree.Kept, step int) {
	want := w.anonymous(k)
	_, err := w.tree.Restore(w.ctx, k.Cid, "/", "/")
	must(t, err)
	if w.rng.IntN(2) == 0 {
		w.learn() // expands everything
	}
	again, _, err := w.tree.Commit(w.ctx, tree.CommitOptions{Reason: "snapshot"})
	must(t, err)
	if got := w.anonymous(again); got != want {
		t.Fatalf("step %d: restored, and committed again:\n%s", step, difference(got, want))
	}
	w.learn()
	if got, want := noLinks(dumpModel(w.root)), noLinks(w.dumpCommit(k)); got != want {
		t.Fatalf("step %d: restored:\n%s", step, difference(got, want))
	}
}

var nlink = regexp.MustCompile(" nlink=[0-9]+")

// noLinks leaves out numbers of names: some may be in what was replaced and is
// not removed yet.
func noLinks(dump string) string { return nlink.ReplaceAllString(dump, "") }

// TestRestore brings back commits within random histories, whole and in part,
// and takes that back again.
func TestRestore(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	w := newWorld(newRig(t), seed)
	var all []tree.Kept
	for i := range *stepsFlag {
		must(t, w.step())
		k := w.rng.IntN(100)
		switch {
		case k < 3:
			kept, _, err := w.tree.Commit(w.ctx, tree.CommitOptions{Reason: "snapshot"})
			must(t, err)
			all = append(all, kept)
		case k < 5 && len(all) > 0:
			w.restore(t, all[w.rng.IntN(len(all))], i)
		case k < 7 && len(all) > 0:
			before := dumpModel(w.root)
			from := all[w.rng.IntN(len(all))]
			c, err := w.tree.LoadCommit(w.ctx, from.Cid)
			must(t, err)
			var names []string
			for e, err := range history.List(w.ctx, w.load, c.Root.Record) {
				must(t, err)
				names = append(names, e.Name)
			}
			if len(names) == 0 {
				continue
			}
			name, to := names[w.rng.IntN(len(names))], w.name()
			_, err = w.tree.Restore(w.ctx, from.Cid, name, to)
			must(t, err)
			w.learn()
			after := dumpModel(w.root)
			for _, want := range []string{before, after, before} {
				_, _, err := w.tree.Undo(w.ctx)
				must(t, err)
				w.learn()
				// Hard links to outside of what is restored become files of their own.
				if got, want := noLinks(dumpModel(w.root)), noLinks(want); got != want {
					t.Fatalf("step %d: restored %s to %s, and undone:\n%s", i, name, to, difference(got, want))
				}
			}
		case k < 8:
			w.reopen()
		}
		if i%100 == 99 {
			w.compare(t, fmt.Sprintf("step %d", i))
		}
	}
}

// TestAdopt puts a tree in by its CID and changes a part of it.
func TestAdopt(t *testing.T) {
	w := newWorld(newRig(t), 1)
	for range 300 {
		must(t, w.step())
	}
	root, err := w.tree.Seal(w.ctx, tree.RootIno)
	must(t, err)
	_, err = w.tree.Adopt(w.ctx, tree.Cred{Uid: 7}, root.Cid, "copy", false)
	must(t, err)
	if _, err := w.tree.Adopt(w.ctx, tree.Cred{Uid: 7}, root.Cid, "copy", false); !errors.Is(err, fs.ErrExist) {
		t.Errorf("adopted over something: %v", err)
	}
	a, err := w.tree.Lookup(tree.RootIno, "copy")
	must(t, err)
	before, _, err := w.tree.Commit(w.ctx, tree.CommitOptions{Reason: "snapshot"})
	must(t, err)
	if a.Nlink != 1 || a.Uid != 7 {
		t.Errorf("the adopted directory has %+v", a)
	}
	w.learn()
	if got, err := w.tree.Seal(w.ctx, a.Ino); got.Cid != root.Cid {
		t.Errorf("expanded: %s, %v; want %s", got.Cid, err, root.Cid)
	}
	for _, n := range w.all(func(n *node) bool { return n.kind == index.File }) {
		if n.parent == nil {
			_, err := w.tree.Setattr(w.ctx, n.ino, tree.SetAttr{Mask: tree.SetPerm, Perm: 0o601})
			must(t, err)
			n.perm = 0o601
		}
	}
	w.compare(t, "after chmod")
	after, _, err := w.tree.Commit(w.ctx, tree.CommitOptions{Reason: "snapshot"})
	must(t, err)
	if got, want := w.dumpCommit(after), dumpModel(w.root); got != want {
		t.Errorf("the commit has\n%s", difference(got, want))
	}
	_, err = w.tree.Restore(w.ctx, before.Cid, "copy", "copy")
	must(t, err)
	w.learn()
	w.compare(t, "restored")
}

// TestUndoDropped: what a restore replaced can be brought back for as long as
// the commit of it is kept, and a commit that is not kept is not restored,
// although its blocks may still be there.
func TestUndoDropped(t *testing.T) {
	w := newWorld(newRig(t), 2)
	for range 200 {
		must(t, w.step())
	}
	k, _, err := w.tree.Commit(w.ctx, tree.CommitOptions{Reason: "snapshot"})
	must(t, err)
	for range 50 {
		must(t, w.step())
	}
	_, err = w.tree.Restore(w.ctx, k.Cid, "/", "/")
	must(t, err)
	must(t, w.tree.DropCommits(w.ctx, w.kept()...))
	w.learn()
	if _, _, err := w.tree.Undo(w.ctx); !errors.Is(err, tree.ErrNothing) {
		t.Errorf("undone without the commit: %v", err)
	}
	if _, err := w.tree.Restore(w.ctx, k.Cid, "/", "/"); !errors.Is(err, tree.ErrNoCommit) {
		t.Errorf("restored a commit that is not kept: %v", err)
	}
	w.collect(tree.CollectOptions{})
	w.compare(t, "after all")
}
