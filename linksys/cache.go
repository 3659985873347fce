package linksys

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"github.com/ipfs/go-cid"
)

// cache holds decoded blocks, interior nodes apart from leaves so that reading
// a large file does not push out the nodes it is found through. Both parts are
// bounded in bytes, oldest use first. A block is fetched once however many ask
// for it.
type cache struct {
	load loader

	mu    sync.Mutex // guards all below
	items map[cid.Cid]*held
	parts [2]part // by item.class
}

// part is one of the two budgets.
type part struct {
	lru         list.List // of *held, most recent first
	size, limit int64     // bytes
}

const (
	classNode = iota
	classLeaf
)

// held is an item, there or being fetched.
type held struct {
	c     cid.Cid
	ready chan struct{} // closed when it and err are set
	it    *item
	err   error
	elem  *list.Element // nil while being fetched
}

func newCache(nodeBytes, leafBytes int64, load loader) *cache {
	k := &cache{load: load, items: make(map[cid.Cid]*held)}
	k.parts[classNode].limit = nodeBytes
	k.parts[classLeaf].limit = leafBytes
	return k
}

// peek returns an item that is there already, or nil.
func (k *cache) peek(c cid.Cid) *item {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.items[c]
	if e == nil || e.elem == nil {
		return nil
	}
	k.parts[e.it.class()].lru.MoveToFront(e.elem)
	return e.it
}

// known tells whether an item is there or on its way.
func (k *cache) known(c cid.Cid) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.items[c] != nil
}

// get returns an item, fetching it when nobody does yet. A fetch runs in the
// goroutine and context of whoever asked first; when that context ends, the
// others who wait try again in their own.
func (k *cache) get(ctx context.Context, c cid.Cid) (*item, error) {
	for {
		k.mu.Lock()
		e := k.items[c]
		if e == nil {
			e = &held{c: c, ready: make(chan struct{})}
			k.items[c] = e
			k.mu.Unlock()
			k.fetch(ctx, e)
			return e.it, e.err
		}
		if e.elem != nil {
			k.parts[e.it.class()].lru.MoveToFront(e.elem)
			k.mu.Unlock()
			return e.it, nil
		}
		k.mu.Unlock()
		select {
		case <-e.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if e.err == nil || !isCancel(e.err) {
			return e.it, e.err
		}
	}
}

func isCancel(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// fetch fills an entry this goroutine has just added. Failures are not kept.
func (k *cache) fetch(ctx context.Context, e *held) {
	done := false
	defer func() { // a panicking loader must not leave others waiting
		if !done {
			e.err = context.Canceled
			k.mu.Lock()
			delete(k.items, e.c)
			k.mu.Unlock()
			close(e.ready)
		}
	}()
	e.it, e.err = k.load(ctx, e.c)
	done = true
	k.mu.Lock()
	if e.err != nil {
		delete(k.items, e.c)
	} else {
		k.add(e)
	}
	k.mu.Unlock()
	close(e.ready)
}

// add makes room for a fetched entry and lists it. The caller holds mu. The
// newest item stays even when it alone exceeds the limit.
func (k *cache) add(e *held) {
	p := &k.parts[e.it.class()]
	e.elem = p.lru.PushFront(e)
	p.size += e.it.cost
	for p.size > p.limit && p.lru.Len() > 1 {
		old := p.lru.Remove(p.lru.Back()).(*held)
		p.size -= old.it.cost
		delete(k.items, old.c)
	}
}
