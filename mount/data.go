package mount

import (
	"context"
	"errors"
	"io"
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"cafs/mount/tree"
)

// Open is not implemented, once: the kernel then opens files by itself and
// keeps their pages. There is no OPEN and no RELEASE, which is most of what a
// small read costs. It follows that truncation is a SETATTR, that sizes must be
// exact, and that an unlinked file ends with FORGET.
func (f *fileSystem) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status {
	f.ops.add(opOpen)
	return fuse.ENOSYS
}

// Flush is not implemented, once: nothing is left to do at close(2). Errors
// show at write(2) and fsync(2).
func (f *fileSystem) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status {
	f.ops.add(opFlush)
	return fuse.ENOSYS
}

// Release comes for the handles of TMPFILE only.
func (f *fileSystem) Release(<-chan struct{}, *fuse.ReleaseIn) { f.ops.add(opRelease) }

// Read fills buf, which is go-fuse's and goes to the kernel as it is. A short
// answer would mean the end of the file to the kernel, which cuts its idea of
// the size; so it is only given there.
func (f *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	f.ops.add(opRead)
	off := int64(in.Offset)
	if off < 0 {
		return nil, fuse.EINVAL
	}
	if isView(in.NodeId) {
		return f.readView(cancel, in, buf)
	}
	n, ino := 0, tree.Ino(in.NodeId)
	zeroed := f.zeroing.of(ino)
	err := interruptible(cancel, in.Pid, func(ctx context.Context) (err error) {
		n, err = f.tree.Read(ctx, ino, buf, off)
		return err
	})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, f.status(opRead, in.NodeId, err)
	}
	for _, r := range zeroed {
		r.clear(buf[:n], off)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// Writev is what go-fuse calls for a WRITE, in practice with one slice. What
// was written before an error counts; the error shows with the next write.
func (f *fileSystem) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	f.ops.add(opWrite)
	if isView(in.NodeId) {
		return 0, fuse.EROFS
	}
	var killer tree.Member
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		killer = member(&in.InHeader)
	}
	done := int64(0)
	for _, p := range data {
		n := 0
		off := int64(in.Offset) + done
		if off < 0 || off > math.MaxInt64-int64(len(p)) {
			return 0, fuse.Status(syscall.EFBIG)
		}
		err := f.withRoom(cancel, in.Pid, func(ctx context.Context) (err error) {
			n, err = f.tree.Write(ctx, tree.Ino(in.NodeId), p, off, killer)
			return err
		})
		done += int64(n)
		if err != nil && done == 0 {
			return 0, f.status(opWrite, in.NodeId, err)
		}
		if err != nil || n < len(p) {
			break
		}
	}
	return uint32(done), fuse.OK
}

func (f *fileSystem) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	f.ops.add(opFsync)
	return f.fsync(opFsync, cancel, in)
}

func (f *fileSystem) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	f.ops.add(opFsyncdir)
	return f.fsync(opFsyncdir, cancel, in)
}

// fsync makes no difference for fdatasync(2): attributes and data are in one log.
func (f *fileSystem) fsync(o op, cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if isView(in.NodeId) {
		return fuse.OK
	}
	return f.status(o, in.NodeId, interruptible(cancel, in.Pid, func(ctx context.Context) error {
		return f.tree.Fsync(ctx, tree.Ino(in.NodeId))
	}))
}

func (f *fileSystem) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	f.ops.add(opFallocate)
	if isView(in.NodeId) {
		return fuse.EROFS
	}
	ino, off, n := tree.Ino(in.NodeId), int64(in.Offset), int64(in.Length)
	change := func(ctx context.Context) error {
		return f.tree.Fallocate(ctx, ino, in.Mode, off, n, ordinary(&in.InHeader))
	}
	return f.status(opFallocate, in.NodeId, f.withRoom(cancel, in.Pid, func(ctx context.Context) error {
		err := change(ctx)
		if err == nil && zeroesPart(in.Mode, off, n) {
			err = f.zeroAgain(ctx, zeroRange{ino, off, off + n}, change)
		}
		return err
	}))
}

// CopyFileRange shares what is sealed. Content of the view has to be read and
// written: EXDEV makes the kernel do that by itself. So it does with parts of
// pages: after a copy the kernel drops the pages it touched, and with them what
// somebody wrote meanwhile, through a mapping, to the rest of such a page.
func (f *fileSystem) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	f.ops.add(opCopyRange)
	if isView(in.NodeIdOut) {
		return 0, fuse.EROFS
	}
	if isView(in.NodeId) {
		return 0, fuse.EXDEV
	}
	to := tree.Ino(in.NodeIdOut)
	a, err := f.tree.Getattr(to)
	if err != nil {
		return 0, f.status(opCopyRange, in.NodeIdOut, err)
	}
	n := wholePages(int64(in.OffOut), int64(min(in.Len, 1<<30)), a.Size) // the answer has 32 bits
	if n == 0 && in.Len > 0 {
		return 0, fuse.EXDEV
	}
	err = f.withRoom(cancel, in.Pid, func(ctx context.Context) (err error) {
		n, err = f.tree.CopyRange(ctx, tree.Ino(in.NodeId), int64(in.OffIn), to, int64(in.OffOut), n, ordinary(&in.InHeader))
		return err
	})
	if err != nil && n == 0 {
		return 0, f.status(opCopyRange, in.NodeId, err)
	}
	return uint32(n), fuse.OK
}

// wholePages is how much of n bytes at off are whole pages of a file of the
// given size, of which the last need not be full.
func wholePages(off, n, size int64) int64 {
	end := off + n
	switch {
	case off%pageSize != 0:
		return 0
	case end%pageSize != 0 && end < size:
		return max(0, end&^(pageSize-1)-off)
	}
	return n
}

// Ioctl knows no command. ENOSYS would mean the same to the kernel for ever.
func (f *fileSystem) Ioctl(<-chan struct{}, *fuse.IoctlIn, []byte, *fuse.IoctlOut, []byte) fuse.Status {
	f.ops.add(opIoctl)
	return fuse.Status(syscall.ENOTTY)
}
