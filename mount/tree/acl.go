package tree

import (
	"encoding/binary"
	"errors"
	"syscall"

	"cafs/mount/tree/index"
)

// The extended attributes of POSIX ACLs and their layout: a 32-bit version and
// 8 bytes an entry, little-endian (linux/posix_acl_xattr.h).
const (
	aclAccess  = "system.posix_acl_access"
	aclDefault = "system.posix_acl_default"

	aclVersion   = 2
	aclUserObj   = 0x01
	aclUser      = 0x02
	aclGroupObj  = 0x04
	aclGroup     = 0x08
	aclMask      = 0x10
	aclOther     = 0x20
	aclUndefined = ^uint32(0)
)

type aclEntry struct {
	tag, perm uint16
	id        uint32
}

type acl []aclEntry

// parseACL decodes and checks an ACL: entries in the kernel's order, each of
// the three base classes once, a mask where there are named users or groups.
func parseACL(b []byte) (acl, error) {
	if len(b) < 4 || (len(b)-4)%8 != 0 || binary.LittleEndian.Uint32(b) != aclVersion {
		return nil, syscall.EINVAL
	}
	var a acl
	seen := uint16(0)
	last := uint16(0)
	for b = b[4:]; len(b) > 0; b = b[8:] {
		e := aclEntry{binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:]), binary.LittleEndian.Uint32(b[4:])}
		named := e.tag == aclUser || e.tag == aclGroup
		switch {
		case e.tag&(e.tag-1) != 0 || e.tag == 0 || e.tag > aclOther || e.perm > 7, e.tag < last:
			return nil, syscall.EINVAL
		case named && e.id == aclUndefined, !named && seen&e.tag != 0:
			return nil, syscall.EINVAL
		}
		if !named {
			e.id = aclUndefined
		}
		seen |= e.tag
		last = e.tag
		a = append(a, e)
	}
	base := uint16(aclUserObj | aclGroupObj | aclOther)
	if len(a) == 0 {
		return nil, nil
	}
	if seen&base != base || seen&(aclUser|aclGroup) != 0 && seen&aclMask == 0 {
		return nil, syscall.EINVAL
	}
	return a, nil
}

func (a acl) encode() []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+8*len(a)), aclVersion)
	for _, e := range a {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// classes points at the entries that the nine permission bits stand for: the
// group bits are the mask's where there is one (acl(5)).
func (a acl) classes() (user, group, other *uint16) {
	for i := range a {
		switch e := &a[i]; e.tag {
		case aclUserObj:
			user = &e.perm
		case aclGroupObj:
			if group == nil {
				group = &e.perm
			}
		case aclMask:
			group = &e.perm
		case aclOther:
			other = &e.perm
		}
	}
	return user, group, other
}

// minimal reports whether the permission bits say all that a does.
func (a acl) minimal() bool { return len(a) == 3 }

func (a acl) perm() uint16 {
	u, g, o := a.classes()
	return *u<<6 | *g<<3 | *o
}

// limit makes a what the permission bits perm say.
func (a acl) limit(perm uint16) {
	u, g, o := a.classes()
	*u, *g, *o = perm>>6&7, perm>>3&7, perm&7
}

func (t *Tree) getACL(n *inode, name string) (acl, error) {
	if n.rec.Xattrs == 0 {
		return nil, nil
	}
	b, err := t.xattr(n.ino, name)
	if errors.Is(err, syscall.ENODATA) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return parseACL(b)
}

// setACL sets or, with no entries, removes an ACL. An access ACL sets the
// permission bits too, and is kept only if it says more than they do.
func (t *Tree) setACL(e *edit, n *inode, name string, val []byte, killSgid bool) error {
	var a acl
	if len(val) > 0 {
		var err error
		if a, err = parseACL(val); err != nil {
			return err
		}
	}
	if n.kind == index.Symlink {
		return syscall.EOPNOTSUPP
	}
	if name == aclDefault && n.kind != index.Dir {
		if a == nil {
			return nil
		}
		return syscall.EACCES // setxattr(2) on ext4
	}
	if name == aclAccess && a != nil {
		rec := e.rec(n)
		rec.Perm = rec.Perm&^0o777 | a.perm()
		if killSgid {
			rec.Perm &^= permSgid
		}
		if a.minimal() {
			a = nil
		}
	}
	if a == nil {
		err := t.removeXattr(e, n, name)
		if errors.Is(err, syscall.ENODATA) {
			return nil
		}
		return err
	}
	return t.putXattr(e, n, name, a.encode(), 0)
}

// chmodACL keeps the access ACL in step with new permission bits.
func (t *Tree) chmodACL(e *edit, n *inode) error {
	a, err := t.getACL(n, aclAccess)
	if err != nil || a == nil {
		return err
	}
	a.limit(e.rec(n).Perm)
	return t.putXattr(e, n, aclAccess, a.encode(), 0)
}

// inheritACL applies the parent's default ACL to a new inode, or the umask
// where there is none (acl(5), object creation).
func (t *Tree) inheritACL(e *edit, cred Cred, parent *inode, ino Ino, rec *index.Inode) error {
	def, err := t.getACL(parent, aclDefault)
	if err != nil {
		return err
	}
	if def == nil {
		rec.Perm &^= cred.Umask & 0o777
		return nil
	}
	access := append(acl(nil), def...)
	access.limit(access.perm() & rec.Perm)
	rec.Perm = rec.Perm&^0o777 | access.perm()
	if !access.minimal() {
		e.SetXattr(ino, aclAccess, access.encode())
		rec.Xattrs++
	}
	if rec.Kind == index.Dir {
		e.SetXattr(ino, aclDefault, def.encode())
		rec.Xattrs++
	}
	return nil
}
