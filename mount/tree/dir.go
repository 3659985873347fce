package tree

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"

	"cafs/mount/tree/index"
)

// Lookup finds name in the directory parent and takes a reference on its inode.
// Errors: fs.ErrNotExist, ENOTDIR, ENAMETOOLONG.
func (t *Tree) Lookup(parent Ino, name string) (Attr, error) {
	if len(name) > MaxName {
		return Attr{}, syscall.ENAMETOOLONG
	}
	for {
		d, err := t.db.Dirent(parent, name)
		if errors.Is(err, fs.ErrNotExist) {
			if expanded, e := t.expandIno(parent); e != nil {
				return Attr{}, e
			} else if expanded {
				continue
			}
		}
		if err != nil {
			return Attr{}, err
		}
		a, err := t.acquire(d)
		if !errors.Is(err, syscall.ESTALE) {
			return a, err
		}
		// Unlinked and forgotten between the two look-ups: look again.
	}
}

// acquire hands out a reference on the inode of d and tells its attributes.
func (t *Tree) acquire(d Dirent) (Attr, error) {
	n, err := t.pin(d.Ino)
	if err != nil {
		return Attr{}, err
	}
	n.mu.RLock()
	a := n.attr()
	n.mu.RUnlock()
	t.handOut(n)
	return a, nil
}

// Readdir lists the directory from behind cookie after (0: the start), newest
// entries first, without "." and "..", until yield returns false. A name that
// exists throughout is listed once, whatever else changes meanwhile, also when
// it comes to lead elsewhere; a name entered meanwhile is not listed, so that
// whoever makes or renames files while listing comes to an end.
func (t *Tree) Readdir(dir Ino, after uint64, yield func(Dirent) bool) error {
	if _, err := t.expandIno(dir); err != nil {
		return err
	}
	for d, err := range t.db.Dirents(dir, after) {
		if err != nil {
			return err
		}
		if !yield(d) {
			return nil
		}
	}
	return nil
}

// ReaddirPlus is Readdir with the attributes of each entry. It keeps a
// reference on the inode of each entry for which yield returned true.
func (t *Tree) ReaddirPlus(dir Ino, after uint64, yield func(Dirent, Attr) bool) error {
	if _, err := t.expandIno(dir); err != nil {
		return err
	}
	for d, err := range t.db.Dirents(dir, after) {
		if err != nil {
			return err
		}
		a, err := t.acquire(d)
		if errors.Is(err, syscall.ESTALE) {
			continue // removed since the listing's snapshot
		}
		if err != nil {
			return err
		}
		if !yield(d, a) {
			t.Forget(d.Ino, 1)
			return nil
		}
	}
	return nil
}

// Newest tells the cookie of the newest entry that the directory dir ever had: a
// listing begins there.
func (t *Tree) Newest(dir Ino) (uint64, error) {
	rec, err := t.recordOf(dir)
	return rec.Next, err
}

// Parent tells the directory that holds the directory dir; the root is its own.
func (t *Tree) Parent(dir Ino) (Ino, error) {
	rec, err := t.recordOf(dir)
	return rec.Parent, err
}

// recordOf copies what is known of an inode now.
func (t *Tree) recordOf(ino Ino) (index.Inode, error) {
	n, err := t.pin(ino)
	if err != nil {
		return index.Inode{}, err
	}
	defer t.unpin(n)
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.copyRec(), nil
}

// Path names ino from the root, for messages: with "?" where a name is gone.
func (t *Tree) Path(ino Ino) string {
	var names []string
	for depth := 0; ino != RootIno && depth < 4096; depth++ {
		rec, err := t.recordOf(ino)
		if err != nil || rec.Nlink == 0 {
			names = append(names, "?")
			break
		}
		d, err := t.db.DirentAt(rec.Parent, rec.Cookie)
		if err != nil {
			names = append(names, "?")
			break
		}
		names = append(names, d.Name)
		ino = rec.Parent
	}
	var b strings.Builder
	for i := len(names) - 1; i >= 0; i-- {
		b.WriteByte('/')
		b.WriteString(names[i])
	}
	if b.Len() == 0 {
		return "/"
	}
	return b.String()
}

// checkName refuses what cannot be a name in a directory.
func checkName(name string) error {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return syscall.EINVAL
	case len(name) > MaxName:
		return syscall.ENAMETOOLONG
	}
	return nil
}

// lockDir pins the directory dir and locks it for a change of its entries,
// marked as unsealed up to the root. The caller holds ns and undoes it with
// unlock. Errors: ENOTDIR; fs.ErrNotExist when it was removed.
func (t *Tree) lockDir(dir Ino) (*inode, error) {
	n, err := t.markedDir(dir)
	if err != nil {
		return nil, err
	}
	return n, t.lock(n)
}

// lock locks a pinned directory, or unpins it when it was removed.
func (t *Tree) lock(n *inode) error {
	n.mu.Lock()
	if n.rec.Nlink == 0 {
		t.unlock(n)
		return fs.ErrNotExist
	}
	return nil
}

// markedDir pins the directory dir, marked as unsealed up to the root. That
// locks the directories above it: none of them may be locked by the caller.
func (t *Tree) markedDir(dir Ino) (*inode, error) {
	n, err := t.pin(dir)
	if err != nil {
		return nil, err
	}
	if n.kind != index.Dir {
		t.unpin(n)
		return nil, syscall.ENOTDIR
	}
	if err := t.expand(n); err != nil {
		t.unpin(n)
		return nil, err
	}
	if err := t.mark(n); err != nil {
		t.unpin(n)
		return nil, err
	}
	return n, nil
}

// unlock undoes a lock for writing and the pin of the same inode.
func (t *Tree) unlock(n *inode) {
	n.mu.Unlock()
	t.unpin(n)
}

// changed notes in e that name in dir, a locked directory, is not what its CID
// and the last commit say, and tells a running seal.
func (t *Tree) changed(e *edit, dir *inode, name string) {
	t.differs(e, dir, name)
	t.noteEntry(e, dir, name)
}

// differs is changed for what makes no difference to a commit.
func (t *Tree) differs(e *edit, dir *inode, name string) {
	if dir.rec.Base.Defined() {
		e.SetChanged(dir.ino, name)
	}
	t.sealing.touch(dir.ino)
}

// absent returns fs.ErrExist when name is in dir.
func (t *Tree) absent(dir Ino, name string) error {
	_, err := t.db.Dirent(dir, name)
	if err == nil {
		return fs.ErrExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// addName enters name for ino in the locked directory dir.
func (t *Tree) addName(e *edit, dir *inode, name string, ino Ino, kind Kind) Dirent {
	rec := e.rec(dir)
	rec.Next++
	return t.setName(e, dir, Dirent{Name: name, Ino: ino, Kind: kind, Cookie: rec.Next})
}

// setName enters d at a cookie that was given out before, and is free.
func (t *Tree) setName(e *edit, dir *inode, d Dirent) Dirent {
	e.SetDirent(dir.ino, d)
	t.changed(e, dir, d.Name)
	return d
}
