package tree

import (
	"errors"
	"io/fs"
	"syscall"

	"cafs/mount/tree/index"
)

// Unlink removes a name of something that is not a directory. Errors:
// fs.ErrNotExist, EISDIR.
func (t *Tree) Unlink(parent Ino, name string) error {
	t.ns.RLock()
	defer t.ns.RUnlock()
	for {
		linked, err := t.unlink(parent, name)
		if linked == nil {
			return err
		}
		// In memory until the end: it remembers that it was noted.
		defer t.unpin(linked)
		// The last name that is left is recorded differently: they all are noted.
		if err := t.note(linked); err != nil {
			return err
		}
	}
}

// unlink is Unlink, except that it returns, pinned, what has several names and
// must be noted first. The caller holds ns.
func (t *Tree) unlink(parent Ino, name string) (linked *inode, err error) {
	p, err := t.lockDir(parent)
	if err != nil {
		return nil, err
	}
	defer t.unlock(p)
	d, err := t.db.Dirent(parent, name)
	if err != nil {
		return nil, err
	}
	if d.Kind == index.Dir {
		return nil, syscall.EISDIR
	}
	n, err := t.pin(d.Ino)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	if t.unnoted(n) {
		n.mu.Unlock()
		return n, nil
	}
	defer t.unlock(n)
	e := t.begin()
	defer e.Close()
	if err := t.dropName(e, n, p, d); err != nil {
		return nil, err
	}
	return nil, e.commit()
}

// unnoted tells whether n has several names that the next commit does not look
// at yet. The caller holds ns and n.mu, shared or not.
func (t *Tree) unnoted(n *inode) bool {
	return n.kind != index.Dir && n.rec.Nlink > 1 && n.noted.Load() != t.record.gen
}

// noteLinks is noteLinksOf what has a name now, if anything has.
func (t *Tree) noteLinks(parent Ino, name string) error {
	d, err := t.db.Dirent(parent, name)
	if err != nil {
		return nil // whoever needs the name will tell
	}
	return t.noteLinksOf(d)
}

// noteLinksOf notes the names of what is about to lose one, if it has several.
// The caller holds ns, and no inode.
func (t *Tree) noteLinksOf(d Dirent) error {
	if d.Ino == 0 || d.Kind == index.Dir {
		return nil
	}
	n, err := t.pin(d.Ino)
	if err != nil {
		return err
	}
	defer t.unpin(n)
	n.mu.RLock()
	unnoted := t.unnoted(n)
	n.mu.RUnlock()
	if !unnoted {
		return nil
	}
	return t.note(n)
}

// dropName takes the entry d of the locked directory p away from the locked
// inode n, which is not a directory. The last name makes n an orphan, which
// lives until its references are gone.
func (t *Tree) dropName(e *edit, n, p *inode, d Dirent) error {
	t.removeEntry(e, n, p, d)
	rec := e.rec(n)
	rec.Nlink--
	if rec.Nlink == 0 {
		e.AddOrphan(n.ino)
		return nil
	}
	e.DeleteBackref(n.ino, p.ino, d.Cookie)
	var left index.Backref
	for ref, err := range t.db.Backrefs(n.ino) {
		if err != nil {
			return err
		}
		if ref.Parent != p.ino || ref.Cookie != d.Cookie {
			left = ref
			break
		}
	}
	if rec.Parent == p.ino && rec.Cookie == d.Cookie {
		rec.Parent, rec.Cookie = left.Parent, left.Cookie
	}
	if rec.Nlink == 1 { // references back are kept for hard links only
		e.DeleteBackref(n.ino, left.Parent, left.Cookie)
	}
	return nil
}

// removeEntry takes the entry d, which leads to n, out of the directory p.
func (t *Tree) removeEntry(e *edit, n, p *inode, d Dirent) {
	e.DeleteDirent(p.ino, d)
	t.changed(e, p, d.Name)
	dir, stamp := e.rec(p), now()
	dir.Mtime, dir.Ctime = stamp, stamp
	e.rec(n).Ctime = stamp
}

// Rmdir removes an empty directory. Errors: fs.ErrNotExist, ENOTDIR, ENOTEMPTY.
func (t *Tree) Rmdir(parent Ino, name string) error { return t.rmdir(parent, name, false) }

// rmdir removes a directory that is empty, or if lazyToo is set never was
// expanded.
func (t *Tree) rmdir(parent Ino, name string, lazyToo bool) error {
	t.ns.RLock()
	defer t.ns.RUnlock()
	p, err := t.lockDir(parent)
	if err != nil {
		return err
	}
	defer t.unlock(p)
	d, err := t.db.Dirent(parent, name)
	if err != nil {
		return err
	}
	if d.Kind != index.Dir {
		return syscall.ENOTDIR
	}
	n, err := t.pin(d.Ino)
	if err != nil {
		return err
	}
	defer t.unpin(n)
	if !lazyToo {
		if err := t.expand(n); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := t.empty(n.ino); err != nil {
		return err
	}
	e := t.begin()
	defer e.Close()
	t.dropDir(e, n, p, d)
	return e.commit()
}

// dropDir takes the only name of the locked, empty directory n away.
func (t *Tree) dropDir(e *edit, n, p *inode, d Dirent) {
	t.removeEntry(e, n, p, d)
	e.rec(p).Nlink--
	e.rec(n).Nlink = 0
	e.AddOrphan(n.ino)
	if n.rec.Base.Defined() {
		e.ClearAllChanged(n.ino)
	}
	if n.rec.Record.Defined() {
		e.ClearAllUnrecorded(n.ino)
	}
}

// empty returns ENOTEMPTY when the directory has an entry.
func (t *Tree) empty(dir Ino) error {
	for _, err := range t.db.Dirents(dir, 0) {
		if err != nil {
			return err
		}
		return syscall.ENOTEMPTY
	}
	return nil
}

// sweepOrphans removes inodes without names that an unclean end left behind.
func (t *Tree) sweepOrphans() error {
	var left []Ino
	for ino, err := range t.db.Orphans() {
		if err != nil {
			return err
		}
		left = append(left, ino)
	}
	for _, ino := range left {
		n, err := t.pin(ino)
		if errors.Is(err, syscall.ESTALE) {
			if _, err := t.db.Inode(ino); err == nil {
				continue // removed meanwhile, and about to be reaped, together with its orphan record
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			b := t.db.NewBatch()
			b.DeleteOrphan(ino)
			if err := b.Commit(); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		t.unpin(n)
	}
	return nil
}
