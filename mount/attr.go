package mount

import (
	"context"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

var modes = [...]uint32{
	index.File:     syscall.S_IFREG,
	index.Dir:      syscall.S_IFDIR,
	index.Symlink:  syscall.S_IFLNK,
	index.Fifo:     syscall.S_IFIFO,
	index.Socket:   syscall.S_IFSOCK,
	index.CharDev:  syscall.S_IFCHR,
	index.BlockDev: syscall.S_IFBLK,
}

// kindOf is the kind mknod(2) asks for; a mode without type is a file.
func kindOf(mode uint32) (tree.Kind, bool) {
	if mode&syscall.S_IFMT == 0 {
		return index.File, true
	}
	for k, m := range modes {
		if m != 0 && m == mode&syscall.S_IFMT && m != syscall.S_IFDIR && m != syscall.S_IFLNK {
			return tree.Kind(k), true
		}
	}
	return 0, false
}

// The preferred sizes of an I/O that st_blksize tells. Programs that buffer by
// it write files with fewer messages when it is larger than a page.
const (
	fileBlksize = 64 << 10
	pageBlksize = 4096
)

func fillAttr(out *fuse.Attr, a tree.Attr) {
	out.Ino = uint64(a.Ino)
	out.Size = uint64(a.Size)
	out.Blocks = uint64(a.Blocks)
	out.Atime, out.Atimensec = uint64(a.Atime.Sec), a.Atime.Nsec
	out.Mtime, out.Mtimensec = uint64(a.Mtime.Sec), a.Mtime.Nsec
	out.Ctime, out.Ctimensec = uint64(a.Ctime.Sec), a.Ctime.Nsec
	out.Mode = modes[a.Kind] | uint32(a.Perm)
	out.Nlink = a.Nlink
	out.Owner = fuse.Owner{Uid: a.Uid, Gid: a.Gid}
	out.Rdev = a.Rdev
	out.Blksize = pageBlksize
	if a.Kind == index.File {
		out.Blksize = fileBlksize
	}
}

// attr are the attributes of any node.
func (f *fileSystem) attr(id uint64) (tree.Attr, error) {
	if isView(id) {
		return f.view.attr(id)
	}
	return f.tree.Getattr(tree.Ino(id))
}

func (f *fileSystem) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	f.ops.add(opGetattr)
	a, err := f.attr(in.NodeId)
	if err != nil {
		return f.status(opGetattr, in.NodeId, err)
	}
	fillAttr(&out.Attr, a)
	out.SetTimeout(keep)
	return fuse.OK
}

// Statx is sent instead of GETATTR when somebody wants the time of birth.
func (f *fileSystem) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	f.ops.add(opStatx)
	a, err := f.attr(in.NodeId)
	if err != nil {
		return f.status(opStatx, in.NodeId, err)
	}
	var b fuse.Attr
	fillAttr(&b, a)
	out.Statx = fuse.Statx{
		Mask:    unix.STATX_BASIC_STATS | unix.STATX_BTIME,
		Blksize: b.Blksize,
		Nlink:   b.Nlink,
		Uid:     b.Uid,
		Gid:     b.Gid,
		Mode:    uint16(b.Mode),
		Ino:     b.Ino,
		Size:    b.Size,
		Blocks:  b.Blocks,
		Atime:   sxTime(a.Atime),
		Btime:   sxTime(a.Btime),
		Ctime:   sxTime(a.Ctime),
		Mtime:   sxTime(a.Mtime),
		// The 32 bits are put together as the kernel's new_encode_dev does.
		RdevMajor: b.Rdev >> 8 & 0xfff,
		RdevMinor: b.Rdev&0xff | b.Rdev>>12&0xfff00,
	}
	out.SetTimeout(keep)
	return fuse.OK
}

func sxTime(t index.Timespec) fuse.SxTime { return fuse.SxTime{Sec: uint64(t.Sec), Nsec: t.Nsec} }

// SetAttr truncates too. Its reply has a timeout of its own; without one the
// next stat(2) would be a message.
func (f *fileSystem) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	f.ops.add(opSetattr)
	if isView(in.NodeId) {
		return fuse.EROFS
	}
	s, ok := setAttr(in)
	if !ok {
		return fuse.ENOTSUP
	}
	if s.Mask == 0 {
		return f.clearPrivileges(in, out)
	}
	return f.applyAttr(cancel, in, s, out)
}

// clearPrivileges answers a SETATTR that changes nothing. The kernel sends it
// when suid and sgid have to go: before fallocate(2) and copy_file_range(2) by
// those without the right to keep them, and for a chown(2) to nobody new. For
// the latter it has not checked who asks, so that only an owner is obeyed. The
// others are told that all is well: for the former two, whose own message
// clears the bits, it must not be an error.
func (f *fileSystem) clearPrivileges(in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	a, err := f.tree.Getattr(tree.Ino(in.NodeId))
	if err != nil {
		return f.status(opSetattr, in.NodeId, err)
	}
	// in.Uid is the new owner, which there is none of here.
	var s tree.SetAttr // only a ctime
	if a.Kind != index.Dir && (in.InHeader.Uid == 0 || in.InHeader.Uid == a.Uid) {
		s.Mask = tree.KillPriv
	}
	return f.applyAttr(nil, in, s, out)
}

func (f *fileSystem) applyAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, s tree.SetAttr, out *fuse.AttrOut) fuse.Status {
	var a tree.Attr
	s.Member = member(&in.InHeader)
	err := interruptible(cancel, in.Pid, func(ctx context.Context) (err error) {
		a, err = f.tree.Setattr(ctx, tree.Ino(in.NodeId), s)
		return err
	})
	if err != nil {
		return f.status(opSetattr, in.NodeId, err)
	}
	fillAttr(&out.Attr, a)
	out.SetTimeout(keep)
	return fuse.OK
}

// setAttr translates a SETATTR; it fails when a bit is left that nobody knows.
func setAttr(in *fuse.SetAttrIn) (s tree.SetAttr, ok bool) {
	left := in.Valid &^ (fuse.FATTR_FH | fuse.FATTR_LOCKOWNER)
	take := func(bit uint32, mask tree.AttrMask) bool {
		if left&bit == 0 {
			return false
		}
		left &^= bit
		s.Mask |= mask
		return true
	}
	if take(fuse.FATTR_MODE, tree.SetPerm) {
		s.Perm = uint16(in.Mode & 0o7777)
	}
	if take(fuse.FATTR_UID, tree.SetUid) {
		s.Uid = in.Uid
	}
	if take(fuse.FATTR_GID, tree.SetGid) {
		s.Gid = in.Gid
	}
	if take(fuse.FATTR_SIZE, tree.SetSize) {
		s.Size = int64(in.Size)
	}
	if take(fuse.FATTR_ATIME, tree.SetAtime) {
		s.Atime = stamp(in.Atime, in.Atimensec, take(fuse.FATTR_ATIME_NOW, 0))
	}
	if take(fuse.FATTR_MTIME, tree.SetMtime) {
		s.Mtime = stamp(in.Mtime, in.Mtimensec, take(fuse.FATTR_MTIME_NOW, 0))
	}
	if take(fuse.FATTR_CTIME, tree.SetCtime) {
		s.Ctime = stamp(in.Ctime, in.Ctimensec, false)
	}
	take(fuse.FATTR_KILL_SUIDGID, tree.KillPriv)
	return s, left == 0
}

func stamp(sec uint64, nsec uint32, now bool) index.Timespec {
	if now {
		t := time.Now()
		return index.Timespec{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
	}
	return index.Timespec{Sec: int64(sec), Nsec: nsec}
}

// Access is asked for access(2) and chdir(2), and only where the kernel checks
// no permissions because nobody but root can come in. Root may do everything
// but execute a file that nobody may execute.
func (f *fileSystem) Access(cancel <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	f.ops.add(opAccess)
	if in.Mask&fuse.W_OK != 0 {
		if isView(in.NodeId) || f.health != nil && f.health() != nil {
			return fuse.EROFS
		}
	}
	if in.Mask&fuse.X_OK == 0 {
		return fuse.OK
	}
	a, err := f.attr(in.NodeId)
	if err != nil {
		return f.status(opAccess, in.NodeId, err)
	}
	if a.Kind != index.Dir && a.Perm&0o111 == 0 {
		return fuse.EACCES
	}
	return fuse.OK
}

func (f *fileSystem) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	f.ops.add(opStatfs)
	u, err := f.tree.Statfs()
	if err != nil {
		return f.status(opStatfs, h.NodeId, err)
	}
	*out = fuse.StatfsOut{
		Blocks:  uint64(u.Total) / pageBlksize,
		Bfree:   uint64(u.Free) / pageBlksize,
		Bavail:  uint64(u.Avail) / pageBlksize,
		Files:   uint64(u.Files),
		Ffree:   uint64(u.FilesFree),
		Bsize:   pageBlksize,
		Frsize:  pageBlksize,
		NameLen: tree.MaxName,
	}
	return fuse.OK
}
