package tree

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree/index"
)

// Readdress gives up the blocks that a directory's address and its record in
// the last commit consist of: they are damaged, and all that they say is in the
// index. The next seal, and the next commit, make them anew, with the same CIDs
// where nothing changed. Of a lazy directory the index does not have the
// entries. Errors: errors.ErrUnsupported for that, ESTALE.
func (t *Tree) Readdress(dir Ino) error {
	t.record.moment.RLock()
	defer t.record.moment.RUnlock()
	n, err := t.pin(dir)
	if err != nil {
		return err
	}
	defer t.unpin(n)
	t.ns.RLock()
	defer t.ns.RUnlock()
	if err := t.mark(n); err != nil {
		return fmt.Errorf("tree: readdress %d: %w", dir, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kind != index.Dir || n.rec.Lazy {
		return fmt.Errorf("tree: readdress %d: %w", dir, errors.ErrUnsupported)
	}
	if n.rec.Nlink == 0 {
		return syscall.ESTALE
	}
	e := t.begin()
	defer e.Close()
	rec := e.rec(n)
	rec.Base, rec.BaseSize, rec.Tsize, rec.Record = cid.Undef, 0, 0, cid.Undef
	rec.Unsealed = true
	t.sealing.touch(dir)
	return e.commit()
}
