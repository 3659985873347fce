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
//
// The memory of a large leaf is the store's, to be given back: a reader borrows
// it. Whoever hands bytes out to others keeps it instead, and then it is for the
// garbage collector.
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

// What who gets an item wants to do with it: only see it in the cache, read it
// until giveBack, or keep it for ever.
type claim uint8

const (
	claimNone claim = iota
	claimBorrow
	claimKeep
)

// claim notes that an item is in use. The caller holds mu, and the item has not
// been released.
func (it *item) claim(as claim) {
	switch as {
	case claimBorrow:
		it.borrowed++
	case claimKeep:
		it.kept = true
	}
}

// free gives back the memory of an item that has left the cache, once nobody
// reads it. The caller holds mu.
func (it *item) free() {
	if it.gone && !it.kept && it.borrowed == 0 && it.release != nil {
		it.leaf, it.block = nil, nil // whoever still looked would notice
		it.release()
		it.release = nil
	}
}

// giveBack ends a borrowing; its bytes must not be looked at any more.
func (k *cache) giveBack(it *item) {
	k.mu.Lock()
	defer k.mu.Unlock()
	it.borrowed--
	it.free()
}

// peek returns an item that is there already, to keep, or nil.
func (k *cache) peek(c cid.Cid) *item {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.items[c]
	if e == nil || e.elem == nil {
		return nil
	}
	return k.use(e, claimKeep)
}

// peekNode is peek for nodes only.
func (k *cache) peekNode(c cid.Cid) *item {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.items[c]
	if e == nil || e.elem == nil || e.it.class() != classNode {
		return nil
	}
	return k.use(e, claimKeep)
}

// use claims an item that is listed. The caller holds mu.
func (k *cache) use(e *held, as claim) *item {
	k.parts[e.it.class()].lru.MoveToFront(e.elem)
	e.it.claim(as)
	return e.it
}

// known tells whether an item is there or on its way.
func (k *cache) known(c cid.Cid) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.items[c] != nil
}

// ready tells whether an item is there.
func (k *cache) ready(c cid.Cid) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.items[c]
	return e != nil && e.elem != nil
}

// get returns an item to keep, fetching it when nobody does yet.
func (k *cache) get(ctx context.Context, c cid.Cid) (*item, error) {
	return k.find(ctx, c, claimKeep)
}

// borrow is get for who calls giveBack soon: a large leaf's memory can be used
// again then.
func (k *cache) borrow(ctx context.Context, c cid.Cid) (*item, error) {
	return k.find(ctx, c, claimBorrow)
}

// warm is get without a use for the item.
func (k *cache) warm(ctx context.Context, c cid.Cid) error {
	_, err := k.find(ctx, c, claimNone)
	return err
}

// find returns an item, fetching it when nobody does yet. A fetch runs in the
// goroutine and context of whoever asked first; when that context ends, the
// others who wait try again in their own.
func (k *cache) find(ctx context.Context, c cid.Cid, as claim) (*item, error) {
	for {
		k.mu.Lock()
		e := k.items[c]
		if e == nil {
			e = &held{c: c, ready: make(chan struct{})}
			k.items[c] = e
			k.mu.Unlock()
			k.fetch(ctx, e, as)
			return e.it, e.err
		}
		if e.elem != nil {
			it := k.use(e, as)
			k.mu.Unlock()
			return it, nil
		}
		k.mu.Unlock()
		select {
		case <-e.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if e.err != nil && !isCancel(e.err) {
			return nil, e.err
		}
		// It is listed now, or its turn to leave came already: look again.
	}
}

func isCancel(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// fetch fills an entry this goroutine has just added, and claims it. Failures
// are not kept.
func (k *cache) fetch(ctx context.Context, e *held, as claim) {
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
		e.it.claim(as)
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
		old.it.gone = true
		old.it.free()
	}
}
