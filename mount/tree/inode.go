package tree

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
)

// An inode is an object of the tree that is in memory because somebody refers
// to it or because its contents are not published yet. Of those that are only
// referred to, the table keeps so many.
type inode struct {
	ino    Ino
	kind   Kind   // these never change and need no lock
	target string // of a symbolic link

	// Guarded by the table shard: running operations, references that were handed
	// out and not given back (the kernel's look-ups), and whether there was an
	// operation since trim looked.
	pins, looks int64
	used        bool

	publish sync.Mutex // one uncommitted cut at a time

	// mu guards rec and file. A write to the contents holds it shared, since
	// the contents have a lock of their own; then attrs guards what a write
	// changes in rec: Mtime, Ctime and Perm.
	mu    sync.RWMutex
	attrs sync.Mutex
	// rec holds the current attributes, except that the embedded Content is
	// what the index has: the last published one.
	rec  index.Inode
	file *content.File // contents of a regular file, once they were needed

	noted  atomic.Uint32 // the generation in which its names were noted; see recording
	reaped bool          // guarded by the table shard: gone from the index
	dirty  atomic.Bool   // in the tree's dirty set
}

func newInode(ino Ino, rec index.Inode) *inode {
	return &inode{ino: ino, kind: rec.Kind, target: rec.Target, rec: rec}
}

func (n *inode) nlink() uint32 {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.rec.Nlink
}

// copyRec returns the record. The caller holds n.mu, shared or not.
func (n *inode) copyRec() index.Inode {
	n.attrs.Lock()
	defer n.attrs.Unlock()
	return n.rec
}

// reap removes inodes without names and references, which release told of, from
// the index and from memory. Nobody else has them, nor can get them.
func (t *Tree) reap(list ...*inode) {
	b := t.db.NewBatch()
	defer b.Close()
	for _, n := range list {
		t.takeApart(n, b)
	}
	if err := b.Commit(); err != nil {
		// The orphan records are still there: the next start takes them up again.
		t.log.Error("removing inodes", "inodes", len(list), "first", list[0].ino, "error", err)
	}
	for _, n := range list {
		s := t.table.shard(n.ino)
		s.mu.Lock()
		delete(s.byID, n.ino)
		s.mu.Unlock()
	}
	t.table.count.Add(-int64(len(list)))
	t.released.Add(1)
}

// takeApart puts all that the index has of an inode into b, to be removed, and
// gives back what its contents take.
func (t *Tree) takeApart(n *inode, b *index.Batch) {
	t.dirtySet.remove(n)
	b.DeleteInode(n.ino)
	b.DeleteOrphan(n.ino)
	if n.rec.Xattrs > 0 {
		b.DeleteXattrs(n.ino)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kind != index.File || n.file == nil && !n.rec.Unsealed {
		return // no contents but blocks
	}
	if _, err := t.contents(n); err != nil {
		t.log.Error("contents of a removed file could not be read; its staging space stays taken", "inode", n.ino, "error", err)
		return
	}
	n.file.Drop(b)
}

// contents returns the contents of a regular file, reading their extents from
// the index the first time. The caller holds n.mu for writing.
func (t *Tree) contents(n *inode) (*content.File, error) {
	if n.file != nil {
		return n.file, nil
	}
	if n.kind != index.File {
		if n.kind == index.Dir {
			return nil, syscall.EISDIR
		}
		return nil, syscall.EINVAL
	}
	if n.rec.Size == 0 && !n.rec.Base.Defined() {
		n.file = t.content.New(n.ino)
		return n.file, nil
	}
	extents := noExtents
	if n.rec.Unsealed { // a sealed file is its base and nothing else
		extents = t.db.Extents(n.ino)
	}
	f, err := t.content.Load(n.ino, n.rec.Content, extents)
	if err != nil {
		return nil, fmt.Errorf("tree: contents of inode %d: %w", n.ino, err)
	}
	n.file = f
	return f, nil
}

func noExtents(func(index.Extent, error) bool) {}

// rlockContents locks n for sharing with its contents loaded.
func (t *Tree) rlockContents(n *inode) (*content.File, error) {
	n.mu.RLock()
	if n.file != nil {
		return n.file, nil
	}
	n.mu.RUnlock()
	n.mu.Lock()
	_, err := t.contents(n)
	n.mu.Unlock()
	if err != nil {
		return nil, err
	}
	n.mu.RLock() // contents stay loaded while n is pinned
	return n.file, nil
}

// attr is what stat tells. The caller holds n.mu.
func (n *inode) attr() Attr {
	n.attrs.Lock()
	r := &n.rec
	a := Attr{
		Ino: n.ino, Kind: r.Kind, Perm: r.Perm, Nlink: r.Nlink, Uid: r.Uid, Gid: r.Gid, Rdev: r.Rdev,
		Atime: r.Atime, Mtime: r.Mtime, Ctime: r.Ctime, Btime: r.Btime,
	}
	n.attrs.Unlock()
	switch {
	case n.file != nil:
		a.Size, a.Blocks = n.file.Size(), n.file.Blocks()
	case r.Kind == index.File:
		a.Size, a.Blocks = r.Size, (r.Alloc+511)/512
	case r.Kind == index.Symlink:
		a.Size = int64(len(r.Target))
	case r.Kind == index.Dir:
		// ext4 counts whole blocks; programs only ask whether it is 0.
		a.Size, a.Blocks = 4096, 8
		if r.Lazy {
			a.Nlink = 1 // how many directories are in it is not known
		}
	}
	return a
}

func timespec(t time.Time) index.Timespec {
	return index.Timespec{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())}
}

func now() index.Timespec { return timespec(time.Now()) }

// Getattr tells the attributes of ino.
func (t *Tree) Getattr(ino Ino) (Attr, error) {
	n, err := t.pin(ino)
	if err != nil {
		return Attr{}, err
	}
	defer t.unpin(n)
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.attr(), nil
}

// Readlink returns the target of a symbolic link.
func (t *Tree) Readlink(ino Ino) (string, error) {
	n, err := t.pin(ino)
	if err != nil {
		return "", err
	}
	defer t.unpin(n)
	if n.kind != index.Symlink {
		return "", syscall.EINVAL
	}
	return n.target, nil
}

// inosReserved are reserved in the index at a time. The next ones are asked for
// when half of them are used: the index answers after a flush, while whoever
// needs a number holds a directory.
const inosReserved = 8192

// inos hands out inode numbers from a range reserved in the index.
type inos struct {
	mu        sync.Mutex
	next, end Ino
	more      chan inoRange // of the next range, when it was asked for
}

type inoRange struct {
	first Ino
	err   error
}

func (t *Tree) newIno() (Ino, error) {
	s := &t.inos
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end-s.next <= inosReserved/2 && s.more == nil {
		more := make(chan inoRange, 1)
		s.more = more
		t.busy.Go(func() {
			first, err := t.db.ReserveInos(inosReserved)
			more <- inoRange{first, err}
		})
	}
	if s.next == s.end {
		r := <-s.more
		s.more = nil
		if r.err != nil {
			return 0, r.err
		}
		s.next, s.end = r.first, r.first+inosReserved
	}
	ino := s.next
	s.next++
	return ino, nil
}

// dirtySet holds the files whose contents differ from what is published.
type dirtySet struct {
	mu    sync.Mutex
	files map[Ino]*inode
}

// add notes that n's contents changed. The set is not a reference: an inode in
// it stays in memory because its dirty flag is set.
func (d *dirtySet) add(n *inode) {
	if n.dirty.Load() {
		return
	}
	d.mu.Lock()
	n.dirty.Store(true)
	d.files[n.ino] = n
	d.mu.Unlock()
}

// remove notes that n's contents are published.
func (d *dirtySet) remove(n *inode) {
	if !n.dirty.Load() {
		return
	}
	d.mu.Lock()
	n.dirty.Store(false)
	delete(d.files, n.ino)
	d.mu.Unlock()
}

// list returns the numbers of the files in the set at this moment.
func (d *dirtySet) list() []Ino {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := make([]Ino, 0, len(d.files))
	for ino := range d.files {
		l = append(l, ino)
	}
	return l
}
