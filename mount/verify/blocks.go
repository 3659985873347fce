package verify

import (
	"context"
	"errors"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/mount/tree"
	"cafs/mount/tree/gc"
	"cafs/mount/tree/index"
)

// blocks checks that every block that the tree, kept commits and pins need is
// there. Those with links are read and hashed; of others the names count, and
// that they are not empty.
func (v *run) blocks(ctx context.Context, snap *index.Snapshot) error {
	var have gc.Set
	for e, err := range v.Store.All(ctx) {
		if err != nil {
			return err
		}
		if e.Size == 0 {
			// A file system that lost the bytes of a file leaves an empty one.
			if there, err := v.Store.Has(ctx, cid.NewCidV1(cid.Raw, e.Hash)); err != nil {
				return err
			} else if !there {
				v.badBlock(cid.NewCidV1(cid.Raw, e.Hash), Damaged)
				continue
			}
		}
		have.Add(e.Hash, gc.Tree)
	}
	m := gc.New(v.Store.Get)
	var failed error
	m.Met = func(c cid.Cid) {
		v.progress(func(r *Report) { r.Linked++ })
		if there, err := v.there(ctx, &have, c.Hash()); err != nil {
			v.mu.Lock()
			failed = errors.Join(failed, err)
			v.mu.Unlock()
		} else if !there {
			v.badBlock(c, Missing)
		}
	}
	m.Unreadable = func(c cid.Cid, err error) { v.badBlock(c, problemOf(err)) }
	if err := tree.MarkTree(ctx, m, snap); err != nil {
		return err
	}
	for k, err := range tree.Commits(snap) {
		if err != nil {
			return err
		}
		m.Add(k.Cid, gc.Deep, gc.History)
	}
	for p, err := range v.Pins() {
		if err != nil {
			return err
		}
		m.Add(p.Cid, gc.Deep, gc.Pinned)
	}
	return errors.Join(m.Run(ctx), failed)
}

// there tells whether a block is in the store: it may have been put since the
// list was made.
func (v *run) there(ctx context.Context, have *gc.Set, h mh.Multihash) (bool, error) {
	if _, ok := have.Class(h); ok {
		return true, nil
	}
	return v.Store.Has(ctx, cid.NewCidV1(cid.Raw, h))
}
