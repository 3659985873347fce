package linksys

import (
	"context"
	"fmt"
	"math"
	"sort"
	"strings"
	"sync/atomic"

	"github.com/ipfs/go-cid"

	"cafs/linksys/unixfs"
)

// loader finds a decoded block: the cache, or a walk that also notes it.
type loader func(context.Context, cid.Cid) (*item, error)

// item is a decoded block, immutable but for its memos and the end of its
// memory: a leaf (bytes of a
// file) or a node (anything with a structure).
type item struct {
	c    cid.Cid
	leaf []byte       // file bytes of a leaf, aliasing block
	node *unixfs.Node // nil for a leaf of the raw codec
	file *table       // children of a file's node; nil for everything else
	// sorted: the links are in order of name, so that one can be searched for.
	sorted bool
	block  []byte // the block itself
	cost   int64  // bytes held, roughly

	// Guarded by the cache's mu: what must end before release may be called.
	release  func() // gives the memory of leaf and block back; may be nil
	borrowed int    // readers at work
	kept     bool   // bytes were handed out for ever
	gone     bool   // out of the cache
}

// table says where the children of a file's interior node lie.
type table struct {
	inline []byte    // bytes that come before the first child
	ends   []int64   // of each child, relative to the start of the node
	cids   []cid.Cid // of each child

	// Memos of what a scan found; losing one costs another scan.
	zero  atomic.Int32    // triUnknown, triYes: every leaf below is a zero leaf; triNo
	dense atomic.Bool     // no leaf below is a zero leaf
	sized []atomic.Uint32 // bit i: the length of raw child i was compared
}

func (t *table) measured(i int) bool { return t.sized[i/32].Load()&(1<<(i%32)) != 0 }

func (t *table) setMeasured(i int) { t.sized[i/32].Or(1 << (i % 32)) }

const (
	triUnknown = iota
	triYes
	triNo
)

func (it *item) class() int {
	if it.isLeaf() {
		return classLeaf
	}
	return classNode
}

func (it *item) isLeaf() bool { return it.node == nil || it.file != nil && len(it.file.cids) == 0 }

// size returns the length of the file below this node, or of the leaf.
func (it *item) size() int64 {
	if it.file != nil && len(it.file.ends) > 0 {
		return it.file.ends[len(it.file.ends)-1]
	}
	return int64(len(it.leaf))
}

// start returns where child i begins, relative to the start of the node.
func (t *table) start(i int) int64 {
	if i == 0 {
		return int64(len(t.inline))
	}
	return t.ends[i-1]
}

// child returns the index of the child that holds the byte at rel, which is
// past the inline bytes and before the end.
func (t *table) child(rel int64) int {
	return sort.Search(len(t.ends), func(i int) bool { return t.ends[i] > rel })
}

// loadItem fetches and decodes a block. It is the cache's loader.
func (s *System) loadItem(ctx context.Context, c cid.Cid) (*item, error) {
	if s.lends != nil && c.Defined() && c.Prefix().Codec == cid.Raw && !isIdentity(c) {
		block, release, err := s.lends.Lend(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("linksys: block %s: %w", c, err)
		}
		it, err := decodeItem(c, block)
		it.release = release
		return it, err
	}
	block, err := s.get(ctx, c)
	if err != nil {
		return nil, err
	}
	return decodeItem(c, block)
}

// decodeItem decodes a block of the raw or dag-pb codec; anything else has no
// place in UnixFS.
func decodeItem(c cid.Cid, block []byte) (*item, error) {
	switch codec := c.Prefix().Codec; codec {
	case cid.Raw:
		return &item{c: c, leaf: block, block: block, cost: int64(len(block)) + itemOverhead}, nil
	case cid.DagProtobuf:
	default:
		return nil, fmt.Errorf("linksys: block %s: codec %#x is not UnixFS: %w", c, codec, ErrNotUnixFS)
	}
	n, err := unixfs.DecodeNode(c, block)
	if err != nil {
		return nil, fmt.Errorf("linksys: block %s: %w", c, err)
	}
	it := &item{c: c, node: n, block: block, cost: int64(len(block)) + itemOverhead}
	switch n.Type {
	case unixfs.Raw, unixfs.File:
		if it.file, err = newTable(n); err != nil {
			return nil, fmt.Errorf("linksys: block %s: %w", c, err)
		}
		it.leaf = it.file.inline
	}
	if it.isLeaf() {
		return it, nil
	}
	it.cost += int64(len(n.Links)) * linkOverhead
	it.sorted = sort.SliceIsSorted(n.Links, func(i, j int) bool { return n.Links[i].Name < n.Links[j].Name })
	return it, nil
}

const (
	itemOverhead = 512 // bytes: structs, map entry, list element
	linkOverhead = 160 // bytes of a decoded link: strings, slices, table row
)

// newTable checks a file node's sizes, which everything after relies on, and
// sums them up.
func newTable(n *unixfs.Node) (*table, error) {
	if len(n.BlockSizes) != len(n.Links) {
		return nil, fmt.Errorf("%d links with %d sizes: %w", len(n.Links), len(n.BlockSizes), unixfs.ErrMalformed)
	}
	t := &table{
		inline: n.Data,
		ends:   make([]int64, 0, len(n.Links)),
		cids:   make([]cid.Cid, 0, len(n.Links)),
		sized:  make([]atomic.Uint32, (len(n.Links)+31)/32),
	}
	end := int64(len(n.Data))
	for i, size := range n.BlockSizes {
		if size > math.MaxInt64 || end > math.MaxInt64-int64(size) {
			return nil, fmt.Errorf("sizes overflow: %w", unixfs.ErrMalformed)
		}
		end += int64(size)
		t.ends = append(t.ends, end)
		t.cids = append(t.cids, n.Links[i].Cid)
	}
	if n.FileSize != 0 && n.FileSize != uint64(end) {
		return nil, fmt.Errorf("file size %d, but its parts sum up to %d: %w", n.FileSize, end, unixfs.ErrMalformed)
	}
	return t, nil
}

// link finds a link by exact name: the first of its name.
func (it *item) link(name string) (unixfs.Link, bool) {
	links := it.node.Links
	if it.sorted {
		i := sort.Search(len(links), func(i int) bool { return links[i].Name >= name })
		if i < len(links) && links[i].Name == name {
			return links[i], true
		}
		return unixfs.Link{}, false
	}
	for _, l := range links {
		if l.Name == name {
			return l, true
		}
	}
	return unixfs.Link{}, false
}

// slot finds the link of a HAMT shard whose name begins with the given index.
func (it *item) slot(prefix string) (unixfs.Link, bool) {
	links := it.node.Links
	i := 0
	if it.sorted {
		i = sort.Search(len(links), func(i int) bool { return links[i].Name >= prefix })
	}
	for ; i < len(links); i++ {
		if strings.HasPrefix(links[i].Name, prefix) {
			return links[i], true
		}
		if it.sorted {
			break
		}
	}
	return unixfs.Link{}, false
}
