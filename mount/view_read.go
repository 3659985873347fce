package mount

import (
	"context"
	"iter"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

// lookupView answers a LOOKUP in the view, or of it. What is not there is not
// kept by the kernel: the next block to arrive may make it be there.
func (f *fileSystem) lookupView(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	var n *node
	err := interruptible(cancel, h.Pid, func(ctx context.Context) (err error) {
		n, err = f.view.lookup(ctx, h.NodeId, name)
		return err
	})
	if err != nil {
		return f.status(opLookup, h.NodeId, err)
	}
	fillEntry(out, n.attr)
	if n.version != "" {
		out.SetEntryTimeout(0) // the name may come to mean another commit
	}
	return fuse.OK
}

func (v *view) attr(id uint64) (tree.Attr, error) {
	n, err := v.get(id)
	if err != nil {
		return tree.Attr{}, err
	}
	return n.attr, nil
}

func (v *view) readlink(id uint64) (string, error) {
	n, err := v.get(id)
	if err != nil {
		return "", err
	}
	if n.attr.Kind != index.Symlink {
		return "", syscall.EINVAL
	}
	return n.target, nil
}

// cid is the address in the path.
func (v *view) cid(id uint64) ([]byte, error) {
	n, err := v.get(id)
	if err != nil {
		return nil, err
	}
	if !n.c.Defined() {
		return nil, syscall.ENODATA
	}
	return []byte(n.c.String()), nil
}

// readView answers with the slices the blocks are kept in: nothing is copied.
func (f *fileSystem) readView(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	var parts [][]byte
	err := interruptible(cancel, in.Pid, func(ctx context.Context) (err error) {
		parts, err = f.view.read(ctx, in.NodeId, int64(in.Offset), int64(len(buf)))
		return err
	})
	if err != nil {
		return nil, f.status(opRead, in.NodeId, err)
	}
	return fuse.ReadResultVector(parts), fuse.OK
}

func (v *view) read(ctx context.Context, id uint64, off, size int64) ([][]byte, error) {
	n, err := v.get(id)
	if err != nil {
		return nil, err
	}
	if n.kind == jsonFile {
		data, err := v.dagJSON(ctx, n.c)
		if err != nil || off >= int64(len(data)) {
			return nil, err
		}
		return [][]byte{data[off:min(off+size, int64(len(data)))]}, nil
	}
	f, err := v.content(ctx, n)
	if err != nil {
		return nil, err
	}
	return f.View(ctx, off, size)
}

// content opens a file at its first use and keeps it while its node lives, with
// what it has learnt of the file's layout and of its readers.
func (v *view) content(ctx context.Context, n *node) (*linksys.File, error) {
	if n.attr.Kind != index.File {
		return nil, syscall.EISDIR
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file == nil {
		f, err := v.sys.OpenFile(ctx, n.bytes)
		if err != nil {
			return nil, err
		}
		n.file = f
	}
	return n.file, nil
}

// seek is lseek(2) with SEEK_DATA or SEEK_HOLE.
func (v *view) seek(ctx context.Context, id uint64, off int64, hole bool) (int64, error) {
	n, err := v.get(id)
	if err != nil {
		return 0, err
	}
	if off < 0 || off >= n.attr.Size {
		return 0, syscall.ENXIO
	}
	if n.kind == jsonFile {
		if hole {
			return n.attr.Size, nil
		}
		return off, nil
	}
	f, err := v.content(ctx, n)
	if err != nil {
		return 0, err
	}
	if hole {
		return f.NextHole(ctx, off)
	}
	at, err := f.NextData(ctx, off)
	if err == nil && at >= f.Size() {
		return 0, syscall.ENXIO
	}
	return at, err
}

// listing is one reading of a content directory, which goes on from READDIR to
// READDIR: each tells only how many entries were seen, and starting over every
// time would make large directories quadratic.
type listing struct {
	seen uint64 // entries given out
	next func() (linksys.Entry, error, bool)
	stop func()
	held *linksys.Entry // did not fit into the last answer
}

// maxLists bounds the listings one directory has under way.
const maxLists = 4

// drop ends a node's listings.
func (n *node) drop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lists {
		l.stop()
	}
	n.lists = nil
}

// readDirView lists a directory of the view from position in.Offset on. The
// entries are numbered; the dots are 1 and 2 as in the tree.
func (f *fileSystem) readDirView(cancel <-chan struct{}, in *fuse.ReadIn, add func(fuse.DirEntry) bool) fuse.Status {
	n, err := f.view.get(in.NodeId)
	if err != nil {
		return f.status(opReaddir, in.NodeId, err)
	}
	if in.Offset < afterDot && !add(fuse.DirEntry{Name: ".", Ino: n.id, Mode: syscall.S_IFDIR, Off: afterDot}) ||
		in.Offset < afterDotDot && !add(fuse.DirEntry{Name: "..", Ino: n.parent, Mode: syscall.S_IFDIR, Off: afterDotDot}) {
		return fuse.OK
	}
	seen := cookie(in.Offset)
	entry := func(name string, mode uint32) bool {
		seen++
		return add(fuse.DirEntry{Name: name, Ino: nodeID(n.id, name), Mode: mode, Off: seen + afterDotDot})
	}
	switch n.kind {
	case topDir:
		for _, d := range fixed[min(seen, uint64(len(fixed))):] {
			if !entry(d.name, syscall.S_IFDIR) {
				break
			}
		}
	case ipfsDir:
		err = f.listRoots(cancel, n, in, entry)
	case snapshotsDir, atDir:
		err = f.listCommits(n, seen, entry)
	case contentNode, pastNode:
		err = f.view.list(n, seen, entry)
	}
	return f.status(opReaddir, in.NodeId, err)
}

// listRoots lists what the repository knows. That changes, and nobody tells the
// kernel, which keeps listings; so it is asked to drop this one at its end.
func (f *fileSystem) listRoots(cancel <-chan struct{}, n *node, in *fuse.ReadIn, entry func(string, uint32) bool) error {
	if f.view.roots == nil {
		return nil
	}
	var roots []cid.Cid
	err := interruptible(cancel, in.Pid, func(ctx context.Context) (err error) {
		roots, err = f.view.roots(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for _, c := range roots[min(cookie(in.Offset), uint64(len(roots))):] {
		if !entry(c.String(), 0) {
			return nil
		}
	}
	f.view.notify(n.id)
	return nil
}

// listCommits is listRoots for the names of commits.
func (f *fileSystem) listCommits(n *node, seen uint64, entry func(string, uint32) bool) error {
	names, err := f.view.commitNames(n.kind)
	if err != nil {
		return err
	}
	for _, name := range names[min(seen, uint64(len(names))):] {
		if !entry(name, syscall.S_IFDIR) {
			return nil
		}
	}
	f.view.notify(n.id)
	return nil
}

var entryModes = map[linksys.Type]uint32{linksys.Regular: syscall.S_IFREG, linksys.Directory: syscall.S_IFDIR, linksys.Symlink: syscall.S_IFLNK}

// list continues the listing of n behind the first seen entries.
func (v *view) list(n *node, seen uint64, entry func(string, uint32) bool) error {
	if n.attr.Kind != index.Dir {
		return syscall.ENOTDIR
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listing(seen)
	if l == nil {
		l = &listing{}
		entries := v.sys.ReadDir(v.life, n.c)
		if n.past != nil {
			entries = v.pastEntries(v.life, n)
		}
		l.next, l.stop = iter.Pull2(entries)
	}
	for {
		e, err := l.take()
		if err != nil || e == nil {
			l.stop()
			return err
		}
		if l.seen++; l.seen <= seen {
			continue // started over
		}
		if !entry(e.Name, entryModes[e.Type]) {
			l.held = e
			l.seen--
			n.keep(l)
			return nil
		}
	}
}

// take is the next entry, or nil at the end.
func (l *listing) take() (*linksys.Entry, error) {
	if e := l.held; e != nil {
		l.held = nil
		return e, nil
	}
	e, err, ok := l.next()
	if !ok || err != nil {
		return nil, err
	}
	return &e, nil
}

// listing takes the listing that has come as far as seen, if any.
func (n *node) listing(seen uint64) *listing {
	for i, l := range n.lists {
		if l.seen == seen {
			n.lists = append(n.lists[:i], n.lists[i+1:]...)
			return l
		}
	}
	return nil
}

// keep remembers where a listing stopped, and gives up the oldest one.
func (n *node) keep(l *listing) {
	if len(n.lists) == maxLists {
		n.lists[0].stop()
		n.lists = n.lists[1:]
	}
	n.lists = append(n.lists, l)
}
