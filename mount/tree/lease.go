package tree

import (
	"context"

	"github.com/ipfs/go-cid"
)

// lease says that the caller puts blocks, or finds some, and is about to refer
// to them in the index; the function it returns ends that, after the reference
// was committed. A garbage collection takes its roots between leases, so that it
// sees either the reference, or the puts. Leases do not nest.
func (t *Tree) lease() (end func()) {
	t.collector.roots.RLock()
	return t.collector.roots.RUnlock
}

// Keep calls refer, which makes the index refer to the DAGs below roots, durably
// or not, with their blocks protected from a collection that runs. It is for
// blocks that were there before, which nothing may refer to. Errors:
// store.ErrNotFound when a collection has deleted some already.
func (t *Tree) Keep(ctx context.Context, refer func() error, roots ...cid.Cid) error {
	defer t.lease()()
	for _, c := range roots {
		if err := t.keep(ctx, c); err != nil {
			return err
		}
	}
	return refer()
}
