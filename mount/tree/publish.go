package tree

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
)

const (
	// inlineFsync is how many bytes an fsync may carry inside the index batch:
	// one flush instead of two.
	inlineFsync = 32 << 10
	// inlineTick is the same for the commit tick, where many files share the
	// staging flush and small index records are worth more.
	inlineTick = 256
	// publishGroup bounds the files published together, so that an fsync of one
	// of them does not wait for long.
	publishGroup = 512
)

// Fsync makes durable the contents of ino and every namespace and attribute
// operation that returned before. It does not wait for the contents of others.
func (t *Tree) Fsync(ctx context.Context, ino Ino) error {
	n, err := t.pin(ino)
	if err != nil {
		return err
	}
	defer t.unpin(n)
	if err := t.publish(ctx, inlineFsync, n); err != nil {
		return err
	}
	return t.db.Sync(ctx)
}

// Sync is a barrier: all that was done before is durable when it returns.
func (t *Tree) Sync(ctx context.Context) error {
	if err := t.publishAll(ctx); err != nil {
		return err
	}
	return t.db.Sync(ctx)
}

// publishAll publishes the contents of all files changed so far.
func (t *Tree) publishAll(ctx context.Context) error {
	inos := t.dirtySet.list()
	slices.Sort(inos)
	var first error
	for group := range slices.Chunk(inos, publishGroup) {
		nodes := make([]*inode, 0, len(group))
		for _, ino := range group {
			n, err := t.pin(ino)
			if errors.Is(err, syscall.ESTALE) {
				continue // removed meanwhile
			}
			if err != nil {
				first = errors.Join(first, err)
				continue
			}
			n.mu.RLock()
			named := n.rec.Nlink > 0
			n.mu.RUnlock()
			if !named { // not to be found after a crash: not worth writing
				t.unpin(n)
				continue
			}
			nodes = append(nodes, n)
		}
		first = errors.Join(first, t.publish(ctx, inlineTick, nodes...))
		for _, n := range nodes {
			t.unpin(n)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return first
}

// publishIno publishes the contents of ino, if it is a file.
func (t *Tree) publishIno(ctx context.Context, ino Ino) error {
	n, err := t.pin(ino)
	if errors.Is(err, syscall.ESTALE) {
		return nil
	} else if err != nil {
		return err
	}
	defer t.unpin(n)
	return t.publish(ctx, inlineFsync, n)
}

// publish enters the contents of pinned inodes, in ascending order, into the
// index: the bytes first, then a batch per inode (DESIGN 5a, O1). Inodes whose
// contents are published already cost nothing.
func (t *Tree) publish(ctx context.Context, inline int, nodes ...*inode) (first error) {
	type pending struct {
		n   *inode
		cut *content.Cut
	}
	var work []pending
	var cuts []*content.Cut
	defer func() {
		for _, w := range work {
			w.n.publish.Unlock()
		}
	}()
	for _, n := range nodes {
		if !n.dirty.Load() {
			continue
		}
		n.publish.Lock()
		cut, err := t.cut(n)
		first = errors.Join(first, err)
		if cut == nil {
			n.publish.Unlock()
			continue
		}
		work, cuts = append(work, pending{n, cut}), append(cuts, cut)
	}
	if len(work) == 0 {
		return first
	}
	first = errors.Join(first, t.content.Stage(ctx, inline, cuts...))
	for _, w := range work {
		// One file that cannot be written out does not hold up the others.
		if w.cut.Err() != nil {
			w.cut.Abort()
			continue
		}
		w.n.mu.Lock()
		first = errors.Join(first, t.commitCut(w.n, w.cut))
		w.n.mu.Unlock()
	}
	return first
}

// cut takes a cut of n's contents if they are not published yet, with n and
// what is above it marked as unsealed. The caller holds n.publish.
func (t *Tree) cut(n *inode) (*content.Cut, error) {
	t.ns.RLock()
	err := t.mark(n)
	t.ns.RUnlock()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file == nil || !n.file.Dirty() {
		if n.dirty.Load() { // a change that changed nothing but the times
			e := t.begin()
			defer e.Close()
			e.rec(n)
			if err := e.commit(); err != nil {
				return nil, err
			}
			t.dirtySet.remove(n)
		}
		return nil, nil
	}
	return n.file.Cut(), nil
}

// commitCut enters a staged cut into the index. The caller holds n.mu for
// writing, and n.publish.
func (t *Tree) commitCut(n *inode, cut *content.Cut) error {
	if err := t.enterCut(n, cut, func(*index.Inode) {}); err != nil {
		return err
	}
	t.quiet.touch(n.ino, time.Now(), t.opts.SealAfter)
	return nil
}

// enterCut enters a staged cut into the index with what else changes in the
// record of the locked inode.
func (t *Tree) enterCut(n *inode, cut *content.Cut, change func(*index.Inode)) error {
	e := t.begin()
	defer e.Close()
	rec := e.rec(n)
	cut.Fill(e.Batch)
	rec.Content = cut.Content()
	rec.Alloc = n.file.Blocks() * 512
	change(rec)
	if err := e.commit(); err != nil {
		cut.Abort()
		return err
	}
	cut.Commit()
	if !n.file.Dirty() {
		t.dirtySet.remove(n)
	}
	return nil
}

// publishLocked publishes n, whose lock the caller holds for writing as well as
// the namespace's. It reports false when another cut of n is under way: whoever
// made that one needs the namespace to finish it.
func (t *Tree) publishLocked(ctx context.Context, n *inode) (bool, error) {
	if !n.publish.TryLock() {
		return false, nil
	}
	defer n.publish.Unlock()
	cut := n.file.Cut()
	if err := t.content.Stage(ctx, inlineFsync, cut); err != nil {
		cut.Abort()
		return true, err
	}
	return true, t.commitCut(n, cut)
}

// mark notes that n differs from its CID: in its record, and in those of all
// directories above it with the names that lead to it, from the top down, so
// that an unsealed inode never lies below a directory that counts as sealed,
// after a crash either. The caller holds ns, and no inode.
func (t *Tree) mark(n *inode) error {
	if err := t.note(n); err != nil {
		return err
	}
	return t.markContents(n)
}

// markContents is mark for what a seal does: it changes nothing that a commit
// records, so it makes no note.
func (t *Tree) markContents(n *inode) error {
	n.mu.RLock()
	if n.rec.Unsealed {
		n.mu.RUnlock()
		return nil
	}
	rec := n.copyRec()
	n.mu.RUnlock()
	if n.ino != RootIno && n.ino != t.grave.ino() && rec.Nlink > 0 {
		names, err := t.namesOf(n.ino, &rec)
		if err != nil {
			return err
		}
		for _, ref := range names {
			if err := t.markName(ref); err != nil {
				return err
			}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := t.begin()
	defer e.Close()
	e.rec(n).Unsealed = true
	return e.commit()
}

// markName marks the directory that holds a name, and the name in it.
func (t *Tree) markName(ref index.Backref) error {
	p, err := t.pin(ref.Parent)
	if err != nil {
		return err
	}
	defer t.unpin(p)
	if err := t.markContents(p); err != nil {
		return err
	}
	d, err := t.db.DirentAt(ref.Parent, ref.Cookie)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile, which was noted
	} else if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := t.begin()
	defer e.Close()
	t.differs(e, p, d.Name)
	return e.commit()
}
