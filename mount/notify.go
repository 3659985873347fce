package mount

import (
	"fmt"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"cafs/mount/tree"
)

// What the kernel keeps is kept for ever (policy.go), so changes that did not
// come through it must be told. The functions here are for commands: they
// return when the kernel has dropped what it had. They wait for locks that the
// kernel holds during requests, so they must never be called from a request,
// nor with a lock held that a request may need. (zero.go does the like within a
// request that the kernel holds no such lock for.)

// NotifyEntry tells that name in parent appeared, vanished or became something else.
func (s *Server) NotifyEntry(parent tree.Ino, name string) error {
	if err := s.told(s.conn.EntryNotify(uint64(parent), name)); err != nil {
		return err
	}
	return s.NotifyContent(parent) // its listing and its times
}

// NotifyAttr tells that the attributes of ino changed, the size perhaps, but
// not the bytes.
func (s *Server) NotifyAttr(ino tree.Ino) error {
	return s.told(s.conn.InodeNotify(uint64(ino), -1, 0))
}

// NotifyContent tells that a file's bytes, a directory's entries or a link's
// target changed, and the attributes with them.
func (s *Server) NotifyContent(ino tree.Ino) error {
	return s.told(s.conn.InodeNotify(uint64(ino), 0, 0))
}

// told makes an error of the kernel's answer. That it does not know the inode
// or the name means that it has kept nothing.
func (s *Server) told(st fuse.Status) error {
	switch {
	case st.Ok() || st == fuse.ENOENT || st == fuse.Status(syscall.ENOTDIR):
		return nil
	case s.ended():
		return nil
	}
	return fmt.Errorf("mount: notify the kernel: %w", syscall.Errno(st))
}

func (s *Server) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Changed is for [tree.Options.Changed]: a write took privileges away that the
// kernel still believes in. Unlike the functions above it may be called within
// a request of that inode: without a range of bytes the kernel takes no lock
// that a request holds.
func (s *Server) Changed(ino tree.Ino) {
	if err := s.NotifyAttr(ino); err != nil {
		s.opts.Logger.Warn("the kernel may believe in old permissions", "inode", ino, "err", err)
	}
}

// notifyListing drops the kernel's copy of a directory's listing. It may be
// called within a READDIR or RENAME of that directory: the kernel locks the
// pages of a listing only while it copies from or to them, never during a
// request, unlike those of a file.
func (f *fileSystem) notifyListing(id uint64) {
	f.conn.InodeNotify(id, 0, 0)
}
