package unixfs

import (
	"fmt"
	"slices"

	mh "github.com/multiformats/go-multihash"
)

// A HAMT node in place: level 0 is the root, and path holds the slots above it,
// the bits with which the hash of every name below it begins. Where these are
// used up, tail holds the further slots.
type shardPlace struct {
	fanout int
	level  int
	path   uint64
	tail   []int
}

// below is the place of the child in a slot.
func (s shardPlace) below(slot int) shardPlace {
	child := shardPlace{s.fanout, s.level + 1, s.path, nil}
	if s.level < hashLevels(s.fanout) {
		child.path = s.path<<slotBits(s.fanout) | uint64(slot)
	} else {
		child.tail = append(slices.Clip(s.tail), slot)
	}
	return child
}

// holds tells whether a name belongs into a slot of the node.
func (s shardPlace) holds(slot int, name []byte) bool {
	child, hash := s.below(slot), nameHash(name)
	for i, want := range child.tail {
		if slotAt(hash, name, hashLevels(s.fanout)+i, s.fanout) != want {
			return false
		}
	}
	return hash>>(64-(child.level-len(child.tail))*slotBits(s.fanout)) == child.path
}

// nodeData returns a dag-pb block's data field without looking at its links.
func nodeData(block []byte) ([]byte, error) {
	w := wire{block}
	for len(w.b) > 0 {
		field, kind, err := w.tag()
		if err != nil {
			return nil, err
		}
		if field == 1 && kind == 2 {
			return w.bytes()
		}
		if err := w.skip(kind); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// scanShard calls link for each link of a HAMT node in order, with its slot and
// its name without the slot's digits, which is empty for a child node.
//
// It verifies the node and that each name belongs where it is. That also bounds
// every walk over a hostile HAMT: an entry can be found in one place only, so no
// subtree can be shared, and a node without links or below the last bits of the
// hash is refused, so that every path ends at an entry.
func scanShard(block []byte, place shardPlace, link func(slot int, name []byte, l rawLink) error) error {
	data, err := nodeData(block)
	if err != nil {
		return err
	}
	m, err := scanMessage(data)
	if err != nil {
		return err
	}
	if err := m.checkShard(); err != nil {
		return err
	}
	if m.fanout != uint64(place.fanout) {
		return malformed("HAMT fan-out %d below a root of %d", m.fanout, place.fanout)
	}
	s, err := newSlots(m.data, place.fanout)
	if err != nil {
		return err
	}
	if place.level >= maxLevels(place.fanout) || place.level > 0 && s.left == 0 {
		return malformed("HAMT node at depth %d of %d links", place.level, s.left)
	}
	if _, err = scanNode(block, func(l rawLink) error {
		slot, err := s.take(l.name)
		if err != nil {
			return err
		}
		name := l.name[s.width:]
		if len(name) > 0 && !place.holds(slot, name) {
			return malformed("HAMT entry %q in the wrong place", name)
		}
		return link(slot, name, l)
	}); err != nil {
		return err
	}
	return s.end()
}

// checkShard verifies what a HAMT node says of itself.
func (m *message) checkShard() error {
	switch {
	case m.typ != HAMT:
		return malformed("%s in place of a HAMT node", m.typ)
	case m.fanout < minFanout || m.fanout > maxFanout || m.fanout&(m.fanout-1) != 0:
		return malformed("HAMT fan-out %d", m.fanout)
	case m.hashType != mh.MURMUR3X64_64:
		return malformed("HAMT hash function 0x%x", m.hashType)
	}
	return nil
}

// shard is a HAMT node being edited.
type shard struct {
	place   shardPlace
	kids    []shardKid // by slot
	changed bool
	block   int    // length of the block it was loaded from
	tsize   uint64 // of its links, as loaded
}

// shardKid is one taken slot: exactly one of raw, entry and sub says with what.
type shardKid struct {
	slot  int
	value bool   // raw leads to an entry
	raw   []byte // an encoded link as loaded, to an entry or a child node
	tsize uint64 // of raw
	entry *Entry
	sub   *shard // a child node that was loaded or made
}

func (k *shardKid) isValue() bool { return k.value || k.entry != nil }

// toEntry decodes the entry of a value, if it is not yet.
func (k *shardKid) toEntry(width int) (*Entry, error) {
	if k.entry != nil {
		return k.entry, nil
	}
	l, err := parseLink(k.raw)
	if err != nil {
		return nil, err
	}
	e, err := l.decode()
	if err != nil {
		return nil, err
	}
	e.Name = e.Name[width:]
	return &e, nil
}

// parseShard reads a node into its editable form. Links are copied as they
// stand when their node changes, so they must stand in the one form we would
// give them, and child nodes must have the profile's CIDs.
func (d *dirEditor) parseShard(block []byte, place shardPlace) (*shard, error) {
	s := &shard{place: place, block: len(block)}
	err := scanShard(block, place, func(slot int, name []byte, l rawLink) error {
		if len(l.all) != linkLen(len(l.cid), len(l.name), l.tsize) {
			return fmt.Errorf("%w: link %q", ErrForeign, l.name)
		}
		if !validCid(l.cid) {
			return malformed("CID of %q", name)
		}
		if len(name) == 0 && !hasPrefix(l.cid, d.prefix, d.digest) {
			return fmt.Errorf("%w: child node %q", ErrForeign, l.name)
		}
		s.tsize += clampTsize(l.tsize)
		if s.kids == nil {
			s.kids = make([]shardKid, 0, min(len(block)/len(l.all)+1, place.fanout))
		}
		s.kids = append(s.kids, shardKid{slot: slot, value: len(name) > 0, raw: l.all, tsize: l.tsize})
		return nil
	})
	return s, err
}
