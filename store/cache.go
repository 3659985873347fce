package store

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// Cache keeps the blocks read last in front of another store. What it
// serves was checked when it came in. It caches no absence.
type Cache struct {
	Store
	limit int64

	mu    sync.Mutex
	bytes int64
	items map[string]*list.Element
	order list.List // of *cached, most recent first
}

type cached struct {
	key   string
	block []byte
}

// NewCache caches up to limit bytes of blocks in front of s.
func NewCache(s Store, limit int64) *Cache {
	return &Cache{Store: s, limit: limit, items: map[string]*list.Element{}}
}

// Get implements [Getter].
func (c *Cache) Get(ctx context.Context, id cid.Cid) ([]byte, error) {
	key := hashKey(id)
	if b, ok := c.lookup(key); ok {
		return b, nil
	}
	b, err := c.Store.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	c.add(key, b)
	return b, nil
}

func (c *Cache) lookup(key string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.items[key]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cached).block, true
}

func (c *Cache) add(key string, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.items[key]; ok || int64(len(b)) > c.limit {
		return
	}
	c.items[key] = c.order.PushFront(&cached{key, b})
	c.bytes += int64(len(b))
	for c.bytes > c.limit {
		c.drop(c.order.Back())
	}
}

// GetRange implements [RangeGetter]: from the cache, or from the store by its
// own GetRange if it has one, which does not fill the cache.
func (c *Cache) GetRange(ctx context.Context, id cid.Cid, p []byte, off int64) (int, error) {
	b, ok := c.lookup(hashKey(id))
	if !ok {
		if r, ok := c.Store.(RangeGetter); ok {
			return r.GetRange(ctx, id, p, off)
		}
		var err error
		if b, err = c.Get(ctx, id); err != nil {
			return 0, err
		}
	}
	return copyRange(p, b, off)
}

// Size implements [Sizer].
func (c *Cache) Size(ctx context.Context, id cid.Cid) (int64, error) {
	if b, ok := c.lookup(hashKey(id)); ok {
		return int64(len(b)), nil
	}
	if s, ok := c.Store.(Sizer); ok {
		return s.Size(ctx, id)
	}
	b, err := c.Get(ctx, id)
	return int64(len(b)), err
}

// Flush implements [Flusher], by Sync where the store has no Flush.
func (c *Cache) Flush(ctx context.Context, cids []cid.Cid) error {
	if f, ok := c.Store.(Flusher); ok {
		return f.Flush(ctx, cids)
	}
	return c.Store.Sync(ctx)
}

// Delete implements [Deleter]. A Get that runs at the same time may put the
// block back into the cache.
func (c *Cache) Delete(ctx context.Context, h mh.Multihash) error {
	d, ok := c.Store.(Deleter)
	if !ok {
		return errors.ErrUnsupported
	}
	err := d.Delete(ctx, h)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.items[string(h)]; e != nil {
		c.drop(e)
	}
	return err
}

// drop requires mu.
func (c *Cache) drop(e *list.Element) {
	it := c.order.Remove(e).(*cached)
	delete(c.items, it.key)
	c.bytes -= int64(len(it.block))
}
