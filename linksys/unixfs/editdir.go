package unixfs

import (
	"bytes"
	"cmp"
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
// Errors: ErrName, ErrCollision, ErrNotDir, ErrForeign, ErrMalformed.
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

// flatItem is an entry of a directory of one node: as it stood, or a new one.
type flatItem struct {
	raw   rawLink
	entry *Entry
}

// flat edits a directory of one node, or builds one of the changes alone.
func (d *dirEditor) flat(block []byte, changes []Change) (Root, error) {
	var old []rawLink
	_, err := scanNode(block, func(l rawLink) error {
		if old == nil {
			old = make([]rawLink, 0, len(block)/max(len(l.all), 32)+1)
		}
		old = append(old, l)
		if !validCid(l.cid) {
			return malformed("CID of %q", l.name)
		}
		return nil
	})
	if err != nil {
		return Root{}, err
	}
	// Canonical directories are sorted; others are once they are edited.
	slices.SortStableFunc(old, func(a, b rawLink) int { return bytes.Compare(a.name, b.name) })
	for i := 1; i < len(old); i++ {
		if bytes.Equal(old[i].name, old[i-1].name) {
			return Root{}, fmt.Errorf("%w: %q twice", ErrName, old[i].name)
		}
	}
	items := mergeFlat(old, changes)
	size := d.p.measure(Stat{})
	for _, it := range items {
		if it.entry != nil {
			size.add(*it.entry)
		} else {
			size.count(len(it.raw.cid), len(it.raw.name), it.raw.tsize, 1)
		}
	}
	if size.sharded() {
		return d.toShards(items)
	}
	return d.writeFlat(items, size)
}

// mergeFlat applies changes to links; both are sorted by name.
func mergeFlat(old []rawLink, changes []Change) []flatItem {
	items := make([]flatItem, 0, len(old)+len(changes))
	for i, j := 0, 0; i < len(old) || j < len(changes); {
		order := -1
		switch {
		case i == len(old):
			order = 1
		case j < len(changes):
			order = cmp.Compare(string(old[i].name), changes[j].Name)
		}
		if order < 0 {
			items = append(items, flatItem{raw: old[i]})
			i++
			continue
		}
		if order == 0 {
			i++
		}
		if changes[j].Set {
			items = append(items, flatItem{entry: &changes[j].Entry})
		}
		j++
	}
	return items
}

// writeFlat encodes a directory of one node, copying the links that stay.
func (d *dirEditor) writeFlat(items []flatItem, size dirMeasure) (Root, error) {
	var links []byte
	tsize := uint64(0)
	for _, it := range items {
		switch {
		case it.entry != nil:
			links = appendLink(links, *it.entry, "")
			tsize += clampTsize(it.entry.Tsize)
			continue
		case len(it.raw.all) == linkLen(len(it.raw.cid), len(it.raw.name), it.raw.tsize):
			links = append(links, it.raw.all...)
		default: // some other writer's form
			e, err := it.raw.decode()
			if err != nil {
				return Root{}, err
			}
			links = appendLink(links, e, "")
		}
		tsize += clampTsize(it.raw.tsize)
	}
	return d.p.flatNode(links, tsize, size, Stat{}, d.emit)
}

// toShards turns a directory of one node that grew too large into a HAMT.
func (d *dirEditor) toShards(items []flatItem) (Root, error) {
	entries := make([]Entry, len(items))
	for i, it := range items {
		if it.entry != nil {
			entries[i] = *it.entry
			continue
		}
		e, err := it.raw.decode()
		if err != nil {
			return Root{}, err
		}
		entries[i] = e
	}
	return d.p.dir(d.ctx, entries, Stat{}, d.emit)
}
