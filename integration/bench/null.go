package main

import (
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// nullFS is the least a file system can do: a tree in memory under one lock,
// with the replies that cafs gives, so that the kernel sends the messages it
// sends to cafs.
type nullFS struct {
	fuse.RawFileSystem
	mu    sync.Mutex
	nodes map[uint64]*nullNode
	last  uint64
}

type nullNode struct {
	attr  fuse.Attr
	data  [][]byte // by nullChunk, each as long as it has to be
	names map[string]uint64
	order []string // as made; "" where removed
	at    map[string]int
}

const (
	nullKeep  = 24 * time.Hour
	nullChunk = 1 << 20 // what a message carries at most, aligned as the kernel does
)

func newNull() *nullFS {
	n := &nullFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), nodes: map[uint64]*nullNode{}, last: 1}
	n.nodes[1] = newNode(1, syscall.S_IFDIR|0o755)
	return n
}

func newNode(ino uint64, mode uint32) *nullNode {
	d := &nullNode{attr: fuse.Attr{Ino: ino, Mode: mode, Nlink: 1, Blksize: 64 << 10}}
	d.touch()
	d.attr.Atime = d.attr.Mtime
	if mode&syscall.S_IFMT == syscall.S_IFDIR {
		d.attr.Nlink, d.names, d.at = 2, map[string]uint64{}, map[string]int{}
	}
	return d
}

func (d *nullNode) touch() {
	now := time.Now()
	d.attr.Mtime, d.attr.Mtimensec = uint64(now.Unix()), uint32(now.Nanosecond())
	d.attr.Ctime, d.attr.Ctimensec = d.attr.Mtime, d.attr.Mtimensec
}

func (d *nullNode) set(name string, ino uint64) {
	d.names[name], d.at[name] = ino, len(d.order)
	d.order = append(d.order, name)
	d.touch()
}

func (d *nullNode) drop(name string) {
	d.order[d.at[name]] = ""
	delete(d.names, name)
	delete(d.at, name)
	d.touch()
}

func (n *nullFS) entry(d *nullNode, out *fuse.EntryOut) fuse.Status {
	out.NodeId, out.Attr = d.attr.Ino, d.attr
	out.SetEntryTimeout(nullKeep)
	out.SetAttrTimeout(nullKeep)
	return fuse.OK
}

func (n *nullFS) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ino, ok := n.nodes[h.NodeId].names[name]; ok {
		return n.entry(n.nodes[ino], out)
	}
	out.SetEntryTimeout(nullKeep)
	return fuse.OK
}

func (n *nullFS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	out.Attr = n.nodes[in.NodeId].attr
	out.SetTimeout(nullKeep)
	return fuse.OK
}

func (n *nullFS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.nodes[in.NodeId]
	if size, ok := in.GetSize(); ok {
		d.resize(int64(size))
	}
	if mode, ok := in.GetMode(); ok {
		d.attr.Mode = d.attr.Mode&syscall.S_IFMT | mode&0o7777
	}
	if t, ok := in.GetMTime(); ok {
		d.attr.Mtime, d.attr.Mtimensec = uint64(t.Unix()), uint32(t.Nanosecond())
	}
	out.Attr = d.attr
	out.SetTimeout(nullKeep)
	return fuse.OK
}

func (d *nullNode) resize(size int64) {
	for i := range d.data {
		d.data[i] = d.data[i][:max(0, min(size-int64(i)*nullChunk, int64(len(d.data[i]))))]
	}
	d.attr.Size, d.attr.Blocks = uint64(size), uint64(size+511)/512
}

// put writes p, which lies in one chunk.
func (d *nullNode) put(p []byte, off uint64) {
	i, in := int(off/nullChunk), int(off%nullChunk)
	for len(d.data) <= i {
		d.data = append(d.data, nil)
	}
	if end := in + len(p); end > len(d.data[i]) {
		d.data[i] = append(d.data[i], make([]byte, end-len(d.data[i]))...)
	}
	copy(d.data[i][in:], p)
	if end := off + uint64(len(p)); end > d.attr.Size {
		d.attr.Size, d.attr.Blocks = end, (end+511)/512
	}
	d.touch()
}

// get reads n bytes, without a copy where they lie in one chunk.
func (d *nullNode) get(off, n uint64) []byte {
	n = min(n, d.attr.Size-min(off, d.attr.Size))
	if i, in := int(off/nullChunk), off%nullChunk; i < len(d.data) && in+n <= uint64(len(d.data[i])) {
		return d.data[i][in : in+n]
	}
	p := make([]byte, n)
	for done := uint64(0); done < n; {
		i, in := int((off+done)/nullChunk), (off+done)%nullChunk
		if i < len(d.data) && in < uint64(len(d.data[i])) {
			copy(p[done:], d.data[i][in:])
		}
		done += nullChunk - in
	}
	return p
}

func (n *nullFS) make(parent uint64, name string, mode uint32, data string, out *fuse.EntryOut) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	d := newNode(n.last, mode)
	d.put([]byte(data), 0)
	n.nodes[n.last] = d
	n.nodes[parent].set(name, n.last)
	return n.entry(d, out)
}

func (n *nullFS) Create(<-chan struct{}, *fuse.CreateIn, string, *fuse.CreateOut) fuse.Status {
	return fuse.ENOSYS
}

func (n *nullFS) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return n.make(in.NodeId, name, in.Mode&^in.Umask, "", out)
}

func (n *nullFS) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return n.make(in.NodeId, name, syscall.S_IFDIR|in.Mode&^in.Umask, "", out)
}

func (n *nullFS) Symlink(_ <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return n.make(h.NodeId, name, syscall.S_IFLNK|0o777, target, out)
}

func (n *nullFS) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[h.NodeId].get(0, nullChunk), fuse.OK
}

func (n *nullFS) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[h.NodeId].drop(name)
	return fuse.OK
}

func (n *nullFS) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.nodes[h.NodeId]
	if len(n.nodes[d.names[name]].names) > 0 {
		return fuse.Status(syscall.ENOTEMPTY)
	}
	d.drop(name)
	return fuse.OK
}

func (n *nullFS) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, b := n.nodes[in.NodeId], n.nodes[in.Newdir]
	ino := a.names[from]
	a.drop(from)
	if _, ok := b.names[to]; ok {
		b.drop(to)
	}
	b.set(to, ino)
	return fuse.OK
}

func (n *nullFS) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

func (n *nullFS) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status {
	return fuse.ENOSYS
}

func (n *nullFS) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

func (n *nullFS) Fsync(<-chan struct{}, *fuse.FsyncIn) fuse.Status { return fuse.OK }

func (n *nullFS) FsyncDir(<-chan struct{}, *fuse.FsyncIn) fuse.Status { return fuse.OK }

func (n *nullFS) GetXAttr(<-chan struct{}, *fuse.InHeader, string, []byte) (uint32, fuse.Status) {
	return 0, fuse.ENOATTR
}

func (n *nullFS) ListXAttr(<-chan struct{}, *fuse.InHeader, []byte) (uint32, fuse.Status) {
	return 0, fuse.OK
}

func (n *nullFS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.Blocks, out.Bfree, out.Bavail, out.NameLen = 4096, 1<<30, 1<<30, 1<<30, 255
	return fuse.OK
}

func (n *nullFS) Read(_ <-chan struct{}, in *fuse.ReadIn, _ []byte) (fuse.ReadResult, fuse.Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fuse.ReadResultData(n.nodes[in.NodeId].get(in.Offset, uint64(in.Size))), fuse.OK
}

func (n *nullFS) Write(_ <-chan struct{}, in *fuse.WriteIn, p []byte) (uint32, fuse.Status) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.nodes[in.NodeId]
	for done := 0; done < len(p); { // direct writes need not be aligned
		off := in.Offset + uint64(done)
		k := min(len(p)-done, int(nullChunk-off%nullChunk))
		d.put(p[done:done+k], off)
		done += k
	}
	return uint32(len(p)), fuse.OK
}

func (n *nullFS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return n.list(in, func(e fuse.DirEntry, _ *nullNode) bool { return out.AddDirEntry(e) })
}

func (n *nullFS) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return n.list(in, func(e fuse.DirEntry, d *nullNode) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		n.entry(d, entry)
		return true
	})
}

func (n *nullFS) list(in *fuse.ReadIn, add func(fuse.DirEntry, *nullNode) bool) fuse.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.nodes[in.NodeId]
	for i := int(in.Offset); i < len(d.order); i++ {
		name := d.order[i]
		if name == "" {
			continue
		}
		c := n.nodes[d.names[name]]
		if !add(fuse.DirEntry{Name: name, Mode: c.attr.Mode, Ino: c.attr.Ino, Off: uint64(i + 1)}, c) {
			break
		}
	}
	return fuse.OK
}
