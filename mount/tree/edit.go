package tree

import "cafs/mount/tree/index"

// edit is one change of the tree: an index batch and the records of locked
// inodes that it changes. The records become current when it is committed;
// nothing has happened when it is not.
type edit struct {
	*index.Batch
	n     int
	nodes [4]*inode
	recs  [4]index.Inode
}

// begin starts a change; the caller defers Close.
func (t *Tree) begin() *edit { return &edit{Batch: t.db.NewBatch()} }

// rec is the record of n in this change, to be written to: the same one however
// often it is asked for. The caller holds n.mu for writing until after commit.
func (e *edit) rec(n *inode) *index.Inode {
	for i, m := range e.nodes[:e.n] {
		if m == n {
			return &e.recs[i]
		}
	}
	e.nodes[e.n], e.recs[e.n] = n, n.rec
	e.n++
	return &e.recs[e.n-1]
}

// commit enters the change into the index, unsynced, after all earlier ones.
func (e *edit) commit() error {
	for i, n := range e.nodes[:e.n] {
		e.SetInode(n.ino, &e.recs[i])
	}
	if err := e.Commit(); err != nil {
		return err
	}
	for i, n := range e.nodes[:e.n] {
		n.rec = e.recs[i]
	}
	return nil
}
