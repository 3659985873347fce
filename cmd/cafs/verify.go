package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/ipfs/go-cid"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"cafs/mount/repo"
	"cafs/store"
)

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:  "verify",
		Usage: "read every block and check its hash",
		Description: "Prints the CIDs of damaged blocks and exits with 5 when there are any. Works while\n" +
			"the repository is mounted.\n\n" +
			example("cafs verify && echo all is well"),
		Flags: []cli.Flag{repoFlag(), &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print damaged blocks only"}},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("verify takes no arguments, only --repo; see 'cafs verify --help'")
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			return runVerify(c.Context, r, c.Bool("quiet"))
		},
	}
}

// verification counts, from several goroutines.
type verification struct {
	mu            sync.Mutex // guards what follows, and stdout
	blocks, bytes int64
	damaged       int64
}

func runVerify(ctx context.Context, repository string, quiet bool) (err error) {
	s, err := open(ctx, repository, "verify", func(o *repo.Options) { o.Rehash = true })
	if err != nil {
		return err
	}
	defer s.closing(&err)
	b := newBar("verify")
	defer b.done()
	var v verification
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.GOMAXPROCS(0)) // one reads while another hashes
	var listing error
	for e, err := range s.blocks.All(gctx) {
		if err != nil {
			listing = err
			break
		}
		g.Go(func() error {
			b.add(e.Size)
			return v.check(gctx, s, e)
		})
	}
	if err := errors.Join(listing, g.Wait()); err != nil {
		return err
	}
	b.done()
	if v.damaged > 0 {
		return repo.Hint(fmt.Errorf("%w: %d of %d blocks", errDamage, v.damaged, v.blocks),
			"files with these blocks cannot be read; adding or writing the same content again replaces them")
	}
	if !quiet {
		notef("%d blocks, %s, all as their hashes say", v.blocks, size(v.bytes))
	}
	return nil
}

func (v *verification) check(ctx context.Context, s *session, e store.Entry) error {
	k := cid.NewCidV1(cid.Raw, e.Hash)
	_, err := s.blocks.Get(ctx, k)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.blocks++
	v.bytes += e.Size
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrNotFound):
		return nil // deleted since it was listed
	case errors.Is(err, store.ErrCorrupt), errors.Is(err, store.ErrMismatch):
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		// The device cannot read it, which is damage too; the next one may be fine.
		notef("%s: %v", k, err)
	}
	v.damaged++
	_, err = fmt.Fprintln(os.Stdout, k)
	return err
}
