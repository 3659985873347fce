package mount

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"cafs/mount/tree"
)

// OpenDir is not implemented, once: the kernel opens directories by itself and
// keeps their listings. A listing kept is thrown away when the kernel itself
// changes the directory, at the latest when it is read from the start again
// (also by rewinddir), and by notify.go when a command does.
func (f *fileSystem) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	f.ops.add(opOpendir)
	if f.noOpendir.Load() {
		return fuse.ENOSYS
	}
	return fuse.OK
}

// ReleaseDir comes only from kernels that need OPENDIR.
func (f *fileSystem) ReleaseDir(*fuse.ReleaseIn) { f.ops.add(opReleasedir) }

// A position in a listing is 1 behind ".", 2 behind "..", and behind any other
// entry its cookie and 2; they come in descending order. Cookies only grow and
// are never used again for another name, so a position stays good whatever is
// made and removed.
const (
	afterDot    = 1
	afterDotDot = 2
)

func (f *fileSystem) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	f.ops.add(opReaddir)
	if isView(in.NodeId) {
		return f.readDirView(cancel, in, out.AddDirEntry)
	}
	dir := tree.Ino(in.NodeId)
	more, err := f.dots(dir, in.Offset, out.AddDirEntry)
	if err == nil && more {
		err = f.tree.Readdir(dir, cookie(in.Offset), func(d tree.Dirent) bool {
			return out.AddDirEntry(fuse.DirEntry{Name: d.Name, Ino: uint64(d.Ino), Mode: modes[d.Kind], Off: d.Cookie + afterDotDot})
		})
	}
	return f.status(opReaddir, in.NodeId, err)
}

// listedWhole is how many entries of a directory are listed with their
// attributes. Who lists more mostly wants the names only, and an inode for each
// costs ten times what a name does.
const listedWhole = 4096

// ReadDirPlus takes a reference on each entry it lists with a node, which "."
// and ".." are listed without. Entries of the view are too: their attributes
// cost reading a block each.
func (f *fileSystem) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	f.ops.add(opReaddirplus)
	bare := func(e fuse.DirEntry) bool { return out.AddDirLookupEntry(e) != nil }
	if isView(in.NodeId) {
		return f.readDirView(cancel, in, bare)
	}
	dir := tree.Ino(in.NodeId)
	more, err := f.dots(dir, in.Offset, bare)
	if err != nil || !more {
		return f.status(opReaddirplus, in.NodeId, err)
	}
	newest, err := f.tree.Newest(dir)
	if err != nil {
		return f.status(opReaddirplus, in.NodeId, err)
	}
	entry := func(d tree.Dirent) fuse.DirEntry {
		return fuse.DirEntry{Name: d.Name, Ino: uint64(d.Ino), Mode: modes[d.Kind], Off: d.Cookie + afterDotDot}
	}
	from := cookie(in.Offset)
	if from > 0 && newest-from >= listedWhole {
		err = f.tree.Readdir(dir, from, func(d tree.Dirent) bool { return bare(entry(d)) })
		return f.status(opReaddirplus, in.NodeId, err)
	}
	err = f.tree.ReaddirPlus(dir, from, func(d tree.Dirent, a tree.Attr) bool {
		e := out.AddDirLookupEntry(entry(d))
		if e == nil {
			return false
		}
		fillEntry(e, a)
		return true
	})
	return f.status(opReaddirplus, in.NodeId, err)
}

func cookie(off uint64) uint64 {
	if off <= afterDotDot {
		return 0
	}
	return off - afterDotDot
}

// dots lists "." and ".." where off asks for them; more is false when the
// buffer is full.
func (f *fileSystem) dots(dir tree.Ino, off uint64, add func(fuse.DirEntry) bool) (more bool, err error) {
	if off < afterDot && !add(fuse.DirEntry{Name: ".", Ino: uint64(dir), Mode: syscall.S_IFDIR, Off: afterDot}) {
		return false, nil
	}
	if off >= afterDotDot {
		return true, nil
	}
	parent, err := f.tree.Parent(dir)
	if err != nil {
		return false, err
	}
	return add(fuse.DirEntry{Name: "..", Ino: uint64(parent), Mode: syscall.S_IFDIR, Off: afterDotDot}), nil
}
