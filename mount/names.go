package mount

import (
	"context"
	"errors"
	"io/fs"

	"github.com/hanwen/go-fuse/v2/fuse"

	"cafs/mount/transport"
	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

// reserved is the name of the CID view in the root. It resolves and is not
// listed, so that copying all of the mount does not descend into it. It cannot
// be made, removed, replaced or renamed: EROFS, like everything below it.
const reserved = ".cafs"

func (f *fileSystem) isReserved(parent uint64, name string) bool {
	return f.view != nil && parent == uint64(tree.RootIno) && name == reserved
}

// readOnly answers for changes of the view; it is OK where id is the tree's.
func (f *fileSystem) readOnly(id uint64, name string) fuse.Status {
	if isView(id) || f.isReserved(id, name) {
		return fuse.EROFS
	}
	return fuse.OK
}

// unalias gives a message about a name in the root the root's node id again,
// which it may have lost on its way through go-fuse.
func unalias(h *fuse.InHeader) {
	if h.NodeId == transport.RootAlias {
		h.NodeId = uint64(tree.RootIno)
	}
}

func cred(h *fuse.InHeader, umask uint32) tree.Cred {
	return tree.Cred{Uid: h.Uid, Gid: h.Gid, Umask: uint16(umask & 0o777)}
}

func (f *fileSystem) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	f.ops.add(opLookup)
	unalias(h)
	if isView(h.NodeId) || f.isReserved(h.NodeId, name) {
		return f.lookupView(cancel, h, name, out)
	}
	a, err := f.tree.Lookup(tree.Ino(h.NodeId), name)
	if errors.Is(err, fs.ErrNotExist) {
		// An answer without a node lets the kernel keep that there is none.
		out.SetEntryTimeout(keep)
		return fuse.OK
	}
	return f.entry(opLookup, h, a, err, out)
}

// entry answers with a new reference on an inode, or with err.
func (f *fileSystem) entry(o op, h *fuse.InHeader, a tree.Attr, err error, out *fuse.EntryOut) fuse.Status {
	if err != nil {
		return f.status(o, h.NodeId, err)
	}
	fillEntry(out, a)
	return fuse.OK
}

func fillEntry(out *fuse.EntryOut, a tree.Attr) {
	out.NodeId = uint64(a.Ino)
	out.Generation = 1 // inode numbers are never used again
	out.SetEntryTimeout(keep)
	out.SetAttrTimeout(keep)
	fillAttr(&out.Attr, a)
}

// Forget gives references back. An inode without names ends here.
func (f *fileSystem) Forget(id, n uint64) {
	f.ops.add(opForget)
	if isView(id) {
		f.view.forget(id, n)
		return
	}
	f.forgets.add(tree.Ino(id), n)
}

// Create is not implemented, once: the kernel then makes files with MKNOD and
// opens them by itself. CREATE would be answered with a handle, and each handle
// costs a RELEASE.
func (f *fileSystem) Create(<-chan struct{}, *fuse.CreateIn, string, *fuse.CreateOut) fuse.Status {
	f.ops.add(opCreate)
	return fuse.ENOSYS
}

func (f *fileSystem) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	f.ops.add(opMknod)
	kind, ok := kindOf(in.Mode)
	if !ok {
		return fuse.EINVAL
	}
	return f.create(cancel, opMknod, &in.InHeader, name, in.Umask, tree.Node{Kind: kind, Perm: uint16(in.Mode & 0o7777), Rdev: in.Rdev}, out)
}

func (f *fileSystem) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	f.ops.add(opMkdir)
	return f.create(cancel, opMkdir, &in.InHeader, name, in.Umask, tree.Node{Kind: index.Dir, Perm: uint16(in.Mode & 0o7777)}, out)
}

func (f *fileSystem) create(cancel <-chan struct{}, o op, h *fuse.InHeader, name string, umask uint32, n tree.Node, out *fuse.EntryOut) fuse.Status {
	unalias(h)
	if st := f.readOnly(h.NodeId, name); !st.Ok() {
		return st
	}
	var a tree.Attr
	err := f.withRoom(cancel, h.Pid, func(context.Context) (err error) {
		a, err = f.tree.Create(cred(h, umask), tree.Ino(h.NodeId), name, n)
		return err
	})
	return f.entry(o, h, a, err, out)
}

func (f *fileSystem) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	f.ops.add(opSymlink)
	unalias(h)
	if st := f.readOnly(h.NodeId, name); !st.Ok() {
		return st
	}
	var a tree.Attr
	err := f.withRoom(cancel, h.Pid, func(context.Context) (err error) {
		a, err = f.tree.Symlink(cred(h, 0), tree.Ino(h.NodeId), name, target)
		return err
	})
	return f.entry(opSymlink, h, a, err, out)
}

// Tmpfile makes a file without a name, which LINK may give it one. The handle
// in the answer is nothing to us; its RELEASE comes and is ignored.
func (f *fileSystem) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	f.ops.add(opTmpfile)
	if isView(in.NodeId) {
		return fuse.EROFS
	}
	var a tree.Attr
	err := f.withRoom(cancel, in.Pid, func(context.Context) (err error) {
		a, err = f.tree.Tmpfile(cred(&in.InHeader, in.Umask), tree.Ino(in.NodeId), uint16(in.Mode&0o7777))
		return err
	})
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
	return f.entry(opTmpfile, &in.InHeader, a, err, &out.EntryOut)
}

func (f *fileSystem) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	f.ops.add(opLink)
	unalias(&in.InHeader)
	if isView(in.Oldnodeid) != isView(in.NodeId) {
		return fuse.EXDEV
	}
	if st := f.readOnly(in.NodeId, name); !st.Ok() {
		return st
	}
	var a tree.Attr
	err := f.withRoom(cancel, in.Pid, func(context.Context) (err error) {
		a, err = f.tree.Link(tree.Ino(in.Oldnodeid), tree.Ino(in.NodeId), name)
		return err
	})
	return f.entry(opLink, &in.InHeader, a, err, out)
}

func (f *fileSystem) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	f.ops.add(opUnlink)
	unalias(h)
	if st := f.readOnly(h.NodeId, name); !st.Ok() {
		return st
	}
	return f.status(opUnlink, h.NodeId, f.tree.Unlink(tree.Ino(h.NodeId), name))
}

func (f *fileSystem) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	f.ops.add(opRmdir)
	unalias(h)
	if st := f.readOnly(h.NodeId, name); !st.Ok() {
		return st
	}
	return f.status(opRmdir, h.NodeId, f.tree.Rmdir(tree.Ino(h.NodeId), name))
}

// Flags of renameat2(2). NOREPLACE was checked by the kernel already, and again
// by the tree; WHITEOUT is for the upper layer of an overlay.
const (
	renameNoReplace = 1 << iota
	renameExchange
	renameWhiteout
)

func (f *fileSystem) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	f.ops.add(opRename)
	unalias(&in.InHeader)
	if isView(in.NodeId) != isView(in.Newdir) {
		return fuse.EXDEV
	}
	if f.isReserved(in.NodeId, oldName) || !f.readOnly(in.Newdir, newName).Ok() {
		return fuse.EROFS
	}
	var flags tree.RenameFlags
	if in.Flags&renameNoReplace != 0 {
		flags |= tree.RenameNoReplace
	}
	if in.Flags&renameExchange != 0 {
		flags |= tree.RenameExchange
	}
	if in.Flags&renameWhiteout != 0 {
		flags |= tree.RenameWhiteout
	}
	if in.Flags&^(renameNoReplace|renameExchange|renameWhiteout) != 0 {
		return fuse.EINVAL
	}
	err := f.withRoom(cancel, in.Pid, func(ctx context.Context) error {
		return f.tree.Rename(ctx, cred(&in.InHeader, 0), tree.Ino(in.NodeId), oldName, tree.Ino(in.Newdir), newName, flags)
	})
	if err == nil && in.NodeId != in.Newdir {
		f.moved(in.Newdir, newName)
		if flags&tree.RenameExchange != 0 {
			f.moved(in.NodeId, oldName)
		}
	}
	return f.status(opRename, in.NodeId, err)
}

// moved drops the kernel's copy of a directory's listing after it came to a new
// parent: the kernel does so for both parents, but not for the entry ".." in
// the directory itself.
func (f *fileSystem) moved(parent uint64, name string) {
	a, err := f.tree.Lookup(tree.Ino(parent), name)
	if err != nil {
		return // gone again
	}
	defer f.tree.Forget(a.Ino, 1)
	if a.Kind == index.Dir {
		f.notifyListing(uint64(a.Ino))
	}
}

func (f *fileSystem) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	f.ops.add(opReadlink)
	var target string
	var err error
	if isView(h.NodeId) {
		target, err = f.view.readlink(h.NodeId)
	} else {
		target, err = f.tree.Readlink(tree.Ino(h.NodeId))
	}
	return []byte(target), f.status(opReadlink, h.NodeId, err)
}
