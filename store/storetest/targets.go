package storetest

import (
	"context"
	"errors"

	"cafs/store"
	"cafs/store/disk"

	"github.com/ipfs/go-cid"
)

// Ours is the store on disk.
func Ours(name string, opts store.Options) Bencher {
	return Bencher{name, func(dir string) (Target, error) {
		root, err := disk.OS(dir)
		if err != nil {
			return Target{}, err
		}
		opts.CreateIfMissing = true
		d, err := store.Open(root, opts)
		if err != nil {
			return Target{}, errors.Join(err, root.Close())
		}
		ctx := context.Background()
		return Target{
			Put: func(c cid.Cid, block []byte) error { return d.Put(ctx, c, block) },
			Get: func(c cid.Cid) (int, error) {
				block, err := d.Get(ctx, c)
				return len(block), err
			},
			Range: func(c cid.Cid, p []byte, off int64) error {
				_, err := d.GetRange(ctx, c, p, off)
				return err
			},
			Has: func(c cid.Cid) (bool, error) { return d.Has(ctx, c) },
			List: func() (n int, err error) {
				for _, err := range d.Keys(ctx) {
					if err != nil {
						return n, err
					}
					n++
				}
				return n, nil
			},
			Delete: func(c cid.Cid) error { return d.Delete(ctx, c.Hash()) },
			Sync:   func() error { return d.Sync(ctx) },
			Close:  func() error { return errors.Join(d.Close(), root.Close()) },
		}, nil
	}}
}
