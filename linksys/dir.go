package linksys

import (
	"context"
	"fmt"
	"io/fs"
	"iter"
	"math/bits"
	"strconv"
	"strings"

	"github.com/ipfs/go-cid"
	"github.com/spaolacci/murmur3"

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
	h := hashName(name)
	for at := newShard(it); ; {
		prefix, err := at.prefix(h)
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

// shard is a node of a HAMT and where it lies below the root.
type shard struct {
	it     *item
	fanout int
	width  int    // hex digits of a slot's index
	used   int    // bits of a name's hash that led here
	path   uint64 // these bits
}

func newShard(it *item) shard {
	f := it.node.Fanout
	return shard{it: it, fanout: f, width: len(strconv.FormatInt(int64(f-1), 16))}
}

// hashName is the first half of murmur3-x64-128, as UnixFS prescribes.
func hashName(name string) uint64 { return murmur3.Sum64([]byte(name)) }

func (s shard) bits() int { return bits.TrailingZeros(uint(s.fanout)) }

// prefix is the slot of a name with hash h, as its links begin.
func (s shard) prefix(h uint64) (string, error) {
	if s.used+s.bits() > 64 {
		return "", fmt.Errorf("linksys: shard %s: deeper than a name's hash: %w", s.it.c, unixfs.ErrMalformed)
	}
	i := h << s.used >> (64 - s.bits())
	const digits = "0123456789ABCDEF"
	var b [16]byte
	for k := s.width - 1; k >= 0; k-- {
		b[k] = digits[i&15]
		i >>= 4
	}
	return string(b[:s.width]), nil
}

// down loads the shard below a slot.
func (s shard) down(ctx context.Context, c cid.Cid, load loader) (shard, error) {
	it, err := load(ctx, c)
	if err != nil {
		return shard{}, err
	}
	if it.node == nil || it.node.Type != unixfs.HAMT || it.node.Fanout != s.fanout {
		return shard{}, fmt.Errorf("linksys: shard %s: its child %s is no such shard: %w", s.it.c, c, unixfs.ErrMalformed)
	}
	s.it, s.used = it, s.used+s.bits()
	if s.used+s.bits() > 64 {
		return shard{}, fmt.Errorf("linksys: shard %s: deeper than a name's hash: %w", c, unixfs.ErrMalformed)
	}
	return s, nil
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

func (s *System) list(ctx context.Context, it *item, load loader) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		l := lister{s: s, ctx: ctx, load: load, root: it, yield: yield}
		if it.node.Type == unixfs.Dir {
			l.flat()
			return
		}
		l.seen = make(map[cid.Cid]struct{})
		if _, err := l.shard(newShard(it)); err != nil {
			yield(Entry{}, err)
		}
	}
}

// lister is one listing of a directory.
type lister struct {
	s     *System
	ctx   context.Context
	load  loader
	root  *item
	yield func(Entry, error) bool
	seen  map[cid.Cid]struct{} // shards listed so far
}

func (l *lister) flat() {
	for e, err := range l.root.node.Entries() {
		if err != nil {
			l.hide(e.Name, err)
		} else if !l.yield(entry(e, e.Name), nil) {
			return
		}
	}
}

// shard lists one shard and those below. It returns false when the caller
// wants no more.
func (l *lister) shard(at shard) (bool, error) {
	if err := l.ctx.Err(); err != nil {
		return false, err
	}
	links := at.it.node.Links
	for i, k := range links {
		slot, err := strconv.ParseUint(k.Name[:min(at.width, len(k.Name))], 16, 32)
		if err != nil || slot >= uint64(at.fanout) {
			return false, fmt.Errorf("linksys: shard %s: link %q: %w", at.it.c, k.Name, unixfs.ErrMalformed)
		}
		path := at.path<<at.bits() | slot
		name := k.Name[at.width:]
		if name != "" {
			err := unixfs.ValidName(name)
			if err != nil || hashName(name)>>(64-at.used-at.bits()) != path {
				l.hide(name, err)
			} else if !l.yield(entry(k, name), nil) {
				return false, nil
			}
			continue
		}
		// No two slots can hold the same shard: the names below would have to
		// hash to both. Refusing it bounds the listing by the blocks there are.
		if _, twice := l.seen[k.Cid]; twice {
			return false, fmt.Errorf("linksys: shard %s is there twice: %w", k.Cid, unixfs.ErrMalformed)
		}
		l.seen[k.Cid] = struct{}{}
		l.ahead(at, links[i+1:])
		next, err := at.down(l.ctx, k.Cid, l.load)
		if err != nil {
			return false, err
		}
		next.path = path
		if more, err := l.shard(next); !more || err != nil {
			return more, err
		}
	}
	return true, nil
}

// shardsAhead is how many of a shard's children are fetched before they are listed.
const shardsAhead = 8

func (l *lister) ahead(at shard, links []unixfs.Link) {
	n := 0
	for _, k := range links {
		if len(k.Name) != at.width {
			continue
		}
		if n++; n > shardsAhead {
			return
		}
		l.s.tryAhead(k.Cid)
	}
}

// hide reports an entry that is left out.
func (l *lister) hide(name string, err error) {
	why := "it lies where no lookup finds it"
	if err != nil {
		why = err.Error()
	}
	if len(name) > 256 {
		name = strings.ToValidUTF8(name[:256], "") + "…"
	}
	l.s.log.Warn("directory entry hidden", "dir", l.root.c.String(), "name", strconv.Quote(name), "why", why)
}
