package linksys

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys/unixfs"
)

func cidOf(t *testing.T, i int) cid.Cid {
	c, err := cid.V1Builder{Codec: cid.Raw, MhType: mh.SHA2_256}.Sum(fmt.Append(nil, i))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCacheBounds: whatever is asked for, by however many, each part stays
// within its limit or holds a single item, its account is right, and an item is
// the one asked for.
func TestCacheBounds(t *testing.T) {
	const limit = 1000
	k := newCache(limit, limit, func(_ context.Context, c cid.Cid) (*item, error) {
		it := &item{c: c, cost: int64(c.Hash()[5]) * 6}
		if c.Hash()[6]&1 == 0 {
			it.node = &unixfs.Node{Type: unixfs.Dir}
		}
		if c.Hash()[7] == 0 {
			return nil, errors.New("unlucky")
		}
		return it, nil
	})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for range 5000 {
				c := cidOf(t, r.IntN(300))
				if it, err := k.get(t.Context(), c); err == nil && it.c != c {
					t.Errorf("asked for %s, got %s", c, it.c)
				}
			}
		})
	}
	wg.Wait()
	listed := 0
	for i := range k.parts {
		p := &k.parts[i]
		var size int64
		for e := p.lru.Front(); e != nil; e = e.Next() {
			size += e.Value.(*held).it.cost
			listed++
		}
		if size != p.size || size > limit && p.lru.Len() > 1 {
			t.Errorf("part %d: %d bytes in %d items, account %d, limit %d", i, size, p.lru.Len(), p.size, limit)
		}
	}
	if listed != len(k.items) {
		t.Errorf("%d items listed, %d in the map", listed, len(k.items))
	}
}

// TestCacheCancel: one fetch serves all who ask; when the one it runs for gives
// up, the others get the item all the same.
func TestCacheCancel(t *testing.T) {
	c := cidOf(t, 1)
	started := make(chan struct{})
	loads := 0 // in turn, by the cache's promise
	k := newCache(1000, 1000, func(ctx context.Context, c cid.Cid) (*item, error) {
		if loads++; loads == 1 {
			close(started)
			<-ctx.Done()
			return nil, fmt.Errorf("given up: %w", ctx.Err())
		}
		return &item{c: c}, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := k.get(ctx, c); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	})
	<-started
	for range 3 {
		wg.Go(func() {
			if it, err := k.get(t.Context(), c); err != nil || it.c != c {
				t.Errorf("waiting: %v", err)
			}
		})
	}
	cancel()
	wg.Wait()
	if loads != 2 {
		t.Errorf("%d loads, want 2", loads)
	}
}
