package unixfs

import (
	"cmp"
	"fmt"
	"slices"
)

// hashedChange is a change and the hash of its name.
type hashedChange struct {
	hash uint64
	*Change
}

func (h hashedChange) name() string { return h.Name }

func (h *hashedChange) slot(level, fanout int) int { return slotAt(h.hash, h.Name, level, fanout) }

// sharded edits a HAMT, in memory first: only when it is known to stay one are
// its changed nodes encoded.
func (d *dirEditor) sharded(block []byte, changes []Change) (Root, error) {
	root, err := d.parseShard(block, shardPlace{fanout: d.p.Fanout})
	if err != nil {
		return Root{}, err
	}
	hashed := make([]hashedChange, len(changes))
	for i := range changes {
		hashed[i] = hashedChange{nameHash(changes[i].Name), &changes[i]}
	}
	slices.SortStableFunc(hashed, func(a, b hashedChange) int { return cmp.Compare(a.hash, b.hash) })
	if err := d.apply(root, hashed); err != nil {
		return Root{}, err
	}
	if !root.changed {
		base := d.base
		base.Tsize = root.tsize + uint64(root.block)
		return base, nil
	}
	stays, entries, err := d.staysSharded(root)
	if err != nil {
		return Root{}, err
	}
	if !stays {
		return d.p.dir(d.ctx, entries, Stat{}, d.emit)
	}
	result, err := d.write(root)
	if d.base.Size != 0 {
		result.Size = d.base.Size + uint64(d.delta.size())
	}
	return result, err
}

// apply makes changes, sorted as in the node above, below a node.
func (d *dirEditor) apply(s *shard, changes []hashedChange) error {
	kids := make([]shardKid, 0, len(s.kids)+min(len(changes), s.place.fanout))
	old := s.kids
	inOrder(changes, hashedChange.name, s.place.level, s.place.fanout)
	for len(changes) > 0 {
		slot := changes[0].slot(s.place.level, s.place.fanout)
		end := 1
		for end < len(changes) && changes[end].slot(s.place.level, s.place.fanout) == slot {
			end++
		}
		for len(old) > 0 && old[0].slot < slot {
			kids = append(kids, old[0])
			old = old[1:]
		}
		kid := shardKid{slot: slot}
		if len(old) > 0 && old[0].slot == slot {
			kid = old[0]
			old = old[1:]
		}
		kid, changed, err := d.applySlot(s.place, kid, changes[:end])
		if err != nil {
			return err
		}
		s.changed = s.changed || changed
		if kid.sub != nil || kid.entry != nil || kid.raw != nil {
			kids = append(kids, kid)
		}
		changes = changes[end:]
	}
	s.kids = append(kids, old...)
	return nil
}

// applySlot makes changes that all concern one slot. An empty kid is returned
// when nothing is left in it.
func (d *dirEditor) applySlot(place shardPlace, kid shardKid, changes []hashedChange) (shardKid, bool, error) {
	isShard := kid.raw != nil && !kid.value
	if !isShard {
		return d.applyValue(place, kid, changes)
	}
	sub, err := d.loadShard(kid.raw, place.below(kid.slot))
	if err != nil {
		return kid, false, err
	}
	if err := d.apply(sub, changes); err != nil || !sub.changed {
		return kid, false, err
	}
	return d.collapse(kid.slot, sub)
}

// collapse keeps the tree a function of its entries: a child node left with one
// entry gives it to the slot above.
func (d *dirEditor) collapse(slot int, sub *shard) (shardKid, bool, error) {
	switch {
	case len(sub.kids) == 0:
		return shardKid{slot: slot}, true, nil
	case len(sub.kids) == 1 && sub.kids[0].isValue():
		e, err := sub.kids[0].toEntry(slotWidth(d.p.Fanout))
		return shardKid{slot: slot, entry: e}, true, err
	}
	return shardKid{slot: slot, sub: sub}, true, nil
}

// applyValue makes changes in a slot that is empty or holds an entry.
func (d *dirEditor) applyValue(place shardPlace, kid shardKid, changes []hashedChange) (shardKid, bool, error) {
	var entries []hashed
	var old *Entry
	if kid.isValue() {
		var err error
		if old, err = kid.toEntry(slotWidth(place.fanout)); err != nil {
			return kid, false, err
		}
	}
	changed, replaced := false, false
	for _, c := range changes {
		same := old != nil && old.Name == c.Name
		replaced = replaced || same
		switch {
		case same && c.Set && c.Entry == *old:
			entries = append(entries, hashed{c.hash, c.Entry})
			continue
		case same:
			d.delta.remove(*old)
		case !c.Set:
			continue
		}
		changed = true
		if c.Set {
			d.delta.add(c.Entry)
			entries = append(entries, hashed{c.hash, c.Entry})
		}
	}
	if !changed {
		return kid, false, nil
	}
	if old != nil && !replaced {
		entries = append(entries, hashed{nameHash(old.Name), *old})
	}
	switch len(entries) {
	case 0:
		return shardKid{slot: kid.slot}, true, nil
	case 1:
		return shardKid{slot: kid.slot, entry: &entries[0].Entry}, true, nil
	}
	return shardKid{slot: kid.slot, sub: newShard(place.below(kid.slot), entries)}, true, nil
}

// newShard makes the node that holds entries, in any order.
func newShard(place shardPlace, entries []hashed) *shard {
	slices.SortFunc(entries, func(a, b hashed) int {
		return cmp.Compare(a.slot(place.level, place.fanout), b.slot(place.level, place.fanout))
	})
	s := &shard{place: place, changed: true}
	for len(entries) > 0 {
		slot := entries[0].slot(place.level, place.fanout)
		end := 1
		for end < len(entries) && entries[end].slot(place.level, place.fanout) == slot {
			end++
		}
		kid := shardKid{slot: slot, entry: &entries[0].Entry}
		if end > 1 {
			kid = shardKid{slot: slot, sub: newShard(place.below(slot), entries[:end])}
		}
		s.kids = append(s.kids, kid)
		entries = entries[end:]
	}
	return s
}

// loadShard loads the child node an encoded link leads to.
func (d *dirEditor) loadShard(link []byte, place shardPlace) (*shard, error) {
	raw, err := parseLink(link)
	if err != nil {
		return nil, err
	}
	l, err := raw.decode()
	if err != nil {
		return nil, err
	}
	block, err := d.fetch(l.Cid)
	if err != nil {
		return nil, err
	}
	s, err := d.parseShard(block, place)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", l.Cid, err)
	}
	return s, nil
}

// staysSharded tells whether the edited HAMT is still too large for one node; if
// not, it returns all its entries. A directory that did not shrink stays.
func (d *dirEditor) staysSharded(root *shard) (bool, []Entry, error) {
	size := d.p.measure(Stat{})
	bySize := d.p.DirLinks == 0 && d.p.DirSize != SizeNone && d.p.DirLimit > 0
	switch {
	case d.delta.block >= 0 && d.delta.size() >= 0 && d.delta.entries >= 0:
		return true, nil, nil
	case bySize && d.base.Size != 0 && int64(d.base.Size)+int64(d.delta.size()) > int64(d.p.DirLimit):
		return true, nil, nil
	}
	if full, err := d.count(root, &size); err != nil || full {
		return full, nil, err
	}
	entries := make([]Entry, 0, size.entries)
	return false, entries, d.collect(root, &entries)
}

// count adds up entries until there are too many for one node. Child nodes that
// it loads stay with their parents, for collect.
func (d *dirEditor) count(s *shard, size *dirMeasure) (full bool, err error) {
	width := slotWidth(s.place.fanout)
	for i := range s.kids { // what is in memory first: it may be enough
		switch k := &s.kids[i]; {
		case k.entry != nil:
			size.add(*k.entry)
		case k.value:
			l, err := parseLink(k.raw)
			if err != nil {
				return false, err
			}
			size.count(len(l.cid), len(l.name)-width, l.tsize, 1)
		}
	}
	for i := range s.kids {
		k := &s.kids[i]
		if k.isValue() {
			continue
		}
		if size.sharded() {
			return true, nil
		}
		if k.sub == nil {
			if k.sub, err = d.loadShard(k.raw, s.place.below(k.slot)); err != nil {
				return false, err
			}
		}
		if full, err = d.count(k.sub, size); err != nil || full {
			return full, err
		}
	}
	return size.sharded(), nil
}

// collect gathers all entries of a tree that is wholly in memory.
func (d *dirEditor) collect(s *shard, entries *[]Entry) error {
	for i := range s.kids {
		k := &s.kids[i]
		if k.sub != nil {
			if err := d.collect(k.sub, entries); err != nil {
				return err
			}
			continue
		}
		e, err := k.toEntry(slotWidth(s.place.fanout))
		if err != nil {
			return err
		}
		*entries = append(*entries, *e)
	}
	return nil
}

// write emits the changed nodes, children first.
func (d *dirEditor) write(s *shard) (Root, error) {
	n := newShardNode(s.place.fanout)
	n.links = make([]byte, 0, s.block+128)
	for i := range s.kids {
		switch k := &s.kids[i]; {
		case k.sub != nil && k.sub.changed: // others were only counted
			child, err := d.write(k.sub)
			if err != nil {
				return Root{}, err
			}
			n.add(k.slot, Link{Cid: child.Cid, Tsize: child.Tsize})
		case k.entry != nil:
			n.add(k.slot, *k.entry)
		default:
			n.copyLink(k.slot, k.raw, k.tsize)
		}
	}
	w := shardWriter{p: d.p, ctx: d.ctx, emit: d.emit}
	return w.write(n, Stat{})
}
