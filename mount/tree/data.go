package tree

import (
	"context"
	"math"
	"syscall"

	"cafs/mount/tree/content"
)

// Flags of fallocate(2).
const (
	fallocKeepSize  = 0x01
	fallocPunchHole = 0x02
	fallocZeroRange = 0x10
)

// Read reads up to len(p) bytes at off; fewer only at the end of the file.
// Errors: store.ErrNotFound and store.ErrCorrupt when the bytes cannot be had.
func (t *Tree) Read(ctx context.Context, ino Ino, p []byte, off int64) (int, error) {
	n, err := t.pin(ino)
	if err != nil {
		return 0, err
	}
	defer t.unpin(n)
	f, err := t.rlockContents(n)
	if err != nil {
		return 0, err
	}
	defer n.mu.RUnlock()
	if off == 0 {
		t.readsFrom(n)
	}
	return f.ReadAt(ctx, p, off)
}

// Write writes p at off and extends the file if it must. It does not keep p.
// A member, which is there for writes by ordinary users, takes suid, sgid and
// file capabilities away. Errors: ENOSPC, EFBIG; ctx ends a wait for memory.
func (t *Tree) Write(ctx context.Context, ino Ino, p []byte, off int64, member Member) (int, error) {
	if off < 0 || off > math.MaxInt64-int64(len(p)) {
		return 0, syscall.EFBIG
	}
	err := t.modify(ino, member, func(f *content.File) error { return f.WriteAt(ctx, p, off) })
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// modify changes the contents of a regular file and its times.
func (t *Tree) modify(ino Ino, member Member, change func(*content.File) error) error {
	if err := t.db.Err(); err != nil {
		return err
	}
	n, err := t.pin(ino)
	if err != nil {
		return err
	}
	defer t.unpin(n)
	t.record.moment.RLock()
	defer t.record.moment.RUnlock()
	if member != nil {
		if err := t.killPrivileges(n, member); err != nil {
			return err
		}
	}
	f, err := t.rlockContents(n)
	if err != nil {
		return err
	}
	defer n.mu.RUnlock()
	t.preserve(n)
	if err := change(f); err != nil {
		return err
	}
	stamp := now()
	n.attrs.Lock()
	n.rec.Mtime, n.rec.Ctime = stamp, stamp
	n.attrs.Unlock()
	t.dirtySet.add(n)
	return nil
}

// killPrivileges clears suid, sgid and file capabilities and tells whoever
// caches the attributes.
func (t *Tree) killPrivileges(n *inode, member Member) error {
	n.mu.RLock()
	perm, gid, xattrs := n.rec.Perm, n.rec.Gid, n.rec.Xattrs
	n.mu.RUnlock()
	lost := withoutPrivileges(perm, gid, member) != perm
	if !lost && xattrs == 0 {
		return nil
	}
	if err := t.noteSoon(n); err != nil {
		return err
	}
	n.mu.Lock()
	e := t.begin()
	defer e.Close()
	err := t.applyPerm(e, n, SetAttr{Mask: KillPriv, Member: member})
	if err == nil {
		err = e.commit()
	}
	n.mu.Unlock()
	if err == nil && lost && t.opts.Changed != nil {
		t.opts.Changed(n.ino)
	}
	return err
}

// Fallocate is fallocate(2) with mode 0, KEEP_SIZE, PUNCH_HOLE|KEEP_SIZE,
// ZERO_RANGE or ZERO_RANGE|KEEP_SIZE; member is as for Write. Other modes:
// EOPNOTSUPP.
func (t *Tree) Fallocate(ctx context.Context, ino Ino, mode uint32, off, n int64, member Member) error {
	if off < 0 || n <= 0 {
		return syscall.EINVAL
	}
	if off > math.MaxInt64-n {
		return syscall.EFBIG
	}
	if mode&(fallocPunchHole|fallocZeroRange) != 0 {
		t.released.Add(1)
	}
	return t.modify(ino, member, func(f *content.File) error {
		switch mode {
		case 0, fallocKeepSize:
			return f.Allocate(ctx, off, n, mode == fallocKeepSize)
		case fallocPunchHole | fallocKeepSize:
			return f.Punch(ctx, off, n)
		case fallocZeroRange, fallocZeroRange | fallocKeepSize:
			if err := f.Punch(ctx, off, n); err != nil {
				return err
			}
			return f.Allocate(ctx, off, n, mode&fallocKeepSize != 0)
		}
		return syscall.EOPNOTSUPP
	})
}

// SeekData is lseek(2) with SEEK_DATA. Error: ENXIO when no data follows off.
func (t *Tree) SeekData(ctx context.Context, ino Ino, off int64) (int64, error) {
	return t.seek(ino, off, func(f *content.File) (int64, error) {
		pos, err := f.NextData(ctx, off)
		if err == nil && pos >= f.Size() {
			return 0, syscall.ENXIO
		}
		return pos, err
	})
}

// SeekHole is lseek(2) with SEEK_HOLE; the end of the file counts as a hole.
func (t *Tree) SeekHole(ctx context.Context, ino Ino, off int64) (int64, error) {
	return t.seek(ino, off, func(f *content.File) (int64, error) {
		pos, err := f.NextHole(ctx, off)
		return min(pos, f.Size()), err
	})
}

func (t *Tree) seek(ino Ino, off int64, next func(*content.File) (int64, error)) (int64, error) {
	n, err := t.pin(ino)
	if err != nil {
		return 0, err
	}
	defer t.unpin(n)
	f, err := t.rlockContents(n)
	if err != nil {
		return 0, err
	}
	defer n.mu.RUnlock()
	if off < 0 || off >= f.Size() {
		return 0, syscall.ENXIO
	}
	return next(f)
}

// CopyRange copies up to n bytes within the tree (copy_file_range(2)), sharing
// content where it can, and tells how many; fewer at the end of the source.
// member is as for Write.
// Error: EINVAL for overlapping ranges of one file.
func (t *Tree) CopyRange(ctx context.Context, src Ino, srcOff int64, dst Ino, dstOff, n int64, member Member) (int64, error) {
	if srcOff < 0 || dstOff < 0 || n < 0 || dstOff > math.MaxInt64-n || srcOff > math.MaxInt64-n {
		return 0, syscall.EINVAL
	}
	if src == dst && srcOff < dstOff+n && dstOff < srcOff+n {
		return 0, syscall.EINVAL
	}
	from, err := t.pin(src)
	if err != nil {
		return 0, err
	}
	defer t.unpin(from)
	in, err := t.rlockContents(from)
	if err != nil {
		return 0, err
	}
	// Contents have their own lock; holding from.mu as well would order two
	// inodes that have no order.
	size := in.Size()
	from.mu.RUnlock()
	n = min(n, size-srcOff)
	if n <= 0 {
		return 0, nil
	}
	var copied int64
	err = t.modify(dst, member, func(f *content.File) (err error) {
		copied, err = f.CopyFrom(ctx, in, srcOff, dstOff, n)
		return err
	})
	return copied, err
}
