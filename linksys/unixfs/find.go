package unixfs

import (
	"context"
	"fmt"
	"io/fs"
	"iter"

	"github.com/ipfs/go-cid"
)

// Find looks up a name in a directory, whoever built it, and loads one node per
// level. Errors: fs.ErrNotExist for a name that is not there, ErrNotDir,
// ErrMalformed, and those of load.
func Find(ctx context.Context, load Load, dir cid.Cid, name string) (Entry, error) {
	f := dirFinder{name: name, hash: nameHash(name)}
	found, err := f.find(ctx, load, dir)
	if err == nil && found.cid == nil {
		err = fs.ErrNotExist
	}
	var e Entry
	if err == nil {
		e, err = found.decode()
		e.Name = name
	}
	if err != nil {
		return Entry{}, fmt.Errorf("unixfs: find %q in %s: %w", name, dir, err)
	}
	return e, nil
}

type dirFinder struct {
	name string
	hash uint64
}

func (f *dirFinder) find(ctx context.Context, load Load, c cid.Cid) (found rawLink, err error) {
	block, err := load(ctx, c)
	if err != nil {
		return rawLink{}, err
	}
	fanout, err := dirFanout(c, block)
	if err != nil {
		return rawLink{}, err
	}
	if fanout == 0 {
		_, err = scanNode(block, func(l rawLink) error {
			if found.cid == nil && string(l.name) == f.name {
				found = l
			}
			return nil
		})
		return found, err
	}
	for place := (shardPlace{fanout: fanout}); place.level < maxLevels(fanout); {
		want := slotAt(f.hash, f.name, place.level, fanout)
		var next rawLink
		err := scanShard(block, place, func(slot int, name []byte, l rawLink) error {
			switch {
			case slot != want:
			case len(name) == 0:
				next = l
			case string(name) == f.name:
				found = l
			}
			return nil
		})
		if err != nil || next.cid == nil {
			return found, err
		}
		link, err := next.decode()
		if err != nil {
			return rawLink{}, err
		}
		if block, err = load(ctx, link.Cid); err != nil {
			return rawLink{}, err
		}
		place = place.below(want)
	}
	return rawLink{}, malformed("HAMT deeper than its hash")
}

// dirFanout is the fan-out of a directory's root node, 0 for one that is not sharded.
func dirFanout(c cid.Cid, block []byte) (int, error) {
	if c.Type() != codecDagPB {
		return 0, fmt.Errorf("%w: codec 0x%x", ErrNotDir, c.Type())
	}
	data, err := nodeData(block)
	if err != nil {
		return 0, err
	}
	m, err := scanMessage(data)
	switch {
	case err != nil:
		return 0, err
	case m.typ == Dir:
		return 0, nil
	case m.typ != HAMT:
		return 0, fmt.Errorf("%w: %s", ErrNotDir, m.typ)
	}
	return int(m.fanout), m.checkShard()
}

// List yields all entries of a directory, whoever built it: by name as stored, or
// in the order of the HAMT. It loads one node at a time. An invalid or repeated
// name is yielded with an error matching ErrName, and the listing goes on; any
// other error ends it. Time is bounded by the entries yielded, whatever a hostile
// HAMT looks like.
func List(ctx context.Context, load Load, dir cid.Cid) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		err := listRoot(ctx, load, dir, yield)
		if err != nil && err != errStop {
			yield(Entry{}, fmt.Errorf("unixfs: list %s: %w", dir, err))
		}
	}
}

// errStop ends a walk whose consumer has enough.
var errStop = fmt.Errorf("stop")

func listRoot(ctx context.Context, load Load, dir cid.Cid, yield func(Entry, error) bool) error {
	block, err := load(ctx, dir)
	if err != nil {
		return err
	}
	fanout, err := dirFanout(dir, block)
	if err != nil {
		return err
	}
	if fanout > 0 {
		return listShard(ctx, load, block, shardPlace{fanout: fanout}, yield)
	}
	n, err := decodeNode(dir, block)
	if err != nil {
		return err
	}
	for e, err := range n.Entries() {
		if !yield(e, err) {
			return errStop
		}
	}
	return nil
}

func listShard(ctx context.Context, load Load, block []byte, place shardPlace, yield func(Entry, error) bool) error {
	// Verify the whole node before anything of it is given out.
	if err := scanShard(block, place, func(int, []byte, rawLink) error { return nil }); err != nil {
		return err
	}
	return scanShard(block, place, func(slot int, name []byte, l rawLink) error {
		e, err := l.decode()
		if err != nil {
			return err
		}
		if len(name) > 0 {
			e.Name = string(name)
			if !yield(e, ValidName(e.Name)) {
				return errStop
			}
			return nil
		}
		child, err := load(ctx, e.Cid)
		if err != nil {
			return err
		}
		return listShard(ctx, load, child, place.below(slot), yield)
	})
}
