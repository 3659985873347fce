package tree

import (
	"errors"
	"io/fs"
	"sync"

	"cafs/mount/tree/index"
)

// recording tells what the next commit has to look at. What differs from the
// last commit is noted in the index by the names that lead to it, from the root
// down (SetUnrecorded), and by its link id if it has several names. A note is
// made before the change, and taken back by a commit when it has recorded the
// change, unless it was made again since the commit's cut.
//
// In memory an inode remembers the generation in which all of its names were
// noted, so that only its first change after a cut pays for that.
type recording struct {
	// moment is held shared by what changes inodes without holding ns, and
	// exclusively by a cut: so a cut is a moment of the operation log. It comes
	// before all other locks.
	moment sync.RWMutex
	gen    uint32 // changed under moment and ns only; from 1 up

	mu    sync.Mutex
	again map[Ino]map[string]struct{} // names noted since the cut; nil when no commit is under way
	links map[[16]byte]struct{}       // likewise
}

// noted remembers that the name was noted during a commit.
func (r *recording) noted(dir Ino, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.again == nil {
		return
	}
	names := r.again[dir]
	if names == nil {
		names = make(map[string]struct{})
		r.again[dir] = names
	}
	names[name] = struct{}{}
}

func (r *recording) notedLink(id [16]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links != nil {
		r.links[id] = struct{}{}
	}
}

// begin starts a commit. The caller holds moment and ns.
func (r *recording) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gen++
	r.again, r.links = make(map[Ino]map[string]struct{}), make(map[[16]byte]struct{})
}

func (r *recording) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.again, r.links = nil, nil
}

// since returns the names of dir noted since the cut.
func (r *recording) since(dir Ino) map[string]struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.again[dir]
}

func (r *recording) linkSince(id [16]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.links[id]
	return ok
}

// note makes sure that the next commit looks at n. The caller holds ns, so that
// names stand still and no cut is made, and no inode.
func (t *Tree) note(n *inode) error {
	if n.noted.Load() == t.record.gen {
		return nil
	}
	n.mu.RLock()
	rec := n.copyRec()
	n.mu.RUnlock()
	if n.ino != RootIno && n.ino != t.grave.ino() && rec.Nlink > 0 {
		names, err := t.namesOf(n.ino, &rec)
		if err != nil {
			return err
		}
		for _, ref := range names {
			if err := t.noteName(ref); err != nil {
				return err
			}
		}
		if len(names) > 1 || rec.Nlink > 1 && rec.Kind != index.Dir {
			if err := t.noteLink(rec.LinkID, n.ino); err != nil {
				return err
			}
		}
	}
	n.noted.Store(t.record.gen)
	return nil
}

// noteSoon is note for callers that hold moment and no other lock.
func (t *Tree) noteSoon(n *inode) error {
	t.ns.RLock()
	defer t.ns.RUnlock()
	return t.note(n)
}

// namesOf lists where the names of an inode are. The caller holds ns.
func (t *Tree) namesOf(ino Ino, rec *index.Inode) ([]index.Backref, error) {
	if rec.Kind == index.Dir || rec.Nlink <= 1 {
		return []index.Backref{{Parent: rec.Parent, Cookie: rec.Cookie}}, nil
	}
	var names []index.Backref
	for ref, err := range t.db.Backrefs(ino) {
		if err != nil {
			return nil, err
		}
		names = append(names, ref)
	}
	return names, nil
}

// noteName notes one name and the directories that lead to it.
func (t *Tree) noteName(ref index.Backref) error {
	p, err := t.pin(ref.Parent)
	if err != nil {
		return err
	}
	defer t.unpin(p)
	if err := t.note(p); err != nil {
		return err
	}
	d, err := t.db.DirentAt(ref.Parent, ref.Cookie)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile, which was noted
	} else if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := t.begin()
	defer e.Close()
	t.noteEntry(e, p, d.Name)
	return e.Commit()
}

// noteEntry notes name in the locked directory p, whose own names are noted.
func (t *Tree) noteEntry(e *edit, p *inode, name string) {
	if p.rec.Record.Defined() {
		e.SetUnrecorded(p.ino, name)
	}
	t.record.noted(p.ino, name)
}

func (t *Tree) noteLink(id [16]byte, ino Ino) error {
	b := t.db.NewBatch()
	defer b.Close()
	b.SetLinkUnrecorded(id, ino)
	t.record.notedLink(id)
	return b.Commit()
}
