package linksys

import (
	"context"
	"fmt"

	"cafs/linksys/cidset"
)

// visit loads every block that holds bytes of [from, to) and those on the way to
// them, depth first, through f.load and as a whole. A subtree that lies in the
// range completely is visited once however often it occurs, so that time is
// bounded by the blocks there are, whatever size they claim.
func (f *File) visit(ctx context.Context, from, to int64) error {
	if f.root == nil {
		_, err := f.load(ctx, f.c)
		return err
	}
	v := &fileVisit{f: f, from: from, to: to}
	v.ahead = newPreloader(f.s, v.done.Has)
	return v.children(ctx, f.root, 0, 0)
}

type fileVisit struct {
	f        *File
	from, to int64
	done     cidset.Set // subtrees visited as a whole
	ahead    *preloader
}

// children visits those of it, which starts at base.
func (v *fileVisit) children(ctx context.Context, it *item, base int64, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("linksys: file %s is deeper than %d nodes: %w", v.f.c, maxDepth, ErrBudget)
	}
	if it.isLeaf() {
		return nil
	}
	t := it.file
	wanted := func(i int) bool { return base+t.ends[i] > v.from && base+t.start(i) < v.to }
	for i, c := range t.cids {
		if wanted(i) {
			v.ahead.link(c)
		}
	}
	for i, c := range t.cids {
		if !wanted(i) {
			continue
		}
		at := leafRef{c: c, start: base + t.start(i), t: t, i: i}
		at.length = base + t.ends[i] - at.start
		if err := v.child(ctx, at, depth); err != nil {
			return err
		}
	}
	return nil
}

func (v *fileVisit) child(ctx context.Context, at leafRef, depth int) error {
	whole := at.start >= v.from && at.end() <= v.to
	if whole && v.done.Has(at.c) {
		return nil
	}
	v.ahead.reached(at.c)
	child, err := v.f.child(ctx, at)
	if err != nil {
		return err
	}
	if err := v.children(ctx, child, at.start, depth+1); err != nil {
		return err
	}
	if whole {
		v.done.Add(at.c)
	}
	return ctx.Err()
}
