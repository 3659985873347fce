package car

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"

	blocks "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	gocar "github.com/ipld/go-car/v2"
	"golang.org/x/sync/errgroup"

	"cafs/linksys"
	"cafs/linksys/unixfs"
)

// Limits of what is read from a CAR, against headers and sections that claim
// more than any tool writes.
const (
	maxHeader  = 1 << 20                 // bytes
	maxSection = unixfs.MaxBlock + 2<<10 // bytes: a block and its CID
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
	Roots   []cid.Cid `json:"roots"`
	Blocks  int64     `json:"blocks"`
	Bytes   int64     `json:"bytes"`   // of blocks
	Version int       `json:"version"` // of the CAR
}

// Import stores the blocks of a CAR, version 1 or 2, and returns its roots. Each
// block is hashed before it is stored; the index of a version 2 is not looked
// at. Roots are returned only when every block arrived, every root's DAG is
// complete and, unless NoSync, all of it is durable: after an error there are
// blocks that nothing refers to, and no root. Memory is bounded by a few blocks
// for each processor. Errors: store.ErrMismatch, linksys.ErrIncomplete.
func Import(ctx context.Context, sys *linksys.System, r io.Reader, o ImportOptions) (ImportResult, error) {
	var res ImportResult
	br, err := gocar.NewBlockReader(bufio.NewReaderSize(r, 1<<20),
		gocar.WithTrustedCAR(true), // the hashes are checked here, on all processors
		gocar.MaxAllowedHeaderSize(maxHeader), gocar.MaxAllowedSectionSize(maxSection))
	if err != nil {
		return res, fmt.Errorf("car: header: %w", err)
	}
	res.Version = int(br.Version)
	if res.Blocks, res.Bytes, err = importBlocks(ctx, sys, br, o); err == nil && !o.Partial {
		err = sys.Complete(ctx, br.Roots...)
	}
	if err == nil && !o.NoSync {
		err = sys.Sync(ctx)
	}
	if err != nil {
		return res, fmt.Errorf("car: %w", err)
	}
	res.Roots = br.Roots
	return res, nil
}

func importBlocks(ctx context.Context, sys *linksys.System, br *gocar.BlockReader, o ImportOptions) (n, size int64, err error) {
	g, gctx := errgroup.WithContext(ctx)
	workers := 2 * runtime.GOMAXPROCS(0)
	queue := make(chan blocks.Block, workers)
	var done, bytes atomic.Int64
	for range workers {
		g.Go(func() error {
			for b := range queue {
				if err := sys.PutVerified(gctx, b.Cid(), b.RawData()); err != nil {
					return err
				}
				done.Add(1)
				bytes.Add(int64(len(b.RawData())))
				if o.Progress != nil {
					o.Progress(b.Cid(), int64(len(b.RawData())))
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(queue)
		return readBlocks(gctx, br, queue)
	})
	err = g.Wait()
	return done.Load(), bytes.Load(), err
}

// readBlocks reads sections until there are no more.
func readBlocks(ctx context.Context, br *gocar.BlockReader, queue chan<- blocks.Block) error {
	for n := 0; ; n++ {
		b, err := br.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d blocks: %w", n, err)
		}
		select {
		case queue <- b:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
