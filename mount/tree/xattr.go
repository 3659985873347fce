package tree

import (
	"errors"
	"io/fs"
	"syscall"
)

// Limits of xattr(7).
const (
	maxXattrName  = 255
	maxXattrValue = 64 << 10
	maxXattrList  = 64 << 10
)

// Flags of setxattr(2).
const (
	xattrCreate  = 1
	xattrReplace = 2
)

// Getxattr returns an extended attribute. Error: ENODATA when there is none.
func (t *Tree) Getxattr(ino Ino, name string) ([]byte, error) {
	n, err := t.pin(ino)
	if err != nil {
		return nil, err
	}
	defer t.unpin(n)
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.rec.Xattrs == 0 {
		return nil, syscall.ENODATA
	}
	return t.xattr(ino, name)
}

func (t *Tree) xattr(ino Ino, name string) ([]byte, error) {
	val, err := t.db.Xattr(ino, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, syscall.ENODATA
	}
	return val, err
}

// Listxattr lists the names of the extended attributes of ino.
func (t *Tree) Listxattr(ino Ino) ([]string, error) {
	n, err := t.pin(ino)
	if err != nil {
		return nil, err
	}
	defer t.unpin(n)
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.rec.Xattrs == 0 {
		return nil, nil
	}
	var names []string
	for x, err := range t.db.Xattrs(ino) {
		if err != nil {
			return nil, err
		}
		names = append(names, x.Name)
	}
	return names, nil
}

// Setxattr sets an extended attribute. Setting an access ACL sets the mode it
// stands for; killSgid then clears the setgid bit. Errors: EEXIST and ENODATA
// as the flags ask, ERANGE, E2BIG, ENOSPC when the names no longer fit a list,
// EINVAL for a malformed ACL.
func (t *Tree) Setxattr(ino Ino, name string, val []byte, flags int, killSgid bool) error {
	switch {
	case name == "" || len(name) > maxXattrName:
		return syscall.ERANGE
	case len(val) > maxXattrValue:
		return syscall.E2BIG
	}
	if err := t.content.Room(recordRoom + int64(len(val))); err != nil {
		return err
	}
	return t.editXattrs(ino, func(e *edit, n *inode) error {
		if name == aclAccess || name == aclDefault {
			return t.setACL(e, n, name, val, killSgid)
		}
		return t.putXattr(e, n, name, val, flags)
	})
}

// Removexattr removes an extended attribute. Error: ENODATA.
func (t *Tree) Removexattr(ino Ino, name string) error {
	return t.editXattrs(ino, func(e *edit, n *inode) error {
		if name == aclAccess || name == aclDefault {
			return t.setACL(e, n, name, nil, false)
		}
		return t.removeXattr(e, n, name)
	})
}

func (t *Tree) editXattrs(ino Ino, change func(*edit, *inode) error) error {
	n, err := t.pin(ino)
	if err != nil {
		return err
	}
	defer t.unpin(n)
	t.record.moment.RLock()
	defer t.record.moment.RUnlock()
	if err := t.beforeAttrs(n); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e := t.begin()
	defer e.Close()
	e.rec(n).Ctime = now()
	if err := change(e, n); err != nil {
		return err
	}
	return e.commit()
}

func (t *Tree) removeXattr(e *edit, n *inode, name string) error {
	if n.rec.Xattrs == 0 {
		return syscall.ENODATA
	}
	if _, err := t.xattr(n.ino, name); err != nil {
		return err
	}
	e.DeleteXattr(n.ino, name)
	e.rec(n).Xattrs--
	return nil
}

func (t *Tree) putXattr(e *edit, n *inode, name string, val []byte, flags int) error {
	old := syscall.Errno(syscall.ENODATA)
	size := len(name) + 1
	if n.rec.Xattrs > 0 {
		for x, err := range t.db.Xattrs(n.ino) {
			if err != nil {
				return err
			}
			if x.Name == name {
				old = 0
				continue
			}
			size += len(x.Name) + 1
		}
	}
	switch {
	case old == 0 && flags&xattrCreate != 0:
		return fs.ErrExist
	case old != 0 && flags&xattrReplace != 0:
		return old
	case size > maxXattrList:
		return syscall.ENOSPC
	}
	if old != 0 {
		e.rec(n).Xattrs++
	}
	e.SetXattr(n.ino, name, val)
	return nil
}
