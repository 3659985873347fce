package verify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree"
	"cafs/mount/tree/gc"
	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
)

// owners finds out to which paths bad blocks belong. It runs only where there
// are some, and costs a walk over all blocks that link to others.
type owners struct {
	*run
	snap *index.Snapshot
	// clean has the roots of files, and the directories of history, below which
	// nothing is bad.
	clean map[string]bool
	dirs  []index.Ino // directories of the tree with bad blocks of their own
}

func (w *owners) find(ctx context.Context) error {
	w.clean = map[string]bool{}
	for in, err := range w.snap.Inodes(0) {
		if err == nil {
			err = w.inode(ctx, in)
		}
		if err != nil {
			return err
		}
	}
	for p, err := range w.Pins() {
		if err != nil {
			return err
		}
		if _, err := w.below(ctx, p.Cid, gc.Deep, fmt.Sprintf("pin %s %q", p.Cid, p.Name)); err != nil {
			return err
		}
	}
	for k, err := range tree.Commits(w.snap) {
		if err != nil {
			return err
		}
		if err := w.commit(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

// inode looks at what an inode of the tree refers to itself.
func (w *owners) inode(ctx context.Context, in index.InodeAt) error {
	depth, record := gc.Deep, gc.Deep
	if in.Kind == index.Dir && !in.Lazy {
		depth, record = gc.Shards, gc.Record
	}
	var paths []string
	path := func() []string {
		if paths == nil {
			if paths = PathsOf(w.snap, in.Ino); paths == nil {
				paths = []string{fmt.Sprintf("(a file that was removed and is in use, inode %d)", in.Ino)}
			}
		}
		return paths
	}
	bad, err := w.under(ctx, in.Base, depth, path)
	if err != nil {
		return err
	}
	more, err := w.under(ctx, in.Record, record, path)
	if err != nil {
		return err
	}
	if in.Kind == index.Dir && !in.Lazy && (bad || more) {
		w.dirs = append(w.dirs, in.Ino)
	}
	if in.Kind != index.File || !in.Unsealed {
		return nil
	}
	for e, err := range w.snap.Extents(in.Ino) {
		if err == nil && e.Kind == index.Block {
			_, err = w.under(ctx, e.Block, gc.Deep, path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// below is under for one path.
func (w *owners) below(ctx context.Context, root cid.Cid, depth gc.Depth, path string) (bad bool, err error) {
	return w.under(ctx, root, depth, func() []string { return []string{path} })
}

// under adds paths to the findings of all bad blocks that the root reaches.
func (w *owners) under(ctx context.Context, root cid.Cid, depth gc.Depth, paths func() []string) (bad bool, err error) {
	if !root.Defined() {
		return false, nil
	}
	key := string(append(root.Bytes(), byte(depth)))
	if w.clean[key] {
		return false, nil
	}
	err = gc.Walk(ctx, w.Store.Get, root, depth, func(c cid.Cid) (bool, error) {
		f := w.bad[string(c.Hash())]
		if f == nil {
			return true, nil
		}
		bad = true
		f.Cid = c // the codec is known now
		f.needed(paths())
		return false, nil
	})
	if err != nil && ctx.Err() == nil {
		err = nil // a block that was sound a moment ago; the next run will find it
	}
	if !bad && root.Prefix().Codec != cid.Raw {
		w.clean[key] = true
	}
	return bad, err
}

// needed adds paths that need the block.
func (f *Finding) needed(paths []string) {
	for _, p := range paths {
		switch {
		case slices.Contains(f.Paths, p):
		case len(f.Paths) == maxPaths:
			f.More++
		default:
			f.Paths = append(f.Paths, p)
		}
	}
}

// commit looks through a kept commit. What is bad in the tree, too, is told of
// both.
func (w *owners) commit(ctx context.Context, k tree.Kept) error {
	name := k.Name
	if name == "" {
		name = k.Time.Local().Format(time.RFC3339)
	}
	name = "snapshot " + name
	if f := w.bad[string(k.Cid.Hash())]; f != nil {
		f.Cid = k.Cid
		f.needed([]string{name})
		return nil
	}
	c, err := w.Tree.LoadCommit(ctx, k.Cid)
	if err != nil {
		return ctx.Err()
	}
	if _, err := w.below(ctx, c.Links, gc.Record, name); err != nil {
		return err
	}
	_, err = w.entry(ctx, name+": ", &c.Root, c.Links)
	return err
}

// entry looks through what an entry of a commit leads to.
func (w *owners) entry(ctx context.Context, path string, e *history.Entry, links cid.Cid) (bad bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	for _, x := range e.Xattrs {
		b, err := w.below(ctx, x.Block, gc.Deep, path)
		if err != nil {
			return false, err
		}
		bad = bad || b
	}
	if e.Kind != index.Dir {
		b, err := w.below(ctx, e.Cid, gc.Deep, path)
		return bad || b, err
	}
	key := e.Cid.KeyString() + e.Record.KeyString() + links.KeyString()
	if w.clean[key] {
		return bad, nil
	}
	for _, own := range []struct {
		c     cid.Cid
		depth gc.Depth
	}{{e.Cid, gc.Shards}, {e.Record, gc.Record}} {
		b, err := w.below(ctx, own.c, own.depth, path+"/")
		if err != nil {
			return false, err
		}
		bad = bad || b
	}
	r := w.Tree.Reader()
	for child, err := range r.List(ctx, e) {
		if err != nil {
			break // of what is below nothing is known
		}
		if child, err = r.Resolve(ctx, links, child); err != nil {
			continue
		}
		b, err := w.entry(ctx, path+"/"+child.Name, &child, links)
		if err != nil {
			return false, err
		}
		bad = bad || b
	}
	if !bad {
		w.clean[key] = true
	}
	return bad, ctx.Err()
}
