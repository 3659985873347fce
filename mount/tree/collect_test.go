package tree_test

import (
	"context"
	"iter"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/mount/tree"
	"cafs/mount/tree/gc"
	"cafs/mount/tree/index"
)

func (r *rig) collect(o tree.CollectOptions) tree.Collected {
	o.Heap = r.store
	got, err := r.tree.Collect(r.ctx, o)
	must(r.t, err)
	return got
}

// blocks lists what is in the store.
func (r *rig) blocks() map[string]bool {
	all := map[string]bool{}
	for h, err := range r.store.Keys(r.ctx) {
		must(r.t, err)
		all[string(h)] = true
	}
	return all
}

// needed lists what a collection must leave, by another way than it does: what
// the tree and the commits say when they are read to the end.
func (r *rig) needed(kept []tree.Kept) map[string]bool {
	need := map[string]bool{}
	deep := func(c cid.Cid) {
		must(r.t, gc.Walk(r.ctx, r.load, c, func(c cid.Cid) (bool, error) {
			need[string(c.Hash())] = true
			return true, nil
		}))
	}
	for in, err := range r.db.Inodes(0) {
		must(r.t, err)
		if in.Kind == index.File || in.Lazy {
			deep(in.Base)
		}
		for e, err := range r.db.Extents(in.Ino) {
			must(r.t, err)
			if e.Kind == index.Block {
				need[string(e.Block.Hash())] = true
			}
		}
	}
	for _, k := range kept {
		need[string(k.Cid.Hash())] = true
		c, err := r.tree.LoadCommit(r.ctx, k.Cid)
		must(r.t, err)
		deep(c.Root.Cid)
		deep(c.Root.Record)
		deep(c.Links)
		for _, x := range c.Root.Xattrs {
			deep(x.Block)
		}
	}
	return need
}

// TestCollect collects at every step of random histories. Everything that can
// be reached stays readable, and the rest is gone at most one run later.
func TestCollect(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	w := newWorld(newRig(t), seed)
	var kept []tree.Kept
	dumps := map[cid.Cid]string{}
	var deleted int64
	for i := range *stepsFlag / 3 {
		must(t, w.step())
		switch k := w.rng.IntN(100); {
		case k < 6:
			c, _, err := w.tree.Commit(w.ctx, tree.CommitOptions{Reason: "snapshot"})
			must(t, err)
			kept = append(kept, c)
			dumps[c.Cid] = w.dumpCommit(c)
		case k < 10 && len(kept) > 0:
			j := w.rng.IntN(len(kept))
			must(t, w.tree.DropCommits(w.ctx, kept[j]))
			kept = append(kept[:j], kept[j+1:]...)
		case k < 12 && len(kept) > 0:
			_, err := w.tree.Restore(w.ctx, kept[w.rng.IntN(len(kept))].Cid, "/", "/")
			must(t, err)
			kept = w.kept()
			w.learn()
		case k < 14:
			_, err := w.tree.Seal(w.ctx, w.pick(index.Dir).ino)
			must(t, err)
		case k < 15:
			w.reopen()
		}
		deleted += w.collect(tree.CollectOptions{}).Garbage
		if i%25 == 0 {
			w.compare(t, "after a collection")
			for _, c := range kept {
				if got := w.dumpCommit(c); dumps[c.Cid] != "" && got != dumps[c.Cid] {
					t.Fatalf("step %d: a commit is now\n%s\nwas\n%s", i, got, dumps[c.Cid])
				}
			}
		}
	}
	kept = w.kept()
	w.collect(tree.CollectOptions{})
	need := w.needed(kept)
	have := w.blocks()
	for h := range need {
		if !have[h] {
			t.Errorf("block %x is missing", h)
		}
	}
	// Blocks of directories and of their records are needed too: what they are
	// is only known to the collection, so they are counted.
	dirs := 0
	for in, err := range w.db.Inodes(0) {
		must(t, err)
		if in.Kind == index.Dir {
			dirs++
		}
	}
	if extra := len(have) - len(need); extra > 40*dirs {
		t.Errorf("%d blocks are left beside the %d needed, with %d directories", extra, len(need), dirs)
	}
	if deleted == 0 {
		t.Error("nothing was ever deleted")
	}
	t.Logf("%d blocks deleted, %d left", deleted, len(have))
}

func (r *rig) kept() (all []tree.Kept) {
	for k, err := range r.tree.Commits() {
		must(r.t, err)
		all = append(all, k)
	}
	return all
}

// TestCollectEmpty removes everything: nothing but the empty directory is left.
func TestCollectEmpty(t *testing.T) {
	w := newWorld(newRig(t), 3)
	for range 400 {
		must(t, w.step())
	}
	_, _, err := w.tree.Commit(w.ctx, tree.CommitOptions{Name: "all", Reason: "snapshot"})
	must(t, err)
	w.reopen() // gives up what the history holds open
	var clear func(n *node)
	clear = func(n *node) {
		for name, c := range n.entries {
			if c.dir() {
				clear(c)
				must(t, w.tree.Rmdir(n.ino, name))
			} else {
				must(t, w.tree.Unlink(n.ino, name))
			}
		}
	}
	clear(w.root)
	_, err = w.tree.Seal(w.ctx, tree.RootIno)
	must(t, err)
	survey := w.collect(tree.CollectOptions{DryRun: true})
	if survey.HistoryBytes == 0 || survey.HistoryBlocks+survey.TreeBlocks+survey.Garbage != int64(len(w.blocks())) {
		t.Errorf("survey %+v of %d blocks", survey, len(w.blocks()))
	}
	w.collect(tree.CollectOptions{})
	must(t, w.tree.DropCommits(w.ctx, w.kept()...))
	w.collect(tree.CollectOptions{})
	if left := len(w.blocks()); left > 40 { // the empty directory, and the last record of the root
		t.Errorf("%d blocks are left", left)
	}
}

// TestCollectBeside collects again and again beside writers, commits and
// removals, then reads everything.
func TestCollectBeside(t *testing.T) {
	r := newRig(t)
	ctx, stop := context.WithTimeout(r.ctx, 3*time.Second)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := r.tree.Collect(ctx, tree.CollectOptions{Heap: r.store}); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	}()
	rng := rand.New(rand.NewPCG(7, 7))
	files := map[string][]byte{}
	var ks []tree.Kept
	var sums []string
	for i := 0; ctx.Err() == nil; i++ {
		name := "f" + string(rune('a'+rng.IntN(20)))
		switch rng.IntN(8) {
		case 0:
			if files[name] != nil {
				must(t, r.tree.Unlink(tree.RootIno, name))
				delete(files, name)
			}
		case 1:
			_, err := r.tree.Seal(r.ctx, tree.RootIno)
			must(t, err)
		case 2:
			k, _, err := r.tree.Commit(r.ctx, tree.CommitOptions{Reason: "snapshot"})
			must(t, err)
			ks, sums = append(ks, k), append(sums, r.dumpCommit(k))
		case 3:
			if len(ks) > 0 {
				j := rng.IntN(len(ks))
				must(t, r.tree.DropCommits(r.ctx, ks[j]))
				ks, sums = append(ks[:j], ks[j+1:]...), append(sums[:j], sums[j+1:]...)
			}
		default:
			a, err := r.tree.Lookup(tree.RootIno, name)
			if err != nil {
				a, err = r.tree.Create(tree.Cred{}, tree.RootIno, name, tree.Node{Kind: index.File, Perm: 0o644})
				must(t, err)
				files[name] = []byte{}
			}
			data := []byte(strings.Repeat(string(rune('a'+rng.IntN(3))), chunk*(1+rng.IntN(6))))
			_, err = r.tree.Write(r.ctx, a.Ino, data, 0, false)
			must(t, err)
			if len(data) > len(files[name]) {
				files[name] = data
			} else {
				files[name] = append(append([]byte{}, data...), files[name][len(data):]...)
			}
			r.tree.Forget(a.Ino, 1)
		}
	}
	<-done
	for name, want := range files {
		a, err := r.tree.Lookup(tree.RootIno, name)
		must(t, err)
		got := make([]byte, a.Size)
		n, err := r.tree.Read(r.ctx, a.Ino, got, 0)
		if n != len(want) || string(got) != string(want) {
			t.Errorf("%s: %d bytes of %d, %v", name, n, len(want), err)
		}
	}
	for i, k := range ks {
		if r.dumpCommit(k) != sums[i] {
			t.Errorf("commit %s is another", k.Cid)
		}
	}
}

// TestKeep adopts content that nothing refers to while a collection sweeps.
func TestKeep(t *testing.T) {
	r := newRig(t)
	a, err := r.tree.Create(tree.Cred{}, tree.RootIno, "f", tree.Node{Kind: index.File, Perm: 0o644})
	must(t, err)
	_, err = r.tree.Write(r.ctx, a.Ino, make([]byte, 5*chunk+1), 0, false)
	must(t, err)
	root, err := r.tree.Seal(r.ctx, a.Ino)
	must(t, err)
	must(t, r.tree.Unlink(tree.RootIno, "f"))
	r.tree.Forget(a.Ino, 1)
	heap := &pausing{Heap: r.store}
	heap.pause = func() {
		if _, err := r.tree.Adopt(r.ctx, tree.Cred{}, root.Cid, "again", false); err != nil {
			t.Error(err)
		}
	}
	_, err = r.tree.Collect(r.ctx, tree.CollectOptions{Heap: heap})
	must(t, err)
	b, err := r.tree.Lookup(tree.RootIno, "again")
	must(t, err)
	if n, err := r.tree.Read(r.ctx, b.Ino, make([]byte, b.Size), 0); n != 5*chunk+1 {
		t.Errorf("read %d, %v", n, err)
	}
	_, err = r.tree.Collect(r.ctx, tree.CollectOptions{Heap: r.store})
	must(t, err)
	if n, err := r.tree.Read(r.ctx, b.Ino, make([]byte, b.Size), 0); n != 5*chunk+1 {
		t.Errorf("read %d, %v", n, err)
	}
}

// pausing calls pause when the sweep begins.
type pausing struct {
	tree.Heap
	pause func()
}

func (p *pausing) Keys(ctx context.Context) iter.Seq2[mh.Multihash, error] {
	p.pause()
	return p.Heap.Keys(ctx)
}
