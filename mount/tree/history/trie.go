package history

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/fluent/qp"
	"github.com/ipld/go-ipld-prime/node/basicnode"

	"cafs/linksys/unixfs"
)

const (
	// leafLimit is the weight up to which entries are in one block.
	leafLimit = 16 << 10
	slots     = 16
	// maxLevel bounds the depth: four bits a level, of the 64 of a name's hash and
	// then of the 256 of its sha2-256.
	maxLevel = (64 + 256) / 4
)

// weight is about the length of the encoded entry; exactly this is on disk, in
// the shape of every map.
func (e *Entry) weight() int64 {
	n := 24 + len(e.Name) + len(e.Target)
	for _, c := range []cid.Cid{e.Cid, e.Record} {
		if c.Defined() {
			n += 6 + c.ByteLen()
		}
	}
	for _, x := range e.Xattrs {
		n += 8 + len(x.Name) + len(x.Value)
		if x.Block.Defined() {
			n += x.Block.ByteLen()
		}
	}
	return int64(n)
}

// hard is how many names that are link ids the entry stands for.
func (e *Entry) hard() uint64 {
	if e.Link != (LinkID{}) {
		return 1
	}
	return e.Hard
}

// sum is what a block of a map says of all below it.
type sum struct {
	c      cid.Cid
	weight int64
	hard   uint64
}

type child struct {
	slot int
	sum
}

// trieNode is one block of a map: entries or children.
type trieNode struct {
	entries  []Entry // sorted by name
	children []child // sorted by slot; at least one when entries are elsewhere
}

func slotOf(name string, level int) int {
	slot, _ := unixfs.Slot(name, level, slots)
	return slot
}

func (n *trieNode) total() (weight int64, hard uint64) {
	for i := range n.entries {
		weight += n.entries[i].weight()
		hard += n.entries[i].hard()
	}
	for _, c := range n.children {
		weight += c.weight
		hard += c.hard
	}
	return weight, hard
}

func (n *trieNode) emit(emit Emit) (sum, error) {
	node, err := qp.BuildMap(basicnode.Prototype.Any, 1, func(ma datamodel.MapAssembler) {
		if len(n.children) == 0 {
			qp.MapEntry(ma, "entries", qp.List(int64(len(n.entries)), func(la datamodel.ListAssembler) {
				for i := range n.entries {
					qp.ListEntry(la, qp.List(-1, n.entries[i].assemble))
				}
			}))
			return
		}
		qp.MapEntry(ma, "children", qp.List(int64(len(n.children)), func(la datamodel.ListAssembler) {
			for _, c := range n.children {
				qp.ListEntry(la, qp.List(4, func(la datamodel.ListAssembler) {
					qp.ListEntry(la, qp.Int(int64(c.slot)))
					qp.ListEntry(la, qp.Int(c.weight))
					qp.ListEntry(la, qp.Int(int64(c.hard)))
					qp.ListEntry(la, qp.Link(link(c.c)))
				}))
			}
		}))
	})
	if err != nil {
		return sum{}, fmt.Errorf("history: encode map: %w", err)
	}
	data, err := encode(node)
	if err != nil {
		return sum{}, err
	}
	s := sum{}
	s.weight, s.hard = n.total()
	s.c, err = block(cid.DagCBOR, data, emit)
	return s, err
}

func loadNode(ctx context.Context, load Load, c cid.Cid) (*trieNode, error) {
	data, err := load(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("history: map %s: %w", c, err)
	}
	n, err := decodeNode(data)
	if err != nil {
		return nil, fmt.Errorf("history: map %s: %w", c, err)
	}
	return n, nil
}

func decodeNode(data []byte) (*trieNode, error) {
	node, err := decode(data)
	if err != nil {
		return nil, err
	}
	r, n := &reader{}, &trieNode{}
	if l := r.field(node, "entries"); l != nil && l.Kind() == datamodel.Kind_List {
		n.entries = make([]Entry, 0, l.Length())
		for it := l.ListIterator(); !it.Done() && !r.bad; {
			_, v, err := it.Next()
			if err != nil {
				return nil, err
			}
			n.entries = append(n.entries, r.entry(v))
		}
		for i := 1; i < len(n.entries); i++ {
			r.bad = r.bad || n.entries[i-1].Name >= n.entries[i].Name
		}
		return n, r.err()
	}
	l := r.field(node, "children")
	if l == nil || l.Kind() != datamodel.Kind_List || l.Length() == 0 || l.Length() > slots {
		return nil, fmt.Errorf("history: decode map: %w", ErrFormat)
	}
	for i := range l.Length() {
		v := r.at(l, i)
		c := child{slot: int(r.count(r.at(v, 0), slots-1))}
		c.weight = r.count(r.at(v, 1), math.MaxInt64>>8)
		c.hard = uint64(r.count(r.at(v, 2), math.MaxInt64>>8))
		c.c = r.cid(r.at(v, 3))
		if i > 0 && c.slot <= n.children[i-1].slot {
			r.bad = true
		}
		n.children = append(n.children, c)
	}
	return n, r.err()
}

// Change sets or, with Entry nil, removes a name.
type Change struct {
	Name  string
	Entry *Entry
}

// trieEditor applies changes to a map.
type trieEditor struct {
	ctx  context.Context
	load Load
	emit Emit
}

// edit returns the map base (undefined: empty) with changes, one for a name,
// applied: the map that building from the resulting entries gives.
func edit(ctx context.Context, load Load, base cid.Cid, changes []Change, emit Emit) (sum, error) {
	t := trieEditor{ctx, load, emit}
	if !base.Defined() {
		var entries []Entry
		for _, c := range changes {
			if c.Entry != nil {
				entries = append(entries, *c.Entry)
			}
		}
		slices.SortFunc(entries, byName)
		return t.build(entries, 0)
	}
	n, err := loadNode(ctx, load, base)
	if err != nil {
		return sum{}, err
	}
	if len(changes) == 0 {
		s := sum{c: base}
		s.weight, s.hard = n.total()
		return s, nil
	}
	return t.node(n, 0, changes)
}

func byName(a, b Entry) int { return strings.Compare(a.Name, b.Name) }

// build emits the map of entries, sorted by name, from a level down.
func (t *trieEditor) build(entries []Entry, level int) (sum, error) {
	n := &trieNode{entries: entries}
	if w, _ := n.total(); w <= leafLimit || level == maxLevel || len(entries) == 1 {
		return n.emit(t.emit)
	}
	var parts [slots][]Entry
	for _, e := range entries {
		s := slotOf(e.Name, level)
		parts[s] = append(parts[s], e)
	}
	n.entries = nil
	for s, part := range parts {
		if len(part) == 0 {
			continue
		}
		below, err := t.build(part, level+1)
		if err != nil {
			return sum{}, err
		}
		n.children = append(n.children, child{s, below})
	}
	return n.emit(t.emit)
}

// node applies changes to the block n.
func (t *trieEditor) node(n *trieNode, level int, changes []Change) (sum, error) {
	if err := t.ctx.Err(); err != nil {
		return sum{}, err
	}
	if len(n.children) == 0 {
		return t.build(apply(n.entries, changes), level)
	}
	var parts [slots][]Change
	for _, c := range changes {
		s := slotOf(c.Name, level)
		parts[s] = append(parts[s], c)
	}
	next := &trieNode{}
	for s := range slots {
		i := slices.IndexFunc(n.children, func(c child) bool { return c.slot == s })
		if len(parts[s]) == 0 {
			if i >= 0 {
				next.children = append(next.children, n.children[i])
			}
			continue
		}
		below := &trieNode{}
		if i >= 0 {
			var err error
			if below, err = loadNode(t.ctx, t.load, n.children[i].c); err != nil {
				return sum{}, err
			}
		}
		changed, err := t.node(below, level+1, parts[s])
		if err != nil {
			return sum{}, err
		}
		if changed.weight > 0 {
			next.children = append(next.children, child{s, changed})
		}
	}
	if w, _ := next.total(); w > leafLimit {
		if single, err := t.single(next); err != nil {
			return sum{}, err
		} else if !single {
			return next.emit(t.emit)
		}
	}
	var entries []Entry
	for _, c := range next.children {
		if err := list(t.ctx, t.load, c.c, 0, func(e Entry) error { entries = append(entries, e); return nil }); err != nil {
			return sum{}, err
		}
	}
	slices.SortFunc(entries, byName)
	return t.build(entries, level)
}

// single tells whether one heavy entry is all that is left below a node, which
// is in one block whatever its weight.
func (t *trieEditor) single(n *trieNode) (bool, error) {
	if len(n.children) != 1 {
		return false, nil
	}
	below, err := loadNode(t.ctx, t.load, n.children[0].c)
	return err == nil && len(below.children) == 0, err
}

func apply(entries []Entry, changes []Change) []Entry {
	byKey := make(map[string]*Entry, len(changes))
	for _, c := range changes {
		byKey[c.Name] = c.Entry
	}
	out := make([]Entry, 0, len(entries)+len(changes))
	for _, e := range entries {
		if _, changed := byKey[e.Name]; !changed {
			out = append(out, e)
		}
	}
	for _, e := range byKey {
		if e != nil {
			out = append(out, *e)
		}
	}
	slices.SortFunc(out, byName)
	return out
}

// errStop ends a listing whose consumer has enough.
var errStop = fmt.Errorf("stop")

func list(ctx context.Context, load Load, c cid.Cid, level int, visit func(Entry) error) error {
	if level > maxLevel+1 {
		return fmt.Errorf("history: map %s is too deep: %w", c, ErrFormat)
	}
	n, err := loadNode(ctx, load, c)
	if err != nil {
		return err
	}
	for _, e := range n.entries {
		if err := visit(e); err != nil {
			return err
		}
	}
	for _, k := range n.children {
		if err := list(ctx, load, k.c, level+1, visit); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// List yields the entries of a map, in no particular order. An error ends it.
func List(ctx context.Context, load Load, record cid.Cid) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		err := list(ctx, load, record, 0, func(e Entry) error {
			if !yield(e, nil) {
				return errStop
			}
			return nil
		})
		if err != nil && err != errStop {
			yield(Entry{}, err)
		}
	}
}

// Find returns the entry of a name; ok is false when there is none.
func Find(ctx context.Context, load Load, record cid.Cid, name string) (e Entry, ok bool, err error) {
	for level := 0; level <= maxLevel; level++ {
		n, err := loadNode(ctx, load, record)
		if err != nil {
			return Entry{}, false, err
		}
		if len(n.children) == 0 {
			i, ok := slices.BinarySearchFunc(n.entries, name, func(e Entry, name string) int { return strings.Compare(e.Name, name) })
			if !ok {
				return Entry{}, false, nil
			}
			return n.entries[i], true, nil
		}
		i := slices.IndexFunc(n.children, func(c child) bool { return c.slot == slotOf(name, level) })
		if i < 0 {
			return Entry{}, false, nil
		}
		record = n.children[i].c
	}
	return Entry{}, false, fmt.Errorf("history: map is too deep: %w", ErrFormat)
}

// OwnRefs is Refs for the links with own set. Most blocks have none, which is
// seen without decoding them.
func OwnRefs(data []byte, visit func(cid.Cid) error) error {
	// A block of entries has them in values of xattrs only; however the length
	// of that key is written, one of these is before it.
	if bytes.HasPrefix(data, []byte("\xa1\x67entries")) &&
		!bytes.Contains(data, []byte("\x61"+keyXattrs)) && !bytes.Contains(data, []byte("\x01"+keyXattrs)) {
		return nil
	}
	return Refs(data, func(c cid.Cid, own bool) error {
		if own {
			return visit(c)
		}
		return nil
	})
}

// Refs calls visit with the links of a block of a map: blocks of the same map
// and of values with own set, content and the maps of directories without.
func Refs(data []byte, visit func(c cid.Cid, own bool) error) error {
	n, err := decodeNode(data)
	if err != nil {
		return err
	}
	for _, c := range n.children {
		if err := visit(c.c, true); err != nil {
			return err
		}
	}
	for _, e := range n.entries {
		for _, x := range e.Xattrs {
			if x.Block.Defined() {
				if err := visit(x.Block, true); err != nil {
					return err
				}
			}
		}
		for _, c := range []cid.Cid{e.Cid, e.Record} {
			if c.Defined() {
				if err := visit(c, false); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
