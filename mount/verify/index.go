package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"cafs/mount/tree"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
)

// CheckIndex checks that a snapshot of the index agrees with itself: every name leads
// to an inode, every inode has the names that it counts or waits to be removed,
// and segments of staging have the bytes that extents refer to. found hears of
// what is not so; an error that it returns ends the check. seen, which may be
// nil, hears of every inode.
func CheckIndex(ctx context.Context, snap *index.Snapshot, seen func(index.InodeAt) error, found func(Finding) error) error {
	c := &indexCheck{snap: snap, orphans: map[index.Ino]bool{}, staged: map[uint64]int64{}}
	c.wrong = func(ino index.Ino, format string, args ...any) error {
		return found(Finding{Problem: Incoherent, Detail: fmt.Sprintf("inode %d: ", ino) + fmt.Sprintf(format, args...), Paths: PathsOf(snap, ino)})
	}
	for ino, err := range snap.Orphans() {
		if err != nil {
			return err
		}
		c.orphans[ino] = true
	}
	// Trees that were replaced wait in a folder without a name.
	if val, err := snap.Ref(tree.RefGrave); err == nil && len(val) == 8 {
		c.orphans[index.Ino(binary.BigEndian.Uint64(val))] = true
	}
	for in, err := range snap.Inodes(0) {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = c.inode(in)
		}
		if err == nil && seen != nil {
			err = seen(in)
		}
		if err != nil {
			return err
		}
	}
	return c.segments(found)
}

type indexCheck struct {
	snap    *index.Snapshot
	orphans map[index.Ino]bool // inodes that need no name
	staged  map[uint64]int64   // bytes that extents refer to, by segment
	wrong   func(ino index.Ino, format string, args ...any) error
}

func (c *indexCheck) inode(in index.InodeAt) error {
	if in.Kind == index.Dir {
		if err := c.dir(in); err != nil {
			return err
		}
	}
	for e, err := range c.snap.Extents(in.Ino) {
		if err != nil {
			return err
		}
		if e.Kind == index.Staged {
			c.staged[e.Seg] += e.Len
		}
	}
	if in.Ino == tree.RootIno || c.orphans[in.Ino] {
		return nil
	}
	return c.names(in)
}

// dir checks what the names of a directory lead to.
func (c *indexCheck) dir(in index.InodeAt) error {
	for d, err := range c.snap.Dirents(in.Ino, 0) {
		if err != nil {
			return err
		}
		child, err := c.snap.Inode(d.Ino)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = c.wrong(in.Ino, "name %q leads to inode %d, which is not there", d.Name, d.Ino)
		case err != nil:
			return err
		case child.Kind != d.Kind:
			err = c.wrong(in.Ino, "name %q says kind %d, inode %d has %d", d.Name, d.Kind, d.Ino, child.Kind)
		case (child.Kind == index.Dir || child.Nlink == 1) && (child.Parent != in.Ino || child.Cookie != d.Cookie):
			err = c.wrong(in.Ino, "name %q leads to inode %d, which has another name only", d.Name, d.Ino)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// names checks that an inode has the names that it should.
func (c *indexCheck) names(in index.InodeAt) error {
	want, got := uint32(1), uint32(0)
	if in.Kind != index.Dir {
		want = in.Nlink
	}
	for ref, err := range backrefs(c.snap, in) {
		if err != nil {
			return err
		}
		d, err := c.snap.DirentAt(ref.Parent, ref.Cookie)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && d.Ino == in.Ino {
			got++
		}
	}
	if got != want || got == 0 {
		return c.wrong(in.Ino, "has %d names of %d", got, want)
	}
	return nil
}

// backrefs lists where the names of an inode should be.
func backrefs(snap *index.Snapshot, in index.InodeAt) func(yield func(index.Backref, error) bool) {
	if in.Kind == index.Dir || in.Nlink <= 1 {
		return func(yield func(index.Backref, error) bool) {
			yield(index.Backref{Parent: in.Parent, Cookie: in.Cookie}, nil)
		}
	}
	return snap.Backrefs(in.Ino)
}

func (c *indexCheck) segments(found func(Finding) error) error {
	for s, err := range c.snap.Segments() {
		if err == nil && s.Live != c.staged[s.ID] {
			err = found(Finding{Problem: Incoherent, Detail: fmt.Sprintf("segment %d counts %d live bytes, extents refer to %d", s.ID, s.Live, c.staged[s.ID])})
		}
		if err != nil {
			return err
		}
		delete(c.staged, s.ID)
	}
	for seg, n := range c.staged {
		if n == 0 {
			continue
		}
		if err := found(Finding{Problem: Incoherent, Detail: fmt.Sprintf("extents refer to %d bytes of segment %d, which is not there", n, seg)}); err != nil {
			return err
		}
	}
	return nil
}

// index checks the index, and reads the bytes that are in staging.
func (v *run) index(ctx context.Context, snap *index.Snapshot) error {
	buf := make([]byte, 1<<20)
	return CheckIndex(ctx, snap, func(in index.InodeAt) error {
		v.progress(func(r *Report) { r.Inodes++ })
		if in.Kind != index.File || !in.Unsealed {
			return nil
		}
		return v.staged(ctx, snap, in, buf)
	}, v.found)
}

// staged reads the bytes of a file that are in staging.
func (v *run) staged(ctx context.Context, snap *index.Snapshot, in index.InodeAt, buf []byte) error {
	for e, err := range snap.Extents(in.Ino) {
		if err != nil {
			return err
		}
		if e.Kind != index.Staged {
			continue
		}
		for off := e.Off; off < e.Off+e.Len; off += int64(len(buf)) {
			_, err := v.Tree.Read(ctx, in.Ino, buf[:min(int64(len(buf)), e.Off+e.Len-off)], off)
			switch {
			case err == nil, errors.Is(err, io.EOF), errors.Is(err, fs.ErrNotExist):
				continue // the file may be another by now
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, store.ErrCorrupt), errors.Is(err, store.ErrNotFound):
				continue // of a block, which is found otherwise
			}
			if gone, e := v.removed(in.Ino); gone || e != nil {
				if e != nil {
					return e
				}
				break
			}
			f := Finding{Problem: Unstaged, Detail: fmt.Sprintf("inode %d, bytes from %d: %v", in.Ino, off, err), Paths: PathsOf(snap, in.Ino)}
			if errors.Is(err, content.ErrDamaged) {
				f.Detail = fmt.Sprintf("inode %d, bytes from %d in segment %d", in.Ino, off, e.Seg)
			}
			if err := v.found(f); err != nil {
				return err
			}
			break // one line for an extent
		}
	}
	return nil
}

// removed tells whether an inode has gone since the snapshot.
func (v *run) removed(ino index.Ino) (bool, error) {
	_, err := v.DB.Inode(ino)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// PathsOf lists the paths of an inode, at most maxPaths; none for one without a
// name that leads to the root.
func PathsOf(snap *index.Snapshot, ino index.Ino) (paths []string) {
	in, err := snap.Inode(ino)
	if err != nil {
		return nil
	}
	for ref, err := range backrefs(snap, index.InodeAt{Ino: ino, Inode: in}) {
		if err != nil || len(paths) == maxPaths {
			break
		}
		if p, ok := pathAt(snap, ino, ref); ok {
			paths = append(paths, p)
		}
	}
	return paths
}

// pathAt is the path of an inode by one of its names.
func pathAt(snap *index.Snapshot, ino index.Ino, ref index.Backref) (string, bool) {
	var names []string
	for ino != tree.RootIno {
		d, err := snap.DirentAt(ref.Parent, ref.Cookie)
		if err != nil || d.Ino != ino || len(names) > 4096 {
			return "", false
		}
		parent, err := snap.Inode(ref.Parent)
		if err != nil {
			return "", false
		}
		names = append(names, d.Name)
		ino, ref = ref.Parent, index.Backref{Parent: parent.Parent, Cookie: parent.Cookie}
	}
	var b strings.Builder
	for i := len(names) - 1; i >= 0; i-- {
		b.WriteByte('/')
		b.WriteString(names[i])
	}
	if b.Len() == 0 {
		return "/", true
	}
	return b.String(), true
}
