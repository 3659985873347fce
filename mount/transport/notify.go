package transport

import (
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// InodeNotify has the kernel drop what it keeps of an inode: its attributes
// and, unless off is negative, its data from off for length bytes (0: to the
// end). Statuses: ENOENT when the kernel does not know the inode.
func (c *Conn) InodeNotify(node uint64, off, length int64) fuse.Status {
	body := fuse.NotifyInvalInodeOut{Ino: node, Off: off, Length: length}
	return c.notify(fuse.NOTIFY_INVAL_INODE, bytesOf(&body), nil)
}

// EntryNotify has the kernel drop what it knows of a name, its absence too.
func (c *Conn) EntryNotify(parent uint64, name string) fuse.Status {
	body := fuse.NotifyInvalEntryOut{Parent: parent, NameLen: uint32(len(name))}
	return c.notify(fuse.NOTIFY_INVAL_ENTRY, bytesOf(&body), append([]byte(name), 0))
}

func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// notify sends a message that nobody asked for: its code, which go-fuse counts
// downwards from 0, where an answer has the error, and no request's number.
func (c *Conn) notify(code int32, body, tail []byte) fuse.Status {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return fuse.Status(syscall.ENODEV)
	}
	head := fuse.OutHeader{Length: uint32(replySize + len(body) + len(tail)), Status: -code}
	iov := [][]byte{bytesOf(&head), body}
	if len(tail) > 0 {
		iov = append(iov, tail)
	}
	_, err := unix.Writev(c.fd, iov)
	if errno, ok := err.(syscall.Errno); ok {
		return fuse.Status(errno)
	}
	return fuse.OK
}
