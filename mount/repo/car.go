package repo

import (
	"context"
	"os"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/linksys/car"
)

// CarOptions say how a CAR is brought in.
type CarOptions struct {
	Name string // what its roots are called in lists
	// NoRoots stores the blocks without remembering the roots, whose DAGs need
	// not be complete then.
	NoRoots bool
	// Keep remembers the roots when their DAGs are complete, which may lie in
	// blocks that were there before; a collection must not take those meanwhile.
	// Nil: nobody collects.
	Keep func(ctx context.Context, roots ...Root) error
	// Progress hears of each block, from several goroutines; may be nil.
	Progress func(c cid.Cid, n int64)
}

// ImportCar stores the blocks of the CAR that f is open on, and remembers its
// roots. All of it is durable when ImportCar returns; after an error no root is
// remembered. f stays the caller's. Errors: store.ErrMismatch,
// linksys.ErrIncomplete.
func (r *Repo) ImportCar(ctx context.Context, f *os.File, o CarOptions) (car.ImportResult, error) {
	defer interruptible(ctx, f)()
	// Who keeps the roots looks himself whether they are complete, and only then
	// nothing can be deleted in between.
	partial := o.NoRoots || o.Keep != nil
	res, err := car.Import(ctx, r.Sys, f, car.ImportOptions{Partial: partial, Progress: o.Progress})
	if ctx.Err() != nil {
		return res, ctx.Err() // also when all seems well, as in Import
	}
	if err != nil || o.NoRoots {
		return res, err
	}
	var roots []Root
	for _, c := range res.Roots {
		roots = append(roots, Root{Cid: c, Name: o.Name, Time: time.Now()})
	}
	if o.Keep == nil {
		return res, r.AddRoot(ctx, roots...)
	}
	return res, o.Keep(ctx, roots...)
}

// ExportCar writes a CAR to f, which stays the caller's.
func (r *Repo) ExportCar(ctx context.Context, f *os.File, root cid.Cid, o car.ExportOptions) (car.ExportStats, error) {
	defer interruptible(ctx, f)()
	stats, err := car.Export(ctx, r.Sys, f, root, o)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return stats, err
}

// interruptible makes the end of ctx end reads and writes of f that wait for
// somebody, where the descriptor can be polled. The result undoes it.
func interruptible(ctx context.Context, f *os.File) (stop func() bool) {
	return context.AfterFunc(ctx, func() { f.SetDeadline(time.Unix(1, 0)) })
}
