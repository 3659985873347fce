// Package adapter joins the block stores of cafs and those of others, both
// ways: boxo's blockstore, go-datastore and go-ipld-prime's storage interfaces.
//
// What comes from another system's store is hashed on every read, and what
// another system puts into ours is hashed before it is kept: wrong bytes are
// store.ErrCorrupt and store.ErrMismatch. Slices that a Get returns are
// read-only, as everywhere in cafs.
package adapter

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"cafs/store"

	"github.com/ipfs/boxo/blockstore"
	blocks "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	ipld "github.com/ipfs/go-ipld-format"
	mh "github.com/multiformats/go-multihash"
)

// Local is what the adapters need of a cafs store.
type Local interface {
	store.Store
	store.Sizer
	store.Deleter
}

// Blockstore is a cafs store for code that wants boxo's blockstore. It reports
// failed enumerations ([blockstore.AllKeysChanWithErrer]) and lends blocks
// without a copy ([blockstore.Viewer]).
type Blockstore struct{ s Local }

var (
	_ blockstore.Blockstore           = (*Blockstore)(nil)
	_ blockstore.AllKeysChanWithErrer = (*Blockstore)(nil)
	_ blockstore.Viewer               = (*Blockstore)(nil)
)

// NewBlockstore adapts s, which stays the caller's.
func NewBlockstore(s Local) *Blockstore { return &Blockstore{s} }

// foreign turns our error for a missing block into theirs.
func foreign(c cid.Cid, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return ipld.ErrNotFound{Cid: c}
	}
	return err
}

// DeleteBlock removes a block. No collector of cafs may run beside it.
func (b *Blockstore) DeleteBlock(ctx context.Context, c cid.Cid) error {
	return b.s.Delete(ctx, c.Hash())
}

// Has tells whether a block is there.
func (b *Blockstore) Has(ctx context.Context, c cid.Cid) (bool, error) { return b.s.Has(ctx, c) }

// Get returns a block, checked. A missing one is ipld.ErrNotFound.
func (b *Blockstore) Get(ctx context.Context, c cid.Cid) (blocks.Block, error) {
	data, err := b.s.Get(ctx, c)
	if err != nil {
		return nil, foreign(c, err)
	}
	return blocks.NewBlockWithCid(data, c)
}

// View lends a block to f.
func (b *Blockstore) View(ctx context.Context, c cid.Cid, f func([]byte) error) error {
	data, err := b.s.Get(ctx, c)
	if err != nil {
		return foreign(c, err)
	}
	return f(data)
}

// GetSize is a block's length in bytes.
func (b *Blockstore) GetSize(ctx context.Context, c cid.Cid) (int, error) {
	n, err := b.s.Size(ctx, c)
	if err != nil {
		return -1, foreign(c, err)
	}
	return int(n), nil
}

// Put stores a block after hashing it. It is durable after Sync.
func (b *Blockstore) Put(ctx context.Context, block blocks.Block) error {
	return store.PutVerified(ctx, b.s, block.Cid(), block.RawData())
}

// PutMany stores blocks in turn.
func (b *Blockstore) PutMany(ctx context.Context, list []blocks.Block) error {
	for _, block := range list {
		if err := b.Put(ctx, block); err != nil {
			return err
		}
	}
	return nil
}

// Sync makes every block put before durable.
func (b *Blockstore) Sync(ctx context.Context) error { return b.s.Sync(ctx) }

// AllKeysChan lists the blocks as raw CIDs; see AllKeysChanWithErr.
func (b *Blockstore) AllKeysChan(ctx context.Context) (<-chan cid.Cid, error) {
	ch, _, err := b.AllKeysChanWithErr(ctx)
	return ch, err
}

// AllKeysChanWithErr also returns a function that tells, after the channel was
// drained, why the list ended early; nil if it is whole.
func (b *Blockstore) AllKeysChanWithErr(ctx context.Context) (<-chan cid.Cid, func() error, error) {
	out := make(chan cid.Cid, 128)
	done := make(chan struct{})
	var failed error
	go func() {
		defer close(done)
		defer close(out)
		for h, err := range keys(ctx, b.s) {
			if err != nil {
				failed = err
				return
			}
			select {
			case out <- cid.NewCidV1(cid.Raw, h):
			case <-ctx.Done():
				failed = ctx.Err()
				return
			}
		}
	}()
	return out, func() error { <-done; return failed }, nil
}

// keys lists without sizes where the store can.
func keys(ctx context.Context, s Local) iter.Seq2[mh.Multihash, error] {
	if k, ok := s.(interface {
		Keys(context.Context) iter.Seq2[mh.Multihash, error]
	}); ok {
		return k.Keys(ctx)
	}
	return func(yield func(mh.Multihash, error) bool) {
		for e, err := range s.All(ctx) {
			if !yield(e.Hash, err) {
				return
			}
		}
	}
}

// FromBlockstore is a cafs store over a blockstore of others. A blockstore has
// no barrier: a block is as durable as its Put makes it, and Sync does nothing.
func FromBlockstore(b blockstore.Blockstore) Local { return fromBlockstore{b} }

type fromBlockstore struct{ b blockstore.Blockstore }

func (f fromBlockstore) Get(ctx context.Context, c cid.Cid) ([]byte, error) {
	block, err := f.b.Get(ctx, c)
	if err != nil {
		return nil, local("get", c, err)
	}
	if err := store.Verify(c.Hash(), block.RawData()); err != nil {
		return nil, local("get", c, err)
	}
	return block.RawData(), nil
}

// local turns their errors for a missing block into ours.
func local(op string, c cid.Cid, err error) error {
	if ipld.IsNotFound(err) {
		err = store.ErrNotFound
	}
	return fmt.Errorf("adapter: %s %s: %w", op, c, err)
}

func (f fromBlockstore) Put(ctx context.Context, c cid.Cid, data []byte) error {
	if err := store.CheckPut(c, data); err != nil {
		return err
	}
	if ok, err := f.b.Has(ctx, c); err != nil || ok {
		return err
	}
	// The slice stays the caller's, and a blockstore may keep it.
	block, err := blocks.NewBlockWithCid(append([]byte(nil), data...), c)
	if err != nil {
		return err
	}
	if err := f.b.Put(ctx, block); err != nil {
		return local("put", c, err)
	}
	return nil
}

func (f fromBlockstore) Has(ctx context.Context, c cid.Cid) (bool, error) { return f.b.Has(ctx, c) }

func (f fromBlockstore) Size(ctx context.Context, c cid.Cid) (int64, error) {
	n, err := f.b.GetSize(ctx, c)
	if err != nil {
		return 0, local("size", c, err)
	}
	return int64(n), nil
}

func (f fromBlockstore) Sync(ctx context.Context) error { return ctx.Err() }

func (f fromBlockstore) Delete(ctx context.Context, h mh.Multihash) error {
	return f.b.DeleteBlock(ctx, cid.NewCidV1(cid.Raw, h))
}

// All reports a truncated list where the blockstore can tell.
func (f fromBlockstore) All(ctx context.Context) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var ch <-chan cid.Cid
		var err error
		ended := func() error { return nil }
		if e, ok := f.b.(blockstore.AllKeysChanWithErrer); ok {
			ch, ended, err = e.AllKeysChanWithErr(ctx)
		} else {
			ch, err = f.b.AllKeysChan(ctx)
		}
		if err != nil {
			yield(store.Entry{}, err)
			return
		}
		for c := range ch {
			n, err := f.b.GetSize(ctx, c)
			if ipld.IsNotFound(err) {
				continue // deleted meanwhile
			}
			if !yield(store.Entry{Hash: c.Hash(), Size: int64(n)}, err) || err != nil {
				return
			}
		}
		if err := ended(); err != nil {
			yield(store.Entry{}, err)
		}
	}
}
