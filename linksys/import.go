package linksys

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ipfs/boxo/verifcid"
	blocks "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	car "github.com/ipld/go-car/v2"
	"golang.org/x/sync/errgroup"

	"cafs/linksys/unixfs"
	"cafs/store"
)

// Limits of what is read from a CAR, against headers and sections that claim
// more than any tool writes.
const (
	maxCarHeader  = 1 << 20                 // bytes
	maxCarSection = unixfs.MaxBlock + 2<<10 // bytes: a block and its CID
)

// ImportOptions of an Import.
type ImportOptions struct {
	// Partial accepts roots whose DAGs are neither in the CAR nor in the store
	// as a whole.
	Partial bool
	NoSync  bool // return before the blocks are durable
	// Progress hears of each block, from several goroutines; may be nil.
	Progress func(c cid.Cid, n int64)
}

// ImportResult says what an Import read.
type ImportResult struct {
	Roots         []cid.Cid
	Blocks, Bytes int64 // blocks, and bytes of blocks
	Version       int   // of the CAR
}

// Import stores the blocks of a CAR, version 1 or 2, and returns its roots. Each
// block is hashed before it is stored; the index of a version 2 is not looked
// at. Roots are returned only when every block arrived, every root's DAG is
// complete and, unless NoSync, all of it is durable: after an error there are
// blocks that nothing refers to, and no root. Memory is bounded by a few blocks
// for each processor. Errors: store.ErrMismatch, [ErrIncomplete].
func (s *System) Import(ctx context.Context, r io.Reader, o ImportOptions) (ImportResult, error) {
	res, err := s.importCar(ctx, r, o)
	if err != nil {
		return ImportResult{Blocks: res.Blocks, Bytes: res.Bytes, Version: res.Version},
			fmt.Errorf("linksys: import: %w", err)
	}
	return res, nil
}

func (s *System) importCar(ctx context.Context, r io.Reader, o ImportOptions) (res ImportResult, err error) {
	br, err := car.NewBlockReader(bufio.NewReaderSize(r, 1<<20),
		car.WithTrustedCAR(true), // the hashes are checked here, on all processors
		car.MaxAllowedHeaderSize(maxCarHeader), car.MaxAllowedSectionSize(maxCarSection))
	if err != nil {
		return res, fmt.Errorf("header: %w", err)
	}
	res.Version = int(br.Version)
	if err := s.importBlocks(ctx, br, o, &res); err != nil {
		return res, err
	}
	if !o.Partial {
		if err := s.Complete(ctx, br.Roots...); err != nil {
			return res, err
		}
	}
	if y, ok := s.blocks.(store.Syncer); ok && !o.NoSync {
		if err := y.Sync(ctx); err != nil {
			return res, err
		}
	}
	res.Roots = br.Roots
	return res, nil
}

func (s *System) importBlocks(ctx context.Context, br *car.BlockReader, o ImportOptions, res *ImportResult) error {
	g, gctx := errgroup.WithContext(ctx)
	workers := 2 * runtime.GOMAXPROCS(0)
	queue := make(chan blocks.Block, workers)
	var n, size atomic.Int64
	for range workers {
		g.Go(func() error {
			for b := range queue {
				if err := s.importBlock(gctx, b.Cid(), b.RawData()); err != nil {
					return err
				}
				n.Add(1)
				size.Add(int64(len(b.RawData())))
				if o.Progress != nil {
					o.Progress(b.Cid(), int64(len(b.RawData())))
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(queue)
		for {
			b, err := br.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("after %d blocks: %w", n.Load(), err)
			}
			select {
			case queue <- b:
			case <-gctx.Done():
				return context.Cause(gctx)
			}
		}
	})
	err := g.Wait()
	res.Blocks, res.Bytes = n.Load(), size.Load()
	return err
}

func (s *System) importBlock(ctx context.Context, c cid.Cid, block []byte) error {
	if data, ok, err := inline(c); ok {
		if err == nil && !bytes.Equal(data, block) {
			err = fmt.Errorf("identity CID: %w", store.ErrMismatch)
		}
		return err
	}
	if err := verifcid.ValidateCid(verifcid.DefaultAllowlist, c); err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	if len(block) > unixfs.MaxBlock {
		return fmt.Errorf("block %s of %d bytes: %w", c, len(block), ErrBudget)
	}
	return store.PutVerified(ctx, s.blocks, c, block)
}

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
	seen cidSet

	mu   sync.Mutex // guards todo and busy
	more sync.Cond
	todo []cid.Cid
	busy int // goroutines that may still add to todo
}

func (c *completeness) push(cs ...cid.Cid) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range cs {
		if c.seen.add(k) {
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
