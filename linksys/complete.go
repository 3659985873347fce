package linksys

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/ipfs/go-cid"
	"golang.org/x/sync/errgroup"

	"cafs/linksys/cidset"
	"cafs/store"
)

// Complete tells whether every block of the DAGs below the roots is there. Only
// blocks with links are read. Memory is 40 bytes for each block. Errors:
// [ErrIncomplete], together with the store's error for what is missing.
func (s *System) Complete(ctx context.Context, roots ...cid.Cid) error {
	g, gctx := errgroup.WithContext(ctx)
	c := &completeness{s: s, ctx: gctx}
	c.more.L = &c.mu
	for _, root := range roots {
		c.push(root)
	}
	stop := context.AfterFunc(gctx, func() {
		c.mu.Lock()
		c.more.Broadcast()
		c.mu.Unlock()
	})
	defer stop()
	for range 2 * runtime.GOMAXPROCS(0) {
		g.Go(c.run)
	}
	return g.Wait()
}

// completeness is one walk over everything, by several goroutines, in no order.
type completeness struct {
	s    *System
	ctx  context.Context
	seen cidset.Set

	mu   sync.Mutex // guards todo and busy
	more sync.Cond
	todo []cid.Cid
	busy int // goroutines that may still add to todo
}

func (c *completeness) push(cs ...cid.Cid) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range cs {
		if c.seen.Add(k) {
			c.todo = append(c.todo, k)
			c.more.Signal()
		}
	}
}

// pop waits for the next block; it returns false at the end.
func (c *completeness) pop() (cid.Cid, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.todo) == 0 && c.busy > 0 && c.ctx.Err() == nil {
		c.more.Wait()
	}
	if len(c.todo) == 0 || c.ctx.Err() != nil {
		c.more.Broadcast()
		return cid.Undef, false
	}
	last := len(c.todo) - 1
	k := c.todo[last]
	c.todo = c.todo[:last]
	c.busy++
	return k, true
}

func (c *completeness) run() error {
	for {
		k, ok := c.pop()
		if !ok {
			return c.ctx.Err()
		}
		links, err := c.links(k)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrIncomplete, err)
		}
		c.push(links...)
		c.mu.Lock()
		c.busy--
		c.more.Broadcast()
		c.mu.Unlock()
	}
}

// links returns what a block links to, or checks that one without links is there.
func (c *completeness) links(k cid.Cid) ([]cid.Cid, error) {
	if !mayLink(k) {
		return nil, c.s.present(c.ctx, k)
	}
	block, err := c.s.get(c.ctx, k)
	if err != nil {
		return nil, err
	}
	return c.s.links(c.ctx, k, block)
}

// present checks that a block is there, without reading it where the store can.
func (s *System) present(ctx context.Context, c cid.Cid) error {
	if _, ok, err := inline(c); ok {
		return err
	}
	h, ok := s.blocks.(store.Haser)
	if !ok {
		_, err := s.get(ctx, c)
		return err
	}
	there, err := h.Has(ctx, c)
	if err == nil && !there {
		err = store.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("linksys: block %s: %w", c, err)
	}
	return nil
}
