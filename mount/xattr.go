package mount

import (
	"context"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"cafs/linksys/unixfs"
	"cafs/mount/tree"
)

// cidXattr answers with the content address of what it is asked of, as it is
// now. It is not listed, so that tools that copy attributes leave it alone.
const cidXattr = "ipfs.cid"

// namespaces are those Linux file systems keep.
var namespaces = []string{"user.", "trusted.", "security."}

const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// unknown answers for a name that no inode can have: EOPNOTSUPP where it is in
// no namespace, EINVAL where it is a namespace and nothing more, 0 for others.
func unknown(name string) syscall.Errno {
	if name == accessACL || name == defaultACL {
		return 0
	}
	for _, ns := range namespaces {
		switch {
		case name == ns:
			return syscall.EINVAL
		case strings.HasPrefix(name, ns):
			return 0
		}
	}
	return syscall.EOPNOTSUPP
}

// GetXAttr is asked for security.capability before the first write of each
// file, so it is on the path of every small file: in memory, the tree knows
// that an inode has no attributes.
func (f *fileSystem) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	f.ops.add(opGetxattr)
	var val []byte
	var err error
	switch {
	case name == cidXattr:
		val, err = f.cid(cancel, h)
	case isView(h.NodeId):
		err = interruptible(cancel, h.Pid, func(ctx context.Context) (err error) {
			val, err = f.view.xattr(ctx, h.NodeId, name)
			return err
		})
	case unknown(name) != 0:
		err = unknown(name)
	default:
		val, err = f.tree.Getxattr(tree.Ino(h.NodeId), name)
	}
	if err != nil {
		return 0, f.status(opGetxattr, h.NodeId, err)
	}
	return reply(dest, val)
}

// reply copies val, or tells its length when there is no room (dest empty: the
// length was the question).
func reply(dest, val []byte) (uint32, fuse.Status) {
	if len(dest) == 0 {
		return uint32(len(val)), fuse.OK
	}
	if len(val) > len(dest) {
		return uint32(len(val)), fuse.ERANGE
	}
	return uint32(copy(dest, val)), fuse.OK
}

// cid is the content address as text. In the tree this seals, so that every
// block of it is durable when it is known.
func (f *fileSystem) cid(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, error) {
	if isView(h.NodeId) {
		return f.view.cid(h.NodeId)
	}
	var root unixfs.Root
	err := interruptible(cancel, h.Pid, func(ctx context.Context) (err error) {
		root, err = f.tree.Seal(ctx, tree.Ino(h.NodeId))
		return err
	})
	if err != nil {
		return nil, err
	}
	return []byte(root.Cid.String()), nil
}

// ListXAttr shows attributes in the trusted namespace to root only.
func (f *fileSystem) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	f.ops.add(opListxattr)
	var names []string
	var err error
	if isView(h.NodeId) {
		names, err = f.view.xattrNames(h.NodeId)
	} else {
		names, err = f.tree.Listxattr(tree.Ino(h.NodeId))
	}
	if err != nil {
		return 0, f.status(opListxattr, h.NodeId, err)
	}
	var list []byte
	for _, name := range names {
		if h.Uid != 0 && strings.HasPrefix(name, "trusted.") {
			continue
		}
		list = append(append(list, name...), 0)
	}
	return reply(dest, list)
}

func (f *fileSystem) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, val []byte) fuse.Status {
	f.ops.add(opSetxattr)
	if st := writableXattr(in.NodeId, name); !st.Ok() {
		return st
	}
	err := f.withRoom(cancel, in.Pid, func(context.Context) error {
		return f.tree.Setxattr(tree.Ino(in.NodeId), name, val, int(in.Flags), in.SetXAttrFlags&fuse.SETXATTR_ACL_KILL_SGID != 0)
	})
	return f.status(opSetxattr, in.NodeId, err)
}

func (f *fileSystem) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	f.ops.add(opRemovexattr)
	if st := writableXattr(h.NodeId, name); !st.Ok() {
		return st
	}
	return f.status(opRemovexattr, h.NodeId, f.tree.Removexattr(tree.Ino(h.NodeId), name))
}

func writableXattr(id uint64, name string) fuse.Status {
	switch {
	case isView(id):
		return fuse.EROFS
	case name == cidXattr:
		return fuse.EPERM // the content decides
	}
	return fuse.Status(unknown(name))
}
