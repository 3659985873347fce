package tree_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys/unixfs"
	"cafs/mount/tree"
	"cafs/mount/tree/gc"
	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
	"cafs/store"
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

// needed lists what a collection must leave, and nothing else, by another way
// than it does: what the tree and the commits say when they are read to the end.
func (r *rig) needed(kept []tree.Kept) map[string]bool {
	need := map[string]bool{}
	deep := func(c cid.Cid) {
		must(r.t, gc.Walk(r.ctx, r.load, c, gc.Deep, func(c cid.Cid) (bool, error) {
			need[string(c.Hash())] = true
			return true, nil
		}))
	}
	// own adds the blocks of a map of entries, or of a directory, itself.
	var own func(c cid.Cid)
	own = func(c cid.Cid) {
		if !c.Defined() || c.Prefix().MhType == mh.IDENTITY {
			return
		}
		need[string(c.Hash())] = true
		if c.Prefix().Codec == cid.Raw {
			return
		}
		b, err := r.load(r.ctx, c)
		must(r.t, err)
		if c.Prefix().Codec == cid.DagProtobuf {
			n, err := unixfs.DecodeNode(c, b)
			must(r.t, err)
			if n.Type == unixfs.HAMT {
				for l := range n.Shards() {
					own(l.Cid)
				}
			}
			return
		}
		must(r.t, history.Refs(b, func(c cid.Cid, mine bool) error {
			if mine {
				own(c)
			}
			return nil
		}))
	}
	for in, err := range r.db.Inodes(0) {
		must(r.t, err)
		if in.Kind == index.Dir && !in.Lazy {
			own(in.Base)
			own(in.Record)
			continue
		}
		deep(in.Base)
		deep(in.Record)
		for e, err := range r.db.Extents(in.Ino) {
			must(r.t, err)
			if e.Kind == index.Block {
				need[string(e.Block.Hash())] = true
			}
		}
	}
	if links, err := r.db.Ref("record/links"); err == nil {
		c, err := cid.Cast(links)
		must(r.t, err)
		own(c)
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
	w.collect(tree.CollectOptions{}) // spares what it put itself, by publishing
	w.collect(tree.CollectOptions{})
	need, have := w.needed(w.kept()), w.blocks()
	for h := range need {
		if !have[h] {
			t.Errorf("block %x is missing", h)
		}
	}
	for h := range have {
		if !need[h] {
			t.Errorf("block %x is left after two collections, and nothing refers to it", h)
		}
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
	w.clear(w.root)
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
			_, err = r.tree.Write(r.ctx, a.Ino, data, 0, nil)
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
	_, err = r.tree.Write(r.ctx, a.Ino, make([]byte, 5*chunk+1), 0, nil)
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

// TestCollectFolded: bytes that were published before they became a block, which
// only memory knows of, are not lost when the file is sealed from that block
// after a collection.
func TestCollectFolded(t *testing.T) {
	for round := range 30 { // whether the block comes after the publication is a race
		r := newRig(t)
		a, err := r.tree.Create(tree.Cred{}, tree.RootIno, "f", tree.Node{Kind: index.File, Perm: 0o644})
		must(t, err)
		var want []byte
		for _, w := range []struct{ off, n int }{{chunk - 900, 1020}, {chunk + 62, chunk + 1000}} {
			part := bytes.Repeat([]byte{byte(1 + round), 2, 3}, w.n)[:w.n]
			_, err := r.tree.Write(r.ctx, a.Ino, part, int64(w.off), nil)
			must(t, err)
			want = append(append(want, make([]byte, max(0, w.off-len(want)))...)[:w.off], part...)
			for range 2 {
				r.collect(tree.CollectOptions{}) // which publishes
			}
		}
		root, err := r.tree.Seal(r.ctx, a.Ino)
		must(t, err)
		if got := r.content(root.Cid); !bytes.Equal(got, want) {
			t.Fatalf("round %d: other bytes", round)
		}
		r.close(true)
	}
}

// TestAdoptMissing: an attempt to adopt what is not there, or only in part,
// while a collection marks does not end it, nor does it keep anything.
func TestAdoptMissing(t *testing.T) {
	w := newWorld(newRig(t), 5)
	for range 200 {
		must(t, w.step())
	}
	missing := cid.NewCidV1(cid.DagProtobuf, mustSum(t, "never put"))
	pins := func() iter.Seq2[cid.Cid, error] {
		if _, err := w.tree.Adopt(w.ctx, tree.Cred{}, missing, "x", false); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("adopted: %v", err)
		}
		if err := w.tree.Keep(w.ctx, func() error { return store.ErrNotFound }, missing); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("kept: %v", err)
		}
		return func(func(cid.Cid, error) bool) {}
	}
	w.collect(tree.CollectOptions{Pins: pins})
	w.compare(t, "after a collection")
}

func mustSum(t *testing.T, text string) mh.Multihash {
	h, err := mh.Sum([]byte(text), mh.SHA2_256, -1)
	must(t, err)
	return h
}

// TestAccount: what only a path holds is what a collection deletes after it was
// removed, and counts are those of the model.
func TestAccount(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	w := newWorld(newRig(t), seed)
	for round := range 8 {
		for range 100 {
			must(t, w.step())
		}
		switch w.rng.IntN(4) {
		case 0:
			_, _, err := w.tree.Commit(w.ctx, tree.CommitOptions{Reason: "snapshot"})
			must(t, err)
		case 1:
			if kept := w.kept(); len(kept) > 0 { // lazy directories
				_, err := w.tree.Restore(w.ctx, kept[w.rng.IntN(len(kept))].Cid, "/", "/")
				must(t, err)
				w.learn()
			}
		case 2:
			must(t, w.tree.DropCommits(w.ctx, w.kept()...))
		}
		w.reopen() // no file is held open
		must(t, w.tree.EmptyGrave(w.ctx))
		for range 2 { // the first one spares, and does not count, what it publishes itself
			w.collect(tree.CollectOptions{})
		}
		if got := w.collect(tree.CollectOptions{DryRun: true}); got.Garbage != 0 {
			t.Fatalf("round %d: after two collections there is garbage: %+v", round, got)
		}
		names := slices.Sorted(maps.Keys(w.root.entries))
		if len(names) == 0 {
			continue
		}
		name := names[w.rng.IntN(len(names))]
		n := w.root.entries[name]
		before := w.blocks()
		got, err := w.tree.Account(w.ctx, name, tree.CollectOptions{Heap: w.store})
		must(t, err)
		want := map[index.Kind]int64{}
		var logical int64
		seen := map[*node]bool{}
		var count func(n *node)
		count = func(n *node) {
			if !seen[n] {
				seen[n] = true
				want[n.kind]++
				logical += int64(len(n.data))
			}
			for _, c := range n.entries {
				count(c)
			}
		}
		count(n)
		if got.Files != want[index.File] || got.Dirs != want[index.Dir] || got.Symlinks != want[index.Symlink] || got.Others != want[index.Fifo]+want[index.CharDev] || got.Logical != logical {
			t.Fatalf("round %d: account of %s is %+v, want %v and %d bytes", round, name, got, want, logical)
		}
		if n.dir() {
			w.clear(n)
			must(t, w.root.rmdir(name))
			must(t, w.tree.Rmdir(tree.RootIno, name))
		} else {
			must(t, w.root.unlink(name))
			must(t, w.tree.Unlink(tree.RootIno, name))
		}
		r := w.collect(tree.CollectOptions{DryRun: true})
		if !maps.Equal(before, w.blocks()) {
			continue // some were made of contents in the background
		}
		if r.Garbage != got.OnlyBlocks || r.GarbageBytes != got.Only-got.Unsealed {
			t.Fatalf("round %d: removing %s makes garbage of %d blocks, %d bytes; its account is %+v", round, name, r.Garbage, r.GarbageBytes, got)
		}
	}
}

// clear removes everything below a directory, in the model too.
func (w *world) clear(n *node) {
	for name, c := range n.entries {
		if c.dir() {
			w.clear(c)
			must(w.t, n.rmdir(name))
			must(w.t, w.tree.Rmdir(n.ino, name))
		} else {
			must(w.t, n.unlink(name))
			must(w.t, w.tree.Unlink(n.ino, name))
		}
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
