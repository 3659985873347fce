package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"sync"
	"sync/atomic"
	"syscall"

	"cafs/mount/tree/index"
)

const (
	// mostShards is how many shards there are, unless each would be for few inodes.
	mostShards = 256
	// defaultInodes is how many inodes stay in memory that are only referred to:
	// with their attributes, 64 to 128 MiB.
	defaultInodes = 128 << 10
	// trimLooks is how many are looked at for one that enters: twice for one that
	// leaves, and as many again for those that cannot.
	trimLooks = 4
)

// table holds the inodes in memory. A number is in at most one inode.
type table struct {
	shards []shard      // a power of two
	count  atomic.Int64 // of those in byID
	most   int          // of those in byID, by shard, before trim begins
}

type shard struct {
	mu   sync.Mutex
	byID map[Ino]*inode
	// away has the number of references that were handed out for inodes that are
	// not in memory: with all there is to know of them in the index, a number is
	// enough. A kernel with much memory refers to every file it ever listed.
	away map[Ino]int64
}

func (tb *table) init(inodes int) {
	if inodes <= 0 {
		inodes = defaultInodes
	}
	n := mostShards
	for n > 1 && inodes/n < 64 {
		n /= 2
	}
	tb.shards, tb.most = make([]shard, n), inodes/n
	for i := range tb.shards {
		tb.shards[i].byID, tb.shards[i].away = make(map[Ino]*inode), make(map[Ino]int64)
	}
}

func (tb *table) shard(ino Ino) *shard { return &tb.shards[ino&Ino(len(tb.shards)-1)] }

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

// pin finds ino for an operation, which ends with unpin, and reads it from the
// index if it is not in memory. The shard's lock is held while it is read, or a
// stale copy could be entered after another one was changed and dropped.
func (t *Tree) pin(ino Ino) (*inode, error) {
	s := t.table.shard(ino)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byID[ino]
	if n != nil && n.reaped { // or what is written now would come back to the index
		return nil, fmt.Errorf("tree: inode %d: %w", ino, syscall.ESTALE)
	}
	if n != nil {
		n.pins++
		n.used = true
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
	n.pins, n.looks = 1, s.away[ino]
	delete(s.away, ino)
	t.enter(s, n)
	return n, nil
}

// insert enters a newly made inode, to which the caller's caller refers.
func (t *Tree) insert(n *inode) {
	s := t.table.shard(n.ino)
	n.looks = 1
	s.mu.Lock()
	defer s.mu.Unlock()
	t.enter(s, n)
}

// enter puts n into a locked shard, and out of it what is not used.
func (t *Tree) enter(s *shard, n *inode) {
	t.table.count.Add(1)
	n.used = true
	if len(s.byID) >= t.table.most {
		t.trim(s)
	}
	s.byID[n.ino] = n
}

// trim looks at a few inodes of a locked shard, in the random order of a map: what
// is only referred to leaves memory, unless it was used since it was looked at last.
func (t *Tree) trim(s *shard) {
	k := 0
	for ino, n := range s.byID {
		switch {
		case n.used:
			n.used = false
		case n.pins == 0 && t.away(n):
			s.away[ino] = n.looks
			t.drop(s, n)
		}
		if k++; k == trimLooks {
			return
		}
	}
}

// away tells whether the index has all of an inode that no operation has. A file
// that is about to be sealed is spared having to be read again.
func (t *Tree) away(n *inode) bool {
	return !n.reaped && n.rec.Nlink > 0 && !n.dirty.Load() && (n.file == nil || !n.rec.Unsealed)
}

// drop takes an inode out of a locked shard.
func (t *Tree) drop(s *shard, n *inode) {
	if n.file != nil {
		n.file.Release()
	}
	delete(s.byID, n.ino)
	t.table.count.Add(-1)
}

// handOut ends what pin began by a reference for the caller's caller, who gives it
// back with Forget.
func (t *Tree) handOut(n *inode) {
	s := t.table.shard(n.ino)
	s.mu.Lock()
	n.pins--
	n.looks++
	s.mu.Unlock()
}

// pinAgain is pin of an inode that is pinned already.
func (t *Tree) pinAgain(n *inode) {
	s := t.table.shard(n.ino)
	s.mu.Lock()
	n.pins++
	s.mu.Unlock()
}

// unpin ends what pin began. After the last operation, and with no reference left,
// an inode leaves memory, and the index too when it has no names.
func (t *Tree) unpin(n *inode) {
	s := t.table.shard(n.ino)
	s.mu.Lock()
	n.pins--
	reap := t.release(s, n)
	s.mu.Unlock()
	if reap {
		t.reap(n)
	}
}

// release lets go of an inode of a locked shard if nobody needs it any more. It
// tells whether the inode is to leave the index: then the caller reaps it.
func (t *Tree) release(s *shard, n *inode) (reap bool) {
	if n.pins > 0 || n.looks > 0 || n.reaped {
		return false
	}
	// Nobody else can hold n.mu, so its fields are stable, and nobody can find n
	// but through this shard.
	switch {
	case n.rec.Nlink == 0 && t.sealing.hold(n):
		n.pins = 1
		return false
	case n.rec.Nlink == 0:
		n.reaped = true // and in the table while it is taken apart, where pin refuses it
		return true
	case n.dirty.Load():
		return false
	}
	t.drop(s, n)
	return false
}

// Forget gives back k references on ino.
func (t *Tree) Forget(ino Ino, k uint64) { t.ForgetAll([]Forgotten{{ino, k}}) }

// Forgotten is a number of references given back.
type Forgotten struct {
	Ino Ino
	N   uint64
}

// ForgetAll is Forget for each: what they were the last references of leaves the
// index in one batch.
func (t *Tree) ForgetAll(list []Forgotten) {
	var gone []*inode
	for _, f := range list {
		if n := t.forget(f); n != nil {
			gone = append(gone, n)
		}
	}
	if len(gone) > 0 {
		t.reap(gone...)
	}
}

// forget returns the inode if it is to be reaped now.
func (t *Tree) forget(f Forgotten) *inode {
	s := t.table.shard(f.Ino)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byID[f.Ino]; n != nil {
		n.looks -= int64(f.N)
		if t.release(s, n) {
			return n
		}
	} else if left := s.away[f.Ino] - int64(f.N); left > 0 {
		s.away[f.Ino] = left
	} else {
		delete(s.away, f.Ino)
	}
	return nil
}
