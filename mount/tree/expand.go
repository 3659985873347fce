package tree

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
)

// reader reads recorded trees and bare content.
func (t *Tree) reader() history.Reader { return history.Reader{Sys: t.opts.Sys, Load: t.load} }

// expand enters the entries of a lazy directory into the index, in one batch.
// Directories among them are lazy in turn. That changes nothing of what the
// directory is, so nothing is marked or noted. The caller holds no inode but
// directories above n.
func (t *Tree) expand(n *inode) error {
	if n.kind != index.Dir {
		return nil
	}
	n.mu.RLock()
	lazy := n.rec.Lazy
	n.mu.RUnlock()
	if !lazy {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.rec.Lazy {
		return nil
	}
	e := t.begin()
	defer e.Close()
	rec := e.rec(n)
	dir := entryOf(&n.rec)
	ctx := t.life
	var entries []history.Entry
	for child, err := range t.reader().List(ctx, &dir) {
		if err != nil {
			return fmt.Errorf("tree: directory %d from %s: %w", n.ino, n.rec.Base, err)
		}
		entries = append(entries, child)
	}
	first, err := t.newInos(len(entries))
	if err != nil {
		return err
	}
	for i := range entries {
		child := &entries[i]
		if child.Link != (history.LinkID{}) {
			return fmt.Errorf("tree: directory %d: %q has several names: %w", n.ino, child.Name, index.ErrCorrupt)
		}
		rec.Next++
		d := Dirent{Name: child.Name, Ino: first + Ino(i), Kind: child.Kind, Cookie: rec.Next}
		in := inodeOf(child)
		in.Parent, in.Cookie = n.ino, d.Cookie
		if err := t.setXattrs(ctx, e.Batch, d.Ino, &in, child); err != nil {
			return err
		}
		e.SetDirent(n.ino, d)
		e.SetInode(d.Ino, &in)
		if child.Kind == index.Dir {
			rec.Nlink++
		}
	}
	rec.Lazy = false
	return e.commit()
}

// expandIno expands a directory unless it is so; done tells whether it did, or
// somebody else may just have done it.
func (t *Tree) expandIno(dir Ino) (done bool, err error) {
	n, err := t.pin(dir)
	if errors.Is(err, syscall.ESTALE) {
		return false, nil // the look-up in the index tells
	} else if err != nil {
		return false, err
	}
	defer t.unpin(n)
	if n.kind != index.Dir {
		return false, nil
	}
	n.mu.RLock()
	lazy := n.rec.Lazy
	n.mu.RUnlock()
	if !lazy {
		return false, nil
	}
	return true, t.expand(n)
}

// beforeAttrs prepares a change of n's attributes: the next commit will look at
// it, and what is below a lazy directory gets attributes of its own. The caller
// holds moment.
func (t *Tree) beforeAttrs(n *inode) error {
	t.ns.RLock()
	defer t.ns.RUnlock()
	if err := t.expand(n); err != nil {
		return err
	}
	return t.note(n)
}

// entryOf is the directory's part of an entry that children depend on.
func entryOf(rec *index.Inode) history.Entry {
	return history.Entry{Kind: rec.Kind, Perm: rec.Perm, Uid: rec.Uid, Gid: rec.Gid,
		Atime: rec.Atime, Mtime: rec.Mtime, Ctime: rec.Ctime, Btime: rec.Btime, Cid: rec.Base, Record: rec.Record}
}

// inodeOf is the inode of an entry that is no link id: sealed, with one name,
// and if it is a directory lazy.
func inodeOf(e *history.Entry) index.Inode {
	in := index.Inode{
		Kind: e.Kind, Perm: e.Perm, Uid: e.Uid, Gid: e.Gid, Rdev: e.Rdev, Nlink: 1,
		Atime: e.Atime, Mtime: e.Mtime, Ctime: e.Ctime, Btime: e.Btime, Target: e.Target,
		Content: index.Content{Base: e.Cid}, Tsize: e.Tsize, Xattrs: uint32(len(e.Xattrs)),
	}
	switch e.Kind {
	case index.Dir:
		in.Nlink, in.Record, in.Lazy = 2, e.Record, true
	case index.File:
		in.Size, in.BaseSize, in.BaseData, in.Alloc = e.Size, e.Size, e.Data, e.Data
		if e.Size > 0 {
			in.Visible = []index.Range{{Len: e.Size}}
		}
	}
	return in
}

// setXattrs enters the extended attributes of an entry.
func (t *Tree) setXattrs(ctx context.Context, b *index.Batch, ino Ino, in *index.Inode, e *history.Entry) error {
	in.Xattrs = uint32(len(e.Xattrs))
	for _, x := range e.Xattrs {
		val, err := history.XattrValue(ctx, t.load, x)
		if err != nil {
			return err
		}
		b.SetXattr(ino, x.Name, val)
	}
	return nil
}

// newInos returns the first of n consecutive inode numbers.
func (t *Tree) newInos(n int) (Ino, error) {
	if n == 0 {
		return 0, nil
	}
	return t.db.ReserveInos(n)
}

// walk finds a slash-separated path of the tree, following no links, and takes
// a reference. Errors: fs.ErrNotExist, ENOTDIR.
func (t *Tree) walk(names []string) (*inode, error) {
	n, err := t.pin(RootIno)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		a, err := t.Lookup(n.ino, name)
		if err == nil && n.kind != index.Dir {
			err = syscall.ENOTDIR
		}
		t.unpin(n)
		if err != nil {
			return nil, err
		}
		if n, err = t.pin(a.Ino); err != nil {
			return nil, err
		}
		t.Forget(a.Ino, 1)
	}
	return n, nil
}
