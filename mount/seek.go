package mount

import (
	"context"
	"errors"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"cafs/mount/tree"
)

// Lseek is asked for SEEK_DATA and SEEK_HOLE only; the kernel does the rest.
func (f *fileSystem) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	f.ops.add(opLseek)
	return f.status(opLseek, in.NodeId, interruptible(cancel, in.Pid, func(ctx context.Context) error {
		s := pages{ctx: ctx, f: f, node: in.NodeId}
		off := int64(in.Offset)
		a, err := f.attr(in.NodeId)
		switch {
		case err != nil:
			return err
		case off < 0 || off >= a.Size:
			return syscall.ENXIO
		case in.Whence == unix.SEEK_DATA:
			off, err = s.data(off)
		case in.Whence == unix.SEEK_HOLE:
			off, err = s.hole(off, a.Size)
		default:
			return syscall.EINVAL
		}
		out.Offset = uint64(off)
		return err
	}))
}

// pages tells of data and holes in whole pages, though the tree knows them to
// the byte: programs expect the granularity of a disk, and those that go on to
// read directly need it. A page with any data is data.
type pages struct {
	ctx  context.Context
	f    *fileSystem
	node uint64
}

func pageOf(off int64) int64 { return off &^ (pageBlksize - 1) }

// data is the first offset from off on in a page of data.
func (s pages) data(off int64) (int64, error) {
	at, err := s.find(pageOf(off), false)
	return max(off, pageOf(at)), err
}

// hole is the first offset from off on in a page that is none, or the size.
func (s pages) hole(off, size int64) (int64, error) {
	for from := pageOf(off); ; {
		at, err := s.find(from, true)
		if err != nil {
			return 0, err
		}
		next := pageOf(at)
		if next < at { // behind data, which makes the page data
			if size-next <= pageBlksize {
				return size, nil
			}
			next += pageBlksize
		}
		data, err := s.find(next, false)
		if errors.Is(err, syscall.ENXIO) || err == nil && pageOf(data) > next {
			return max(off, next), nil
		}
		if err != nil {
			return 0, err
		}
		from = data
	}
}

// find is the first byte from off on that is in a hole, or is not.
func (s pages) find(off int64, hole bool) (int64, error) {
	switch {
	case isView(s.node):
		return s.f.view.seek(s.ctx, s.node, off, hole)
	case hole:
		return s.f.tree.SeekHole(s.ctx, tree.Ino(s.node), off)
	}
	return s.f.tree.SeekData(s.ctx, tree.Ino(s.node), off)
}
