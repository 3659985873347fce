package tree

import (
	"crypto/rand"
	"io/fs"
	"syscall"

	"cafs/mount/tree/index"
)

const (
	permSuid   = 0o4000
	permSgid   = 0o2000
	permSticky = 0o1000
)

// recordRoom is about what the records of a new name take in the index, in
// bytes, until they are compacted.
const recordRoom = 4096

// Create makes a file, directory, FIFO, socket or device and takes a reference
// on it. The permissions are n.Perm less cred.Umask, or as the parent's default
// ACL has it; a setgid parent gives its group, and to directories its setgid bit.
// Errors: fs.ErrExist, fs.ErrNotExist (parent removed), ENOTDIR, ENAMETOOLONG, EMLINK.
func (t *Tree) Create(cred Cred, parent Ino, name string, n Node) (Attr, error) {
	switch n.Kind {
	case index.File, index.Dir, index.Fifo, index.Socket, index.CharDev, index.BlockDev:
	default:
		return Attr{}, syscall.EINVAL
	}
	rec := index.Inode{Kind: n.Kind, Perm: n.Perm & 0o7777, Rdev: n.Rdev}
	return t.make(cred, parent, name, rec)
}

// Symlink makes a symbolic link and takes a reference on it. The target is 1
// to 4095 bytes, not interpreted.
func (t *Tree) Symlink(cred Cred, parent Ino, name, target string) (Attr, error) {
	if target == "" {
		return Attr{}, fs.ErrNotExist // symlink(2)
	}
	if len(target) > 4095 {
		return Attr{}, syscall.ENAMETOOLONG
	}
	return t.make(cred, parent, name, index.Inode{Kind: index.Symlink, Perm: 0o777, Target: target})
}

// make enters a new inode with the given kind, permissions and target under name.
func (t *Tree) make(cred Cred, parent Ino, name string, rec index.Inode) (Attr, error) {
	if err := checkName(name); err != nil {
		return Attr{}, err
	}
	t.ns.RLock()
	defer t.ns.RUnlock()
	p, err := t.lockDir(parent)
	if err != nil {
		return Attr{}, err
	}
	defer t.unlock(p)
	if err := t.absent(parent, name); err != nil {
		return Attr{}, err
	}
	if err := t.content.Room(recordRoom); err != nil {
		return Attr{}, err
	}
	ino, err := t.newIno()
	if err != nil {
		return Attr{}, err
	}
	e := t.begin()
	defer e.Close()
	if err := t.inherit(e, cred, p, ino, &rec); err != nil {
		return Attr{}, err
	}
	d := t.addName(e, p, name, ino, rec.Kind)
	dir := e.rec(p)
	rec.Nlink, rec.Parent, rec.Cookie = 1, parent, d.Cookie
	if rec.Kind == index.Dir {
		if dir.Nlink >= MaxLinks {
			return Attr{}, syscall.EMLINK
		}
		rec.Nlink = 2
		dir.Nlink++
	}
	stamp := now()
	dir.Mtime, dir.Ctime = stamp, stamp
	rec.Atime, rec.Mtime, rec.Ctime, rec.Btime = stamp, stamp, stamp, stamp
	rec.Unsealed = true
	e.SetInode(ino, &rec)
	if err := e.commit(); err != nil {
		return Attr{}, err
	}
	n := newInode(ino, rec)
	n.noted.Store(t.record.gen) // by addName
	t.insert(n)
	return n.attr(), nil
}

// inherit gives a new inode its owner, group, permissions and ACLs.
func (t *Tree) inherit(e *edit, cred Cred, parent *inode, ino Ino, rec *index.Inode) error {
	rec.Uid, rec.Gid = cred.Uid, cred.Gid
	if parent.rec.Perm&permSgid != 0 {
		rec.Gid = parent.rec.Gid
		if rec.Kind == index.Dir {
			rec.Perm |= permSgid
		}
	}
	if rec.Kind == index.Symlink {
		return nil
	}
	return t.inheritACL(e, cred, parent, ino, rec)
}

// Tmpfile makes a regular file without a name in the directory parent
// (O_TMPFILE) and takes a reference on it; Link gives it a name.
func (t *Tree) Tmpfile(cred Cred, parent Ino, perm uint16) (Attr, error) {
	t.ns.RLock()
	defer t.ns.RUnlock()
	p, err := t.lockDir(parent)
	if err != nil {
		return Attr{}, err
	}
	defer t.unlock(p)
	if err := t.content.Room(recordRoom); err != nil {
		return Attr{}, err
	}
	ino, err := t.newIno()
	if err != nil {
		return Attr{}, err
	}
	stamp := now()
	rec := index.Inode{Kind: index.File, Perm: perm & 0o7777, Unsealed: true,
		Atime: stamp, Mtime: stamp, Ctime: stamp, Btime: stamp}
	e := t.begin()
	defer e.Close()
	if err := t.inherit(e, cred, p, ino, &rec); err != nil {
		return Attr{}, err
	}
	e.SetInode(ino, &rec)
	e.AddOrphan(ino)
	if err := e.commit(); err != nil {
		return Attr{}, err
	}
	n := newInode(ino, rec)
	t.insert(n)
	return n.attr(), nil
}

// Link makes name in the directory parent another name of ino and takes a
// reference on it. Errors: fs.ErrExist, EPERM for directories, EMLINK, ESTALE
// for a file whose last name is gone (but not for one made by Tmpfile).
func (t *Tree) Link(ino, parent Ino, name string) (Attr, error) {
	if err := checkName(name); err != nil {
		return Attr{}, err
	}
	t.ns.RLock()
	defer t.ns.RUnlock()
	n, err := t.pin(ino)
	if err != nil {
		return Attr{}, err
	}
	defer t.unpin(n)
	if n.kind == index.Dir {
		return Attr{}, syscall.EPERM
	}
	if err := t.note(n); err != nil {
		return Attr{}, err
	}
	p, err := t.lockDir(parent)
	if err != nil {
		return Attr{}, err
	}
	defer t.unlock(p)
	if err := t.absent(parent, name); err != nil {
		return Attr{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := t.begin()
	defer e.Close()
	if err := t.content.Room(recordRoom); err != nil {
		return Attr{}, err
	}
	rec := e.rec(n)
	if rec.Nlink >= MaxLinks {
		return Attr{}, syscall.EMLINK
	}
	d := t.addName(e, p, name, ino, rec.Kind)
	dir, stamp := e.rec(p), now()
	dir.Mtime, dir.Ctime, rec.Ctime = stamp, stamp, stamp
	rec.Nlink++
	switch rec.Nlink {
	case 1: // made by Tmpfile
		rec.Parent, rec.Cookie = parent, d.Cookie
		e.DeleteOrphan(ino)
	case 2:
		if rec.LinkID == [16]byte{} {
			rand.Read(rec.LinkID[:])
		}
		e.SetBackref(ino, rec.Parent, rec.Cookie)
		e.SetLinkUnrecorded(rec.LinkID, ino)
		t.record.notedLink(rec.LinkID)
		fallthrough
	default:
		e.SetBackref(ino, parent, d.Cookie)
	}
	if err := e.commit(); err != nil {
		return Attr{}, err
	}
	t.pinAgain(n)
	t.handOut(n)
	return n.attr(), nil
}
