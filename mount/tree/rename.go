package tree

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"cafs/mount/tree/index"
)

// Rename moves an entry, atomically replacing a file or an empty directory at
// the new name, as renameat2(2). What replaces something has its contents
// published first, so that after a crash the new name never leads to less than
// was written (DESIGN 5a, O3). A whiteout that is left belongs to cred. Errors: fs.ErrNotExist, fs.ErrExist, EISDIR,
// ENOTDIR, ENOTEMPTY, EINVAL (into itself), EMLINK.
func (t *Tree) Rename(ctx context.Context, cred Cred, op Ino, oname string, np Ino, nname string, flags RenameFlags) error {
	if err := errors.Join(checkName(oname), checkName(nname)); err != nil {
		if len(nname) > MaxName || len(oname) > MaxName {
			return syscall.ENAMETOOLONG
		}
		return syscall.EINVAL
	}
	if flags&^(RenameNoReplace|RenameExchange|RenameWhiteout) != 0 || flags&RenameExchange != 0 && flags != RenameExchange {
		return syscall.EINVAL
	}
	if err := t.db.Err(); err != nil {
		return err
	}
	if flags&RenameWhiteout != 0 {
		if err := t.content.Room(recordRoom); err != nil {
			return err
		}
	}
	// Contents are published without the namespace being locked, since that may
	// write. Somebody may write again in between; after a few rounds it is done
	// under the lock.
	for round := 0; ; round++ {
		within, again, err := false, false, error(nil)
		if op == np && round <= 3 {
			within, again, err = t.renameWithin(op, oname, nname, flags)
		}
		if !within {
			again, err = t.rename(ctx, cred, op, oname, np, nname, flags, round > 3)
		}
		if !again {
			return err
		}
		if err := t.publishReplacement(ctx, op, oname, np, nname, flags); err != nil {
			return err
		}
	}
}

// publishReplacement publishes what a rename over an existing name moves there.
func (t *Tree) publishReplacement(ctx context.Context, op Ino, oname string, np Ino, nname string, flags RenameFlags) error {
	to, err := t.db.Dirent(np, nname)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	from, err := t.db.Dirent(op, oname)
	if err != nil {
		return err
	}
	if err := t.publishIno(ctx, from.Ino); err != nil {
		return err
	}
	if flags&RenameExchange != 0 {
		return t.publishIno(ctx, to.Ino)
	}
	return nil
}

// renameWithin renames a file within its directory while others use the
// namespace too: for them it is as if one name was removed and another one made.
// within is false when it takes more, and nothing was done: rename sees to it.
// again reports that contents must be published first.
func (t *Tree) renameWithin(dir Ino, oname, nname string, flags RenameFlags) (within, again bool, err error) {
	if flags&^RenameNoReplace != 0 {
		return false, false, nil
	}
	t.ns.RLock()
	defer t.ns.RUnlock()
	p, err := t.lockDir(dir)
	if err != nil {
		return true, false, err
	}
	defer t.unlock(p)
	r := renaming{oldDir: p, newDir: p}
	if err := t.lookUpPair(&r, oname, nname); err != nil {
		return true, false, err
	}
	if r.from.Kind == index.Dir || r.to.Ino != 0 && r.to.Kind == index.Dir {
		return false, false, nil
	}
	if err := t.checkRename(r, flags); err != nil || r.from.Ino == r.to.Ino {
		return true, false, err
	}
	unlock, err := t.lockFiles(&r)
	if err != nil {
		return true, false, err
	}
	defer unlock()
	if t.unnoted(r.src) || r.dst != nil && t.unnoted(r.dst) {
		return false, false, nil
	}
	if r.dst != nil && r.src.file != nil && r.src.file.Dirty() {
		return true, true, nil
	}
	e := t.begin()
	defer e.Close()
	if err := t.move(e, &r); err != nil {
		return true, false, err
	}
	return true, false, e.commit()
}

// lookUpPair looks up what a rename is about.
func (t *Tree) lookUpPair(r *renaming, oname, nname string) (err error) {
	if r.from, err = t.db.Dirent(r.oldDir.ino, oname); err != nil {
		return err
	}
	r.to, err = t.db.Dirent(r.newDir.ino, nname)
	if errors.Is(err, fs.ErrNotExist) {
		r.to, err = Dirent{Name: nname}, nil
	}
	return err
}

// lockFiles pins and locks the two inodes of a rename that are no directories,
// in the order of their numbers: with hard links, somebody else may be about to
// rename one over the other in another directory.
func (t *Tree) lockFiles(r *renaming) (unlock func(), err error) {
	if r.src, err = t.pin(r.from.Ino); err != nil {
		return nil, err
	}
	if r.to.Ino == 0 {
		r.src.mu.Lock()
		return func() { t.unlock(r.src) }, nil
	}
	if r.dst, err = t.pin(r.to.Ino); err != nil {
		t.unpin(r.src)
		return nil, err
	}
	first, second := r.src, r.dst
	if first.ino > second.ino {
		first, second = second, first
	}
	first.mu.Lock()
	second.mu.Lock()
	return func() { t.unlock(second); t.unlock(first) }, nil
}

// renaming is the state of one rename.
type renaming struct {
	oldDir, newDir *inode // locked; one and the same if the directory is
	from, to       Dirent // to.Ino is 0 when nothing has the new name
	src, dst       *inode // locked; dst is nil when nothing has the new name
}

// rename does the renaming under the namespace lock. again reports that
// contents must be published first; force publishes them under the lock.
func (t *Tree) rename(ctx context.Context, cred Cred, op Ino, oname string, np Ino, nname string, flags RenameFlags, force bool) (again bool, err error) {
	t.ns.Lock()
	defer t.ns.Unlock()
	var r renaming
	unpin, err := t.pinPair(&r, op, np)
	if err != nil {
		return false, err
	}
	defer unpin()
	if err := t.lookUpPair(&r, oname, nname); err != nil {
		return false, err
	}
	if err := errors.Join(t.noteLinksOf(r.from), t.noteLinksOf(r.to)); err != nil {
		return false, err
	}
	unlock, err := lockPair(&r)
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := t.checkRename(r, flags); err != nil {
		return false, err
	}
	if r.from.Ino == r.to.Ino {
		return false, nil // two names of one inode, or one name: rename(2) does nothing
	}
	// checkRename saw to it that neither of these is one of the directories.
	if r.src, err = t.pin(r.from.Ino); err != nil {
		return false, err
	}
	r.src.mu.Lock()
	defer t.unlock(r.src)
	if r.to.Ino != 0 {
		if r.dst, err = t.pin(r.to.Ino); err != nil {
			return false, err
		}
		r.dst.mu.Lock()
		defer t.unlock(r.dst)
		replacing := []*inode{r.src}
		if flags&RenameExchange != 0 {
			replacing = append(replacing, r.dst)
		}
		if again, err := t.ensurePublished(ctx, replacing, force); again || err != nil {
			return again, err
		}
	}
	e := t.begin()
	defer e.Close()
	if flags&RenameExchange != 0 {
		t.exchange(e, &r)
	} else if err := t.move(e, &r); err != nil {
		return false, err
	}
	if flags&RenameWhiteout != 0 {
		if err := t.whiteout(e, cred, &r); err != nil {
			return false, err
		}
	}
	return false, e.commit()
}

// pinPair pins the two directories of a rename, which may be one. Both are
// marked before one is locked, since one may lie below the other.
func (t *Tree) pinPair(r *renaming, op, np Ino) (unpin func(), err error) {
	if r.oldDir, err = t.markedDir(op); err != nil {
		return nil, err
	}
	r.newDir = r.oldDir
	if np == op {
		return func() { t.unpin(r.oldDir) }, nil
	}
	if r.newDir, err = t.markedDir(np); err != nil {
		t.unpin(r.oldDir)
		return nil, err
	}
	return func() { t.unpin(r.newDir); t.unpin(r.oldDir) }, nil
}

// lockPair locks the two directories, unless one was removed.
func lockPair(r *renaming) (unlock func(), err error) {
	r.oldDir.mu.Lock()
	unlock = r.oldDir.mu.Unlock
	if r.newDir != r.oldDir {
		r.newDir.mu.Lock()
		unlock = func() { r.newDir.mu.Unlock(); r.oldDir.mu.Unlock() }
	}
	if r.oldDir.rec.Nlink == 0 || r.newDir.rec.Nlink == 0 {
		unlock()
		return nil, fs.ErrNotExist
	}
	return unlock, nil
}

// ensurePublished reports whether one of the locked inodes has contents that
// are not published, or publishes them if force is set.
func (t *Tree) ensurePublished(ctx context.Context, nodes []*inode, force bool) (again bool, err error) {
	for _, n := range nodes {
		if n.file == nil || !n.file.Dirty() {
			continue
		}
		if !force {
			return true, nil
		}
		if done, err := t.publishLocked(ctx, n); !done || err != nil {
			return !done, err
		}
	}
	return false, nil
}

// checkRename applies the rules of renameat2(2).
func (t *Tree) checkRename(r renaming, flags RenameFlags) error {
	op, np, replaces := r.oldDir.ino, r.newDir.ino, r.to.Ino != 0
	switch {
	case replaces && flags&RenameNoReplace != 0:
		return fs.ErrExist
	case !replaces && flags&RenameExchange != 0:
		return fs.ErrNotExist
	}
	if op != np && r.from.Kind == index.Dir {
		if err := t.notBelow(r.from.Ino, np); err != nil {
			return err
		}
	}
	if op != np && replaces && r.to.Kind == index.Dir {
		if err := t.notBelow(r.to.Ino, op); err != nil && flags&RenameExchange == 0 {
			return syscall.ENOTEMPTY // it holds what is to replace it
		} else if err != nil {
			return err
		}
	}
	if !replaces || flags&RenameExchange != 0 || r.from.Ino == r.to.Ino {
		return nil
	}
	switch {
	case r.from.Kind != index.Dir && r.to.Kind == index.Dir:
		return syscall.EISDIR
	case r.from.Kind == index.Dir && r.to.Kind != index.Dir:
		return syscall.ENOTDIR
	case r.to.Kind == index.Dir:
		if _, err := t.expandIno(r.to.Ino); err != nil {
			return err
		}
		return t.empty(r.to.Ino)
	}
	return nil
}

// notBelow returns EINVAL when dir is top or below it. The caller holds ns for
// writing, so no directory moves.
func (t *Tree) notBelow(top, dir Ino) error {
	for dir != RootIno {
		if dir == top {
			return syscall.EINVAL
		}
		rec, err := t.db.Inode(dir)
		if err != nil {
			return err
		}
		dir = rec.Parent
	}
	return nil
}

// move gives src its new name, which is taken from dst if there is one. A name
// that was there keeps its place in listings, and so does a file that stays in
// its directory.
func (t *Tree) move(e *edit, r *renaming) error {
	if r.dst != nil {
		if r.to.Kind == index.Dir {
			t.dropDir(e, r.dst, r.newDir, r.to)
		} else if err := t.dropName(e, r.dst, r.newDir, r.to); err != nil {
			return err
		}
	}
	t.removeEntry(e, r.src, r.oldDir, r.from)
	d := Dirent{Name: r.to.Name, Ino: r.src.ino, Kind: r.from.Kind, Cookie: r.to.Cookie}
	switch {
	case r.dst != nil:
		t.setName(e, r.newDir, d)
	case r.newDir == r.oldDir:
		d.Cookie = r.from.Cookie
		t.setName(e, r.newDir, d)
	default:
		d = t.addName(e, r.newDir, d.Name, d.Ino, d.Kind)
	}
	t.repoint(e, r.src, r.oldDir, r.from.Cookie, r.newDir, d.Cookie)
	return nil
}

// whiteout enters what tells an overlay that a name of a lower layer is gone.
func (t *Tree) whiteout(e *edit, cred Cred, r *renaming) error {
	ino, err := t.newIno()
	if err != nil {
		return err
	}
	stamp := now()
	rec := index.Inode{Kind: index.CharDev, Nlink: 1, Parent: r.oldDir.ino, Unsealed: true,
		Atime: stamp, Mtime: stamp, Ctime: stamp, Btime: stamp}
	if err := t.inherit(e, cred, r.oldDir, ino, &rec); err != nil {
		return err
	}
	rec.Cookie = t.addName(e, r.oldDir, r.from.Name, ino, rec.Kind).Cookie
	e.SetInode(ino, &rec)
	return nil
}

// exchange swaps what the two names lead to.
func (t *Tree) exchange(e *edit, r *renaming) {
	t.removeEntry(e, r.src, r.oldDir, r.from)
	t.removeEntry(e, r.dst, r.newDir, r.to)
	t.setName(e, r.newDir, Dirent{Name: r.to.Name, Ino: r.src.ino, Kind: r.from.Kind, Cookie: r.to.Cookie})
	t.repoint(e, r.src, r.oldDir, r.from.Cookie, r.newDir, r.to.Cookie)
	t.setName(e, r.oldDir, Dirent{Name: r.from.Name, Ino: r.dst.ino, Kind: r.to.Kind, Cookie: r.from.Cookie})
	t.repoint(e, r.dst, r.newDir, r.to.Cookie, r.oldDir, r.from.Cookie)
}

// repoint makes n's reference to one of its names follow it to another
// directory and cookie.
func (t *Tree) repoint(e *edit, n, from *inode, cookie uint64, to *inode, newCookie uint64) {
	rec := e.rec(n)
	if rec.Parent == from.ino && rec.Cookie == cookie {
		rec.Parent, rec.Cookie = to.ino, newCookie
	}
	if rec.Kind == index.Dir {
		e.rec(from).Nlink--
		e.rec(to).Nlink++
	} else if rec.Nlink > 1 {
		e.DeleteBackref(n.ino, from.ino, cookie)
		e.SetBackref(n.ino, to.ino, newCookie)
	}
	stamp := now()
	e.rec(to).Mtime, e.rec(to).Ctime = stamp, stamp
}
