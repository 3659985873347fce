package flatfs

import (
	"context"
	"testing"

	"cafs/shard"
	"cafs/store"
	"cafs/store/storetest"

	"github.com/ipfs/boxo/datastore/dshelp"
	"github.com/ipfs/go-cid"
	ds "github.com/ipfs/go-datastore"
	"github.com/ipfs/go-datastore/query"
	kubo "github.com/ipfs/go-ds-flatfs"
	"github.com/ipld/go-ipld-prime/storage/sharding"
)

// BenchmarkStore is one body over all stores; doc/benchmarks.md says how to run
// parts of it.
func BenchmarkStore(b *testing.B) { storetest.Bench(b, stores()) }

// BenchmarkList lists 100,000 blocks.
func BenchmarkList(b *testing.B) { storetest.BenchList(b, stores()) }

func stores() []storetest.Bencher {
	nextToLast2 := func(key string, parts *[]string) {
		*parts = append(*parts, key[len(key)-3:len(key)-1], key)
	}
	return []storetest.Bencher{
		storetest.Ours("cafs", store.Options{}),
		storetest.Ours("cafs-r12", store.Options{Shard: shard.R12}),
		storetest.Ours("cafs-r122", store.Options{Shard: shard.R122}),
		storetest.Ours("cafs-r133", store.Options{Shard: shard.R133}),
		memStore(),
		fsStore("fsstore", nextToLast2),
		fsStore("fsstore-r12", sharding.Shard_r12),
		fsStore("fsstore-r122", sharding.Shard_r122),
		fsStore("fsstore-r133", sharding.Shard_r133),
		theirs("flatfs", kubo.NextToLast(2), false),
		theirs("flatfs-sync", kubo.NextToLast(2), true),
		theirs("flatfs-prefix5", kubo.Prefix(5), false),
		theirs("flatfs-suffix2", kubo.Suffix(2), false),
	}
}

// theirs is flatfs.
func theirs(name string, fn *kubo.ShardIdV1, sync bool) storetest.Bencher {
	return storetest.Bencher{Name: name, Open: func(dir string) (storetest.Target, error) {
		f, err := kubo.CreateOrOpen(dir, fn, sync)
		if err != nil {
			return storetest.Target{}, err
		}
		ctx := context.Background()
		key := func(c cid.Cid) ds.Key { return dshelp.MultihashToDsKey(c.Hash()) }
		return storetest.Target{
			Put: func(c cid.Cid, block []byte) error { return f.Put(ctx, key(c), block) },
			Get: func(c cid.Cid) (int, error) {
				block, err := f.Get(ctx, key(c))
				return len(block), err
			},
			Has: func(c cid.Cid) (bool, error) { return f.Has(ctx, key(c)) },
			List: func() (n int, err error) {
				res, err := f.Query(ctx, query.Query{KeysOnly: true})
				if err != nil {
					return 0, err
				}
				for r := range res.Next() {
					if r.Error != nil {
						return n, r.Error
					}
					n++
				}
				return n, nil
			},
			Delete: func(c cid.Cid) error { return f.Delete(ctx, key(c)) },
			Sync:   func() error { return f.Sync(ctx, ds.NewKey("/")) },
			Close:  f.Close,
		}, nil
	}}
}
