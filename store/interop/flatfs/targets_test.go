package flatfs

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"cafs/store/storetest"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/storage/fsstore"
	"github.com/ipld/go-ipld-prime/storage/memstore"
	"github.com/multiformats/go-base32"
)

// fsStore is go-ipld-prime's fsstore. It never calls its escaping function, so
// the sharding function, one of package sharding, is given the escaped key. It
// cannot list, delete or sync.
func fsStore(name string, shardFunc func(key string, parts *[]string)) storetest.Bencher {
	return storetest.Bencher{Name: name, Open: func(dir string) (storetest.Target, error) {
		var s fsstore.Store
		err := s.Init(dir, nil, func(key string, parts *[]string) {
			shardFunc(base32.RawStdEncoding.EncodeToString([]byte(key)), parts)
		})
		if err != nil {
			return storetest.Target{}, err
		}
		// It loses races to make folders, so they are made before.
		const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
		tops := map[string]bool{}
		for _, x := range letters {
			for _, y := range letters {
				var parts []string
				shardFunc(strings.Repeat("A", 50)+string(x)+string(y)+"A", &parts)
				tops[filepath.Join(parts[:len(parts)-1]...)] = true
			}
		}
		for _, top := range slices.Sorted(maps.Keys(tops)) {
			if err := os.MkdirAll(filepath.Join(dir, top), 0o755); err != nil {
				return storetest.Target{}, err
			}
		}
		ctx := context.Background()
		return storetest.Target{
			Put: func(c cid.Cid, block []byte) error {
				err := s.Put(ctx, string(c.Hash()), block)
				for errors.Is(err, fs.ErrExist) { // a race all the same, with two levels
					err = s.Put(ctx, string(c.Hash()), block)
				}
				return err
			},
			Get: func(c cid.Cid) (int, error) {
				block, err := s.Get(ctx, string(c.Hash()))
				return len(block), err
			},
			Has:   func(c cid.Cid) (bool, error) { return s.Has(ctx, string(c.Hash())) },
			Sync:  func() error { return nil },
			Close: func() error { return nil },
		}, nil
	}}
}

// memStore is go-ipld-prime's memstore, which takes one caller at a time.
func memStore() storetest.Bencher {
	return storetest.Bencher{Name: "memstore", Open: func(string) (storetest.Target, error) {
		s := &memstore.Store{}
		ctx := context.Background()
		lock := make(chan struct{}, 1)
		locked := func(f func()) {
			lock <- struct{}{}
			f()
			<-lock
		}
		return storetest.Target{
			Put: func(c cid.Cid, block []byte) (err error) {
				locked(func() { err = s.Put(ctx, string(c.Hash()), block) })
				return err
			},
			Get: func(c cid.Cid) (n int, err error) {
				locked(func() {
					var block []byte
					block, err = s.Get(ctx, string(c.Hash()))
					n = len(block)
				})
				return n, err
			},
			Has: func(c cid.Cid) (ok bool, err error) {
				locked(func() { ok, err = s.Has(ctx, string(c.Hash())) })
				return ok, err
			},
			List:   func() (int, error) { return len(s.Bag), nil },
			Delete: func(c cid.Cid) error { delete(s.Bag, string(c.Hash())); return nil },
			Sync:   func() error { return nil },
			Close:  func() error { return nil },
		}, nil
	}}
}
