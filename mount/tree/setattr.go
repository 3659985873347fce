package tree

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"cafs/mount/tree/index"
)

const xattrCapability = "security.capability"

// Setattr changes attributes and, with SetSize, truncates or extends. Errors:
// EISDIR or EINVAL for the size of something that is no regular file, EFBIG.
func (t *Tree) Setattr(ctx context.Context, ino Ino, s SetAttr) (Attr, error) {
	n, err := t.pin(ino)
	if err != nil {
		return Attr{}, err
	}
	defer t.unpin(n)
	t.record.moment.RLock()
	defer t.record.moment.RUnlock()
	if err := t.beforeAttrs(n); err != nil {
		return Attr{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	stamp := now()
	if s.Mask&SetSize != 0 {
		if err := t.truncate(ctx, n, s.Size); err != nil {
			return Attr{}, err
		}
	}
	e := t.begin()
	defer e.Close()
	rec := e.rec(n)
	if s.Mask&SetSize != 0 {
		rec.Mtime = stamp
	}
	rec.Ctime = stamp
	if s.Mask&SetCtime != 0 {
		rec.Ctime = s.Ctime
	}
	if err := t.applyPerm(e, n, s); err != nil {
		return Attr{}, err
	}
	applyOwner(rec, s)
	if s.Mask&SetAtime != 0 {
		rec.Atime = s.Atime
	}
	if s.Mask&SetMtime != 0 {
		rec.Mtime = s.Mtime
	}
	// A truncation alone reaches the index with the contents, in one batch.
	if s.Mask == SetSize {
		n.rec.Mtime, n.rec.Ctime = rec.Mtime, rec.Ctime
		return n.attr(), nil
	}
	if err := e.commit(); err != nil {
		return Attr{}, err
	}
	return n.attr(), nil
}

func applyOwner(rec *index.Inode, s SetAttr) {
	if s.Mask&SetUid != 0 {
		rec.Uid = s.Uid
	}
	if s.Mask&SetGid != 0 {
		rec.Gid = s.Gid
	}
}

// applyPerm changes permissions, with the access ACL kept in step, and takes
// privileges away where the change does that (chown(2), truncate(2)).
func (t *Tree) applyPerm(e *edit, n *inode, s SetAttr) error {
	rec := e.rec(n)
	if s.Mask&(SetUid|SetGid) != 0 && rec.Kind != index.Dir || s.Mask&KillPriv != 0 {
		if s.Mask&SetPerm == 0 {
			rec.Perm = withoutPrivileges(rec.Perm, rec.Gid, s.Member)
		}
		if err := t.dropCapability(e, n); err != nil {
			return err
		}
	}
	if s.Mask&SetPerm == 0 {
		return nil
	}
	rec.Perm = s.Perm & 0o7777
	return t.chmodACL(e, n)
}

// withoutPrivileges clears suid, and sgid where it gives a group to programs
// (that is, with group execution) or an outsider makes the change.
func withoutPrivileges(perm uint16, gid uint32, member Member) uint16 {
	if perm&permSgid != 0 && (perm&0o010 != 0 || member != nil && !member(gid)) {
		perm &^= permSgid
	}
	return perm &^ permSuid
}

// dropCapability removes the file capabilities of n.
func (t *Tree) dropCapability(e *edit, n *inode) error {
	if n.rec.Xattrs == 0 {
		return nil
	}
	if _, err := t.db.Xattr(n.ino, xattrCapability); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	e.DeleteXattr(n.ino, xattrCapability)
	e.rec(n).Xattrs--
	return nil
}

// truncate changes the size of the contents. The caller holds n.mu.
func (t *Tree) truncate(ctx context.Context, n *inode, size int64) error {
	if size < 0 {
		return syscall.EINVAL
	}
	if err := t.db.Err(); err != nil {
		return err
	}
	f, err := t.contents(n)
	if err != nil {
		return err
	}
	t.preserve(n)
	if size < f.Size() {
		t.released.Add(1)
	}
	if err := f.Truncate(ctx, size); err != nil {
		return err
	}
	t.dirtySet.add(n)
	return nil
}
