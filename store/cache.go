package store

import (
	"container/list"
	"context"
	"sync"

	"github.com/ipfs/go-cid"
)

// Cache keeps the blocks read or put last in front of another store. What it
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

// drop requires mu.
func (c *Cache) drop(e *list.Element) {
	it := c.order.Remove(e).(*cached)
	delete(c.items, it.key)
	c.bytes -= int64(len(it.block))
}
