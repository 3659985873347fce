package unixfs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	mh "github.com/multiformats/go-multihash"
)

// hashed is an entry and the hash of its name.
type hashed struct {
	hash uint64
	Entry
}

func (h hashed) name() string { return h.Name }

func (h *hashed) slot(level, fanout int) int { return slotAt(h.hash, h.Name, level, fanout) }

// shards builds a HAMT. Sorted by hash, the entries below any node stand
// together, so the tree is a recursion over ranges. Nothing is emitted when
// there is no such tree.
func (p Profile) shards(ctx context.Context, entries []Entry, stat Stat, emit Emit) (Root, error) {
	all := make([]hashed, len(entries))
	for i, e := range entries {
		all[i] = hashed{nameHash(e.Name), e}
	}
	slices.SortFunc(all, func(a, b hashed) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), strings.Compare(a.Name, b.Name))
	})
	for i := 1; i < len(all); i++ {
		if all[i].Name == all[i-1].Name {
			return Root{}, fmt.Errorf("%w: %q twice", ErrName, all[i].Name)
		}
	}
	w := shardWriter{p: p, ctx: ctx, emit: emit}
	return w.build(all, 0, stat)
}

// shardWriter encodes HAMT nodes.
type shardWriter struct {
	p    Profile
	ctx  context.Context
	emit Emit
	free []*shardNode // for the next node: a directory has thousands
}

// build emits the node of a level that holds these entries, sorted as in the
// level above, and all below it.
func (w *shardWriter) build(all []hashed, level int, stat Stat) (Root, error) {
	if err := w.ctx.Err(); err != nil {
		return Root{}, err
	}
	n := w.node()
	defer func() { w.free = append(w.free, n) }()
	inOrder(all, hashed.name, level, w.p.Fanout)
	for len(all) > 0 {
		slot := all[0].slot(level, w.p.Fanout)
		end := 1
		for end < len(all) && all[end].slot(level, w.p.Fanout) == slot {
			end++
		}
		l := all[0].Entry
		if end > 1 {
			child, err := w.build(all[:end], level+1, Stat{})
			if err != nil {
				return Root{}, err
			}
			l = Link{Cid: child.Cid, Tsize: child.Tsize}
		}
		n.add(slot, l)
		all = all[end:]
	}
	return w.write(n, stat)
}

// shardNode collects the links of a HAMT node, in order of their slots.
type shardNode struct {
	fanout int
	width  int
	bits   []byte // slot 0 is the lowest bit of the last byte
	links  []byte // encoded
	tsize  uint64
	slot   [4]byte
}

func (w *shardWriter) node() *shardNode {
	if len(w.free) == 0 {
		return newShardNode(w.p.Fanout)
	}
	n := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	clear(n.bits)
	n.links, n.tsize = n.links[:0], 0
	return n
}

func newShardNode(fanout int) *shardNode {
	return &shardNode{fanout: fanout, width: slotWidth(fanout), bits: make([]byte, fanout/8)}
}

// add links an entry, or with an empty name a child node.
func (n *shardNode) add(slot int, l Link) {
	n.links = appendLink(n.links, l, string(appendSlot(n.slot[:0], slot, n.width)))
	n.mark(slot, l.Tsize)
}

// copyLink adds a link as it was encoded, in the same slot.
func (n *shardNode) copyLink(slot int, raw []byte, tsize uint64) {
	n.links = append(n.links, raw...)
	n.mark(slot, tsize)
}

func (n *shardNode) mark(slot int, tsize uint64) {
	n.bits[len(n.bits)-1-slot/8] |= 1 << (slot % 8)
	n.tsize += clampTsize(tsize)
}

// message is the UnixFS part; Kubo strips leading zeros off the bitfield.
func (n *shardNode) message(stat Stat) []byte {
	field := n.bits
	for len(field) > 0 && field[0] == 0 {
		field = field[1:]
	}
	b := appendField(make([]byte, 0, 64), tagType, uint64(HAMT))
	b = appendBytes(b, tagData, field)
	b = appendField(b, tagHashType, mh.MURMUR3X64_64)
	b = appendField(b, tagFanout, uint64(n.fanout))
	return appendStat(b, stat)
}

func (w *shardWriter) write(n *shardNode, stat Stat) (Root, error) {
	data := encodeNode(n.links, n.message(stat))
	c, err := w.p.block(codecDagPB, data, w.emit)
	return Root{Cid: c, Tsize: n.tsize + uint64(len(data))}, err
}
