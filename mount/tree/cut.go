package tree

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
)

// sealState is what a running seal of directories needs to know of changes made
// since its cut. The cut is one moment of the operation log, while writers go
// on: the index is a snapshot, and files that are not sealed in it have their
// contents cut when they are first written to after that, or when the seal gets
// to them.
type sealState struct {
	one    sync.Mutex  // one seal of directories at a time
	active atomic.Bool // one runs; changed under ns and record.moment when it begins

	mu      sync.Mutex
	touched map[Ino]struct{} // directories changed since the cut; nil when no seal runs
	cuts    map[Ino]*cutFile // files changed since the cut
	held    []*inode         // each with a reference, until the end
}

// cutFile is a file as of the cut.
type cutFile struct {
	cut  *content.Cut // ended by whoever seals it, or at the end
	root unixfs.Root  // when it was sealed meanwhile, and then changed
	rec  index.Inode
	// dirty: rec is newer than the record in the snapshot.
	dirty bool
}

func (s *sealState) touch(dir Ino) {
	if !s.active.Load() {
		return
	}
	s.mu.Lock()
	if s.touched != nil {
		s.touched[dir] = struct{}{}
	}
	s.mu.Unlock()
}

func (s *sealState) wasTouched(dir Ino) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.touched[dir]
	return ok
}

// hold keeps a file that is about to be taken apart, with the last reference,
// until the running seal has ended: it may be a part of the cut, and not sealed
// there, even if it is now, by the background. The caller holds the lock of n's
// table shard.
func (s *sealState) hold(n *inode) bool {
	if !s.active.Load() || n.kind != index.File {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.touched == nil {
		return false
	}
	s.held = append(s.held, n)
	return true
}

// preserve takes a cut of a file that is about to be changed for the first time
// since the running seal's cut. The caller holds n.mu, perhaps shared, and
// n's contents are loaded.
func (t *Tree) preserve(n *inode) {
	s := &t.sealing
	if !s.active.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, seen := s.cuts[n.ino]; seen || s.touched == nil {
		return
	}
	if !n.rec.Unsealed {
		s.cuts[n.ino] = &cutFile{root: unixfs.Root{Cid: n.rec.Base, Size: uint64(n.rec.Size), Tsize: n.rec.Tsize}}
		return
	}
	t.pinAgain(n)
	s.held = append(s.held, n)
	s.cuts[n.ino] = &cutFile{cut: n.file.Cut()}
}

// cutOf returns the cut of a file for the running seal, whose job it is to end
// it, or its root; neither when the file is as it was. The caller holds n.mu
// for writing.
func (t *Tree) cutOf(n *inode) (*content.Cut, unixfs.Root) {
	s := &t.sealing
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.cuts[n.ino]; f != nil {
		c := f.cut
		f.cut = nil
		return c, f.root
	}
	return nil, unixfs.Root{}
}

// sealCut is the moment that a seal is about.
type sealCut struct {
	t    *Tree
	snap *index.Snapshot
}

// beginCut takes the cut: nothing changes while the index snapshot and the
// contents of files that differ from it are taken. The caller holds
// sealing.one, and publishes beforehand to keep the pause short. record starts
// a commit too.
func (t *Tree) beginCut(record bool) (*sealCut, error) {
	t.record.moment.Lock()
	defer t.record.moment.Unlock()
	t.ns.Lock()
	defer t.ns.Unlock()
	s := &t.sealing
	s.mu.Lock()
	s.touched, s.cuts = make(map[Ino]struct{}), make(map[Ino]*cutFile)
	s.mu.Unlock()
	s.active.Store(true)
	c := &sealCut{t: t}
	for _, ino := range t.dirtySet.list() {
		if err := t.cutDirty(ino); err != nil {
			c.end()
			return nil, err
		}
	}
	if record {
		t.record.begin()
	}
	c.snap = t.db.Snapshot()
	return c, nil
}

// cutDirty takes a cut of a file with unpublished contents, marked as unsealed.
func (t *Tree) cutDirty(ino Ino) error {
	n, err := t.pin(ino)
	if errors.Is(err, syscall.ESTALE) {
		return nil
	} else if err != nil {
		return err
	}
	if err := t.mark(n); err != nil {
		t.unpin(n)
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &t.sealing
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = append(s.held, n)
	if n.file != nil {
		s.cuts[ino] = &cutFile{cut: n.file.Cut(), rec: n.rec, dirty: true}
	}
	return nil
}

// inode is the record of a file at the cut that is newer than the snapshot's.
func (c *sealCut) inode(ino Ino) (index.Inode, bool) {
	s := &c.t.sealing
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.cuts[ino]; f != nil && f.dirty {
		return f.rec, true
	}
	return index.Inode{}, false
}

// end lets go of what the cut holds.
func (c *sealCut) end() {
	s := &c.t.sealing
	s.mu.Lock()
	cuts, held := s.cuts, s.held
	s.touched, s.cuts, s.held = nil, nil, nil
	s.active.Store(false)
	s.mu.Unlock()
	for _, f := range cuts {
		if f.cut != nil {
			f.cut.Abort()
		}
	}
	for _, n := range held {
		c.t.unpin(n)
	}
	if c.snap != nil {
		c.snap.Close()
	}
}
