package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
)

// An inode is an object of the tree that is in memory because somebody refers
// to it or because its contents are not published yet.
type inode struct {
	ino    Ino
	kind   Kind   // these never change and need no lock
	target string // of a symbolic link

	refs int64 // guarded by the table shard; the kernel's look-ups plus running operations

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

// copyRec returns the record. The caller holds n.mu, shared or not.
func (n *inode) copyRec() index.Inode {
	n.attrs.Lock()
	defer n.attrs.Unlock()
	return n.rec
}

const tableShards = 256

// table holds the inodes in memory. A number is in at most one inode.
type table struct {
	shards [tableShards]struct {
		mu   sync.Mutex
		byID map[Ino]*inode
	}
	count atomic.Int64
}

func (tb *table) init() {
	for i := range tb.shards {
		tb.shards[i].byID = make(map[Ino]*inode)
	}
}

// all lists the inodes in memory, without references: a few may be gone by the
// time they are looked at, and then have nothing left in memory.
func (tb *table) all() iter.Seq[*inode] {
	return func(yield func(*inode) bool) {
		var some []*inode
		for i := range tb.shards {
			s := &tb.shards[i]
			s.mu.Lock()
			some = some[:0]
			for _, n := range s.byID {
				if n.kind == index.File {
					some = append(some, n)
				}
			}
			s.mu.Unlock()
			for _, n := range some {
				if !yield(n) {
					return
				}
			}
		}
	}
}

// pin takes a reference on ino, reading it from the index if it is not in
// memory. The shard's lock is held while it is read, or a stale copy could be
// entered after another one was changed and dropped.
func (t *Tree) pin(ino Ino) (*inode, error) {
	s := &t.table.shards[ino%tableShards]
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byID[ino]
	if n != nil && n.reaped { // or what is written now would come back to the index
		return nil, fmt.Errorf("tree: inode %d: %w", ino, syscall.ESTALE)
	}
	if n != nil {
		n.refs++
		return n, nil
	}
	rec, err := t.db.Inode(ino)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("tree: inode %d: %w", ino, syscall.ESTALE)
		}
		return nil, err
	}
	n = newInode(ino, rec)
	n.refs = 1
	s.byID[ino] = n
	t.table.count.Add(1)
	return n, nil
}

// insert enters a newly made inode with one reference.
func (t *Tree) insert(n *inode) {
	s := &t.table.shards[n.ino%tableShards]
	n.refs = 1
	s.mu.Lock()
	s.byID[n.ino] = n
	s.mu.Unlock()
	t.table.count.Add(1)
}

// ref takes another reference on a pinned inode.
func (t *Tree) ref(n *inode) {
	s := &t.table.shards[n.ino%tableShards]
	s.mu.Lock()
	n.refs++
	s.mu.Unlock()
}

// unpin gives k references back. The last one lets the inode leave memory, and
// the index too when it has no names.
func (t *Tree) unpin(n *inode, k int64) {
	s := &t.table.shards[n.ino%tableShards]
	s.mu.Lock()
	n.refs -= k
	if n.refs > 0 {
		s.mu.Unlock()
		return
	}
	// With no references left nobody else can hold n.mu, so its fields are
	// stable, and nobody can find n but through this shard.
	if n.rec.Nlink == 0 && !n.reaped && t.sealing.hold(n) {
		n.refs = 1
		s.mu.Unlock()
		return
	}
	if n.rec.Nlink == 0 && !n.reaped {
		n.reaped = true // and in the table while it is taken apart, where pin refuses it
		s.mu.Unlock()
		t.reap(n)
		s.mu.Lock()
	} else if n.dirty.Load() && !n.reaped {
		s.mu.Unlock()
		return
	}
	delete(s.byID, n.ino)
	s.mu.Unlock()
	t.table.count.Add(-1)
	if n.file != nil && !n.reaped {
		n.file.Release()
	}
}

// reap removes an inode without names and references from the index. Nobody
// else has n, nor can get it.
func (t *Tree) reap(n *inode) {
	t.dirtySet.remove(n)
	b := t.db.NewBatch()
	b.DeleteInode(n.ino)
	b.DeleteOrphan(n.ino)
	if n.rec.Xattrs > 0 {
		b.DeleteXattrs(n.ino)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kind == index.File && (n.file != nil || n.rec.Size > 0) {
		if _, err := t.contents(n); err == nil {
			n.file.Drop(b)
		} else {
			t.log.Error("contents of a removed file could not be read; its staging space stays taken", "inode", n.ino, "error", err)
		}
	}
	if err := b.Commit(); err != nil {
		// The orphan record is still there: the next start takes it up again.
		t.log.Error("removing an inode", "inode", n.ino, "error", err)
	}
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

// Forget gives back k references on ino.
func (t *Tree) Forget(ino Ino, k uint64) {
	s := &t.table.shards[ino%tableShards]
	s.mu.Lock()
	n := s.byID[ino]
	s.mu.Unlock()
	if n != nil {
		t.unpin(n, int64(k))
	}
}

// Getattr tells the attributes of ino.
func (t *Tree) Getattr(ino Ino) (Attr, error) {
	n, err := t.pin(ino)
	if err != nil {
		return Attr{}, err
	}
	defer t.unpin(n, 1)
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
	defer t.unpin(n, 1)
	if n.kind != index.Symlink {
		return "", syscall.EINVAL
	}
	return n.target, nil
}

// inos hands out inode numbers from a range reserved in the index.
type inos struct {
	mu        sync.Mutex
	next, end Ino
}

func (t *Tree) newIno() (Ino, error) {
	const reserve = 1024
	t.inos.mu.Lock()
	defer t.inos.mu.Unlock()
	if t.inos.next == t.inos.end {
		first, err := t.db.ReserveInos(reserve)
		if err != nil {
			return 0, err
		}
		t.inos.next, t.inos.end = first, first+reserve
	}
	ino := t.inos.next
	t.inos.next++
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
