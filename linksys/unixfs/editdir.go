package unixfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ipfs/go-cid"
)

// EditDir applies changes, in any order, to a directory (undefined: to an empty
// one) and returns what building it from the resulting entries would. Of several
// changes to a name the last counts. Only the nodes above changes are loaded and
// emitted, O(log n) for each, and when a sharded directory shrinks, as many as it
// takes to see that it is still above the limit: at most about DirLimit/40
// entries. [Profile.EditDirSized] needs none for that.
//
// A base that is one node may come from anywhere. A sharded base must have been
// built by this profile: what is loaded is checked and answered with ErrForeign
// or ErrMalformed, what is not loaded is believed.
//
// Errors: ErrName, ErrNotDir, ErrForeign, ErrMalformed.
func (p Profile) EditDir(ctx context.Context, load Load, base cid.Cid, changes []Change, emit Emit) (Root, error) {
	return p.EditDirSized(ctx, load, Root{Cid: base}, changes, emit)
}

// EditDirSized is EditDir for callers who kept the base's whole Root. Its Size,
// unless 0, spares a shrinking directory the look at its other entries. The
// size of the result is known when the base's was.
func (p Profile) EditDirSized(ctx context.Context, load Load, base Root, changes []Change, emit Emit) (Root, error) {
	d := &dirEditor{p: p, ctx: ctx, load: load, emit: emit, base: base, delta: dirMeasure{p: &p}}
	root, err := d.edit(changes)
	if err != nil && base.Cid.Defined() {
		return Root{}, fmt.Errorf("unixfs: edit directory %s: %w", base.Cid, err)
	} else if err != nil {
		return Root{}, fmt.Errorf("unixfs: edit directory: %w", err)
	}
	return root, nil
}

type dirEditor struct {
	p      Profile
	ctx    context.Context
	load   Load
	emit   Emit
	base   Root
	prefix []byte // of the binary CIDs of nodes
	digest int
	delta  dirMeasure // what the changes did to size and number of entries
}

func (d *dirEditor) edit(changes []Change) (Root, error) {
	if err := d.p.Validate(); err != nil {
		return Root{}, err
	}
	changes, err := cleanChanges(changes)
	if err != nil {
		return Root{}, err
	}
	if d.prefix, d.digest, err = d.p.cidPrefix(codecDagPB); err != nil {
		return Root{}, err
	}
	if !d.base.Cid.Defined() {
		return d.flat(nil, changes)
	}
	block, err := d.fetch(d.base.Cid)
	if err != nil {
		return Root{}, err
	}
	data, err := nodeData(block)
	if err != nil {
		return Root{}, err
	}
	m, err := scanMessage(data)
	switch {
	case err != nil:
		return Root{}, err
	case m.typ == Dir:
		return d.flat(block, changes)
	case m.typ != HAMT:
		return Root{}, fmt.Errorf("%w: %s", ErrNotDir, m.typ)
	case m.fanout != uint64(d.p.Fanout), !m.stat.isZero(), !hasPrefix(d.base.Cid.Bytes(), d.prefix, d.digest):
		return Root{}, fmt.Errorf("%w: sharded directory", ErrForeign)
	}
	return d.sharded(block, changes)
}

// cleanChanges checks names and returns the changes sorted by name, one each.
func cleanChanges(changes []Change) ([]Change, error) {
	sorted := slices.Clone(changes)
	for i := range sorted {
		c := &sorted[i]
		if !c.Set {
			continue // what cannot be there can be removed
		}
		if c.Entry.Name != "" && c.Entry.Name != c.Name {
			return nil, fmt.Errorf("%w: entry %q in change of %q", ErrName, c.Entry.Name, c.Name)
		}
		c.Entry.Name = c.Name
		if err := validEntry(c.Entry); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(sorted, func(a, b Change) int { return strings.Compare(a.Name, b.Name) })
	n := 0
	for i, c := range sorted {
		if i+1 == len(sorted) || sorted[i+1].Name != c.Name {
			sorted[n] = c
			n++
		}
	}
	return sorted[:n], nil
}

func (d *dirEditor) fetch(c cid.Cid) ([]byte, error) {
	if err := d.ctx.Err(); err != nil {
		return nil, err
	}
	if d.load == nil {
		return nil, errors.New("no loader given")
	}
	block, err := d.load(d.ctx, c)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", c, err)
	}
	return block, nil
}
