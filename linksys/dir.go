package linksys

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strconv"

	"github.com/ipfs/go-cid"

	"cafs/linksys/unixfs"
)

// Type is what a CID stands for in a file system.
type Type uint8

const (
	Unknown Type = iota // not looked into, or not UnixFS
	Regular
	Directory
	Symlink
)

// Entry is a directory entry. Type is Regular for a raw block and Unknown for
// anything else: only [System.Stat] reads the node.
type Entry struct {
	unixfs.Entry
	Type Type
}

// LookupDir finds one name in a directory, flat or sharded, reading only the
// nodes on the way to it. Errors: fs.ErrNotExist for a missing name, also for
// one that no file system can have; unixfs.ErrNotDir; unixfs.ErrMalformed;
// store.ErrNotFound for a missing block, with its CID.
func (s *System) LookupDir(ctx context.Context, c cid.Cid, name string) (Entry, error) {
	it, err := s.dir(ctx, c, s.cache.get)
	if err != nil {
		return Entry{}, err
	}
	return lookup(ctx, it, name, s.cache.get)
}

// dir loads a node that must be a directory.
func (s *System) dir(ctx context.Context, c cid.Cid, load loader) (*item, error) {
	if c.Defined() && c.Prefix().Codec != cid.DagProtobuf {
		return nil, fmt.Errorf("linksys: %s: %w", c, unixfs.ErrNotDir)
	}
	it, err := load(ctx, c)
	if err != nil {
		return nil, err
	}
	if !it.isDir() {
		return nil, fmt.Errorf("linksys: %s: %w", c, unixfs.ErrNotDir)
	}
	return it, nil
}

func (it *item) isDir() bool {
	return it.node != nil && (it.node.Type == unixfs.Dir || it.node.Type == unixfs.HAMT)
}

func lookup(ctx context.Context, it *item, name string, load loader) (Entry, error) {
	missing := func() (Entry, error) {
		return Entry{}, fmt.Errorf("linksys: %s: %q: %w", it.c, name, fs.ErrNotExist)
	}
	if unixfs.ValidName(name) != nil {
		return missing()
	}
	if it.node.Type == unixfs.Dir {
		if l, ok := it.link(name); ok {
			return entry(l, name), nil
		}
		return missing()
	}
	for at := (shard{it: it}); ; {
		prefix, err := at.prefix(name)
		if err != nil {
			return Entry{}, err
		}
		l, ok := at.it.slot(prefix)
		switch {
		case !ok:
			return missing()
		case len(l.Name) > len(prefix):
			if l.Name[len(prefix):] != name {
				return missing()
			}
			return entry(l, name), nil
		}
		if at, err = at.down(ctx, l.Cid, load); err != nil {
			return Entry{}, err
		}
	}
}

func entry(l unixfs.Link, name string) Entry {
	e := Entry{Entry: unixfs.Entry{Name: name, Cid: l.Cid, Tsize: l.Tsize}}
	if l.Cid.Prefix().Codec == cid.Raw {
		e.Type = Regular
	}
	return e
}

// shard is a node of a HAMT and its level below the root.
type shard struct {
	it    *item
	level int
}

// prefix is the slot of a name, as its links begin.
func (s shard) prefix(name string) (string, error) {
	prefix, ok := unixfs.SlotDigits(name, s.level, s.it.node.Fanout)
	if !ok {
		return "", fmt.Errorf("linksys: shard %s: deeper than a name's hash: %w", s.it.c, unixfs.ErrMalformed)
	}
	return prefix, nil
}

// down loads the shard below a slot.
func (s shard) down(ctx context.Context, c cid.Cid, load loader) (shard, error) {
	it, err := load(ctx, c)
	if err != nil {
		return shard{}, err
	}
	if it.node == nil || it.node.Type != unixfs.HAMT || it.node.Fanout != s.it.node.Fanout {
		return shard{}, fmt.Errorf("linksys: shard %s: its child %s is no such shard: %w", s.it.c, c, unixfs.ErrMalformed)
	}
	return shard{it, s.level + 1}, nil
}

// ReadDir lists a directory in the order of its nodes, reading shards as the
// caller goes on and a few ahead of it. Entries with names that no file system
// can have, that are there twice, or that lie where no lookup finds them are
// left out and reported to Options.Logger. An error ends the sequence.
func (s *System) ReadDir(ctx context.Context, c cid.Cid) iter.Seq2[Entry, error] {
	return s.readDir(ctx, c, s.cache.get)
}

func (s *System) readDir(ctx context.Context, c cid.Cid, load loader) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		it, err := s.dir(ctx, c, load)
		if err != nil {
			yield(Entry{}, err)
			return
		}
		s.list(ctx, it, load)(yield)
	}
}

// list lists the directory it, which need not be in the store itself.
func (s *System) list(ctx context.Context, it *item, load loader) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		ahead := newPreloader(s, nil)
		block := func(ctx context.Context, c cid.Cid) ([]byte, error) {
			node := it
			if c != it.c {
				var err error
				if node, err = load(ctx, c); err != nil {
					return nil, err
				}
			}
			ahead.reached(c)
			if node.node != nil {
				for k := range node.node.Shards() {
					ahead.link(k.Cid)
				}
			}
			return node.block, nil
		}
		for e, err := range unixfs.List(ctx, block, it.c) {
			switch {
			case errors.Is(err, unixfs.ErrName):
				s.hide(it.c, e.Name, err)
			case err != nil:
				yield(Entry{}, fmt.Errorf("linksys: %w", err))
				return
			case !yield(entry(e, e.Name), nil):
				return
			}
		}
	}
}

// hide reports an entry that is left out.
func (s *System) hide(dir cid.Cid, name string, err error) {
	if len(name) > unixfs.MaxName {
		name = name[:unixfs.MaxName]
	}
	s.log.Warn("directory entry hidden", "dir", dir.String(), "name", strconv.Quote(name), "why", err.Error())
}
