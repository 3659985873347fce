package tree

// expand enters the entries of a lazy directory into the index.
func (t *Tree) expand(n *inode) error { return nil }

func (t *Tree) expandIno(dir Ino) (bool, error) { return false, nil }

// beforeAttrs prepares a change of n's attributes: the next commit will look at
// it, and what is below it has attributes of its own. The caller holds moment.
func (t *Tree) beforeAttrs(n *inode) error {
	t.ns.RLock()
	defer t.ns.RUnlock()
	if err := t.expand(n); err != nil {
		return err
	}
	return t.note(n)
}
