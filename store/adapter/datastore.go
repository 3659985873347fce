package adapter

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"cafs/store"

	"github.com/ipfs/boxo/datastore/dshelp"
	"github.com/ipfs/go-cid"
	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	mh "github.com/multiformats/go-multihash"
)

// ErrKey: a datastore key that is not the base32 of a multihash.
var ErrKey = errors.New("not the key of a block")

// Datastore is a cafs store for code that wants a go-datastore, such as the one
// below Kubo's blockstore. Its keys are those of blocks, and a value is hashed
// before it is kept under one; anything else is ErrKey or store.ErrMismatch.
type Datastore struct{ s Local }

var _ ds.Batching = (*Datastore)(nil)

// NewDatastore adapts s, which stays the caller's: Close does not close it.
// Kubo mounts its block datastore at /blocks; other users of boxo's blockstore
// give it the option NoPrefix.
func NewDatastore(s Local) *Datastore { return &Datastore{s} }

// blockOf is the CID that a key names.
func blockOf(key ds.Key) (cid.Cid, error) {
	h, err := dshelp.DsKeyToMultihash(key)
	if err != nil {
		return cid.Undef, fmt.Errorf("adapter: %s: %w", key, ErrKey)
	}
	return cid.NewCidV1(cid.Raw, h), nil
}

func dsError(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return ds.ErrNotFound
	}
	return err
}

// Get returns a value, checked; read-only. A key of no block is not found.
func (d *Datastore) Get(ctx context.Context, key ds.Key) ([]byte, error) {
	c, err := blockOf(key)
	if err != nil {
		return nil, ds.ErrNotFound
	}
	b, err := d.s.Get(ctx, c)
	return b, dsError(err)
}

// Has tells whether a block is there.
func (d *Datastore) Has(ctx context.Context, key ds.Key) (bool, error) {
	c, err := blockOf(key)
	if err != nil {
		return false, nil
	}
	return d.s.Has(ctx, c)
}

// GetSize is a block's length in bytes.
func (d *Datastore) GetSize(ctx context.Context, key ds.Key) (int, error) {
	c, err := blockOf(key)
	if err != nil {
		return -1, ds.ErrNotFound
	}
	n, err := d.s.Size(ctx, c)
	if err != nil {
		return -1, dsError(err)
	}
	return int(n), nil
}

// Put stores a block after hashing it. It is durable after Sync.
func (d *Datastore) Put(ctx context.Context, key ds.Key, value []byte) error {
	c, err := blockOf(key)
	if err != nil {
		return err
	}
	return store.PutVerified(ctx, d.s, c, value)
}

// Delete removes a block. No collector of cafs may run beside it.
func (d *Datastore) Delete(ctx context.Context, key ds.Key) error {
	c, err := blockOf(key)
	if err != nil {
		return nil // never there
	}
	return d.s.Delete(ctx, c.Hash())
}

// Sync makes every block durable, whatever the prefix.
func (d *Datastore) Sync(ctx context.Context, prefix ds.Key) error { return d.s.Sync(ctx) }

// Close makes everything durable and leaves the store open.
func (d *Datastore) Close() error { return d.s.Sync(context.Background()) }

// Batch collects operations until Commit, which applies them in order.
func (d *Datastore) Batch(ctx context.Context) (ds.Batch, error) { return ds.NewBasicBatch(d), nil }

// Query lists blocks; filters, orders, limits and offsets are applied to the
// list as go-datastore does it.
func (d *Datastore) Query(ctx context.Context, q query.Query) (query.Results, error) {
	ctx, cancel := context.WithCancel(ctx)
	next, stop := iter.Pull2(d.s.All(ctx))
	plain := query.ResultsFromIterator(q, query.Iterator{
		Next: func() (query.Result, bool) {
			e, err, ok := next()
			if !ok {
				return query.Result{}, false
			}
			if err != nil {
				return query.Result{Error: err}, true
			}
			r := query.Result{Entry: query.Entry{
				Key:  dshelp.MultihashToDsKey(e.Hash).String(),
				Size: int(e.Size),
			}}
			if !q.KeysOnly {
				r.Value, r.Error = d.s.Get(ctx, cid.NewCidV1(cid.Raw, e.Hash))
			}
			return r, true
		},
		Close: func() error {
			stop()
			cancel()
			return nil
		},
	})
	return query.NaiveQueryApply(q, plain), nil
}

// FromDatastore is a cafs store over a datastore of others, with the keys that
// Kubo gives blocks there.
func FromDatastore(d ds.Datastore) Local { return fromDatastore{d} }

type fromDatastore struct{ d ds.Datastore }

func dsKey(c cid.Cid) ds.Key { return dshelp.MultihashToDsKey(c.Hash()) }

func fromDsError(op string, c cid.Cid, err error) error {
	if errors.Is(err, ds.ErrNotFound) {
		err = store.ErrNotFound
	}
	return fmt.Errorf("adapter: %s %s: %w", op, c, err)
}

func (f fromDatastore) Get(ctx context.Context, c cid.Cid) ([]byte, error) {
	b, err := f.d.Get(ctx, dsKey(c))
	if err == nil {
		err = store.Verify(c.Hash(), b)
	}
	if err != nil {
		return nil, fromDsError("get", c, err)
	}
	return b, nil
}

func (f fromDatastore) Put(ctx context.Context, c cid.Cid, data []byte) error {
	if err := store.CheckPut(c, data); err != nil {
		return err
	}
	if ok, err := f.d.Has(ctx, dsKey(c)); err != nil || ok {
		return err
	}
	// The slice stays the caller's, and a datastore may keep it.
	if err := f.d.Put(ctx, dsKey(c), append([]byte(nil), data...)); err != nil {
		return fromDsError("put", c, err)
	}
	return nil
}

func (f fromDatastore) Has(ctx context.Context, c cid.Cid) (bool, error) {
	return f.d.Has(ctx, dsKey(c))
}

func (f fromDatastore) Size(ctx context.Context, c cid.Cid) (int64, error) {
	n, err := f.d.GetSize(ctx, dsKey(c))
	if err != nil {
		return 0, fromDsError("size", c, err)
	}
	return int64(n), nil
}

func (f fromDatastore) Sync(ctx context.Context) error { return f.d.Sync(ctx, ds.NewKey("/")) }

func (f fromDatastore) Delete(ctx context.Context, h mh.Multihash) error {
	return f.d.Delete(ctx, dshelp.MultihashToDsKey(h))
}

// All skips keys that are not those of blocks.
func (f fromDatastore) All(ctx context.Context) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		res, err := f.d.Query(ctx, query.Query{KeysOnly: true, ReturnsSizes: true})
		if err != nil {
			yield(store.Entry{}, err)
			return
		}
		defer res.Close()
		for {
			r, ok := res.NextSync()
			if !ok {
				return
			}
			if err := errors.Join(r.Error, ctx.Err()); err != nil {
				yield(store.Entry{}, err)
				return
			}
			h, err := dshelp.DsKeyToMultihash(ds.RawKey(r.Key))
			if err != nil {
				continue
			}
			if !yield(store.Entry{Hash: h, Size: int64(r.Size)}, nil) {
				return
			}
		}
	}
}
