package tree

import (
	"sync"

	"cafs/mount/tree/index"
)

// edit is one change of the tree: an index batch and the records of locked
// inodes that it changes. The records become current when it is committed;
// nothing has happened when it is not.
type edit struct {
	*index.Batch
	n     int
	nodes [4]*inode
	recs  [4]index.Inode
	more  []*editMore // beyond these

	unlock []func() // locks held for the change, let go by Close
}

type editMore struct {
	n   *inode
	rec index.Inode
}

var edits = sync.Pool{New: func() any { return new(edit) }}

// begin starts a change; the caller defers Close.
func (t *Tree) begin() *edit {
	e := edits.Get().(*edit)
	e.Batch = t.db.NewBatch()
	return e
}

// Close ends the change, committed or not. It must not be used afterwards.
func (e *edit) Close() {
	e.Batch.Close()
	for _, f := range e.unlock {
		f()
	}
	*e = edit{}
	edits.Put(e)
}

// rec is the record of n in this change, to be written to: the same one however
// often it is asked for. The caller holds n.mu for writing until after commit.
func (e *edit) rec(n *inode) *index.Inode {
	for i, m := range e.nodes[:e.n] {
		if m == n {
			return &e.recs[i]
		}
	}
	for _, m := range e.more {
		if m.n == n {
			return &m.rec
		}
	}
	if e.n == len(e.nodes) {
		e.more = append(e.more, &editMore{n, n.rec})
		return &e.more[len(e.more)-1].rec
	}
	e.nodes[e.n], e.recs[e.n] = n, n.rec
	e.n++
	return &e.recs[e.n-1]
}

// has tells whether the change has a record of n already.
func (e *edit) has(n *inode) bool {
	for _, m := range e.nodes[:e.n] {
		if m == n {
			return true
		}
	}
	for _, m := range e.more {
		if m.n == n {
			return true
		}
	}
	return false
}

// commit enters the change into the index, unsynced, after all earlier ones.
func (e *edit) commit() error {
	for i, n := range e.nodes[:e.n] {
		e.SetInode(n.ino, &e.recs[i])
	}
	for _, m := range e.more {
		e.SetInode(m.n.ino, &m.rec)
	}
	if err := e.Commit(); err != nil {
		return err
	}
	for i, n := range e.nodes[:e.n] {
		n.rec = e.recs[i]
	}
	for _, m := range e.more {
		m.n.rec = m.rec
	}
	return nil
}
