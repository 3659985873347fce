package unixfs

import (
	"context"
	"fmt"
	"math"

	"github.com/ipfs/go-cid"
)

// layout is the arithmetic of balanced files: level 0 are the leaves, a node of
// level l has up to links children of level l-1, and the i-th node of level l
// covers the chunks from i*span(l) on. So a node's place says what it covers,
// whatever the height of the tree.
type layout struct {
	chunk int64 // bytes
	links int64
}

// chunks is the number of chunks of size bytes.
func (l layout) chunks(size uint64) int64 {
	n := size / uint64(l.chunk)
	if size%uint64(l.chunk) != 0 {
		n++
	}
	return int64(n)
}

// span is the number of chunks a full node of this level covers; saturating.
func (l layout) span(level int) int64 {
	n := int64(1)
	for range level {
		if n > math.MaxInt64/l.links {
			return math.MaxInt64
		}
		n *= l.links
	}
	return n
}

// full is the number of bytes a full node of this level covers; saturating.
func (l layout) full(level int) uint64 {
	n := uint64(l.span(level))
	if n > math.MaxUint64/uint64(l.chunk) {
		return math.MaxUint64
	}
	return n * uint64(l.chunk)
}

// height is the lowest level one node of which covers all chunks.
func (l layout) height(chunks int64) int {
	level := 0
	for l.span(level) < chunks {
		level++
	}
	return level
}

// baseNode is a subtree of the file being edited: by its link, not loaded.
type baseNode struct {
	raw   []byte // the encoded link; nil for the root, which has none
	tsize uint64
	size  uint64 // content bytes; 0: there is no such subtree
}

// subtree is the root of a node in base.
func (b *base) subtree(n baseNode) (Root, error) {
	if n.raw == nil {
		return Root{Cid: b.cid, Size: n.size, Tsize: n.tsize}, nil
	}
	c, err := cid.Cast(n.raw[4 : 4+n.raw[3]]) // parse made sure that lengths are single bytes
	if err != nil {
		return Root{}, malformed("link: %v", err)
	}
	return Root{Cid: c, Size: n.size, Tsize: n.tsize}, nil
}

// base reads the interior nodes of an existing file and holds each against the
// layout, so that a node laid out otherwise is found before it is built upon.
type base struct {
	layout
	load        Load
	leafPrefix  []byte // of the binary CIDs of leaves
	innerPrefix []byte
	digest      int     // bytes of the digest that follows
	cid         cid.Cid // of the file; undefined: there is none
	root        baseNode
	level       int        // of root
	kids        []baseNode // of root
}

// cidPrefix is what every binary CID of the profile begins with.
func (p Profile) cidPrefix(codec uint64) (prefix []byte, digest int, err error) {
	c, err := p.cid(codec, nil)
	if err != nil {
		return nil, 0, err
	}
	b := c.Bytes()
	digest = c.Prefix().MhLength
	return b[:len(b)-digest], digest, nil
}

// newBase is an empty file.
func (p Profile) newBase(load Load) (*base, error) {
	b := &base{layout: p.layout(), load: load}
	leaf := uint64(codecDagPB)
	if p.RawLeaves {
		leaf = codecRaw
	}
	var err error
	if b.leafPrefix, b.digest, err = p.cidPrefix(leaf); err != nil {
		return nil, err
	}
	b.innerPrefix, _, err = p.cidPrefix(codecDagPB)
	return b, err
}

// open loads the root node of a file.
func (b *base) open(ctx context.Context, c cid.Cid) error {
	b.cid = c
	block, err := b.fetch(ctx, c)
	if err != nil {
		return err
	}
	if err := b.openRoot(c, block); err != nil {
		return fmt.Errorf("unixfs: edit %s: %w", c, err)
	}
	return nil
}

func (b *base) openRoot(c cid.Cid, block []byte) error {
	b.root.tsize = uint64(len(block))
	switch c.Type() {
	case codecRaw:
		b.root.size = uint64(len(block))
		return b.checkLeafRoot(c, len(block))
	case codecDagPB:
	default:
		return fmt.Errorf("%w: codec 0x%x", ErrForeign, c.Type())
	}
	links := 0
	data, err := scanNode(block, func(l rawLink) error {
		links++
		b.root.tsize += clampTsize(l.tsize)
		return nil
	})
	if err != nil {
		return err
	}
	m, err := scanMessage(data)
	if err != nil {
		return err
	}
	if m.typ != File || !m.stat.isZero() {
		return fmt.Errorf("%w: a %s node, or one with mode or mtime", ErrForeign, m.typ)
	}
	b.root.size = m.size
	if links == 0 {
		b.root.size = uint64(len(m.data))
		return b.checkLeafRoot(c, len(m.data))
	}
	if m.size > math.MaxInt64 || m.size <= uint64(b.chunk) || !hasPrefix(c.Bytes(), b.innerPrefix, b.digest) {
		return fmt.Errorf("%w: root of %d bytes", ErrForeign, m.size)
	}
	b.level = b.height(b.chunks(m.size))
	b.kids, err = b.parse(block, m.size, b.level, nil)
	return err
}

func (b *base) checkLeafRoot(c cid.Cid, size int) error {
	if !hasPrefix(c.Bytes(), b.leafPrefix, b.digest) || int64(size) > b.chunk {
		return fmt.Errorf("%w: single leaf of %d bytes", ErrForeign, size)
	}
	return nil
}

func (b *base) fetch(ctx context.Context, c cid.Cid) ([]byte, error) {
	if b.load == nil {
		return nil, fmt.Errorf("unixfs: load %s: no loader given", c)
	}
	block, err := b.load(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("unixfs: load %s: %w", c, err)
	}
	return block, nil
}

// children loads an interior node of a level and returns its children. kids is
// memory that the result may use.
func (b *base) children(ctx context.Context, n baseNode, level int, kids []baseNode) ([]baseNode, error) {
	if n.raw == nil {
		return b.kids, nil // only the root has no link to it
	}
	root, err := b.subtree(n)
	if err != nil {
		return nil, err
	}
	block, err := b.fetch(ctx, root.Cid)
	if err != nil {
		return nil, err
	}
	if kids, err = b.parse(block, n.size, level, kids[:0]); err != nil {
		return nil, fmt.Errorf("unixfs: edit %s: %w", root.Cid, err)
	}
	return kids, nil
}

func (b *base) parse(block []byte, size uint64, level int, kids []baseNode) ([]baseNode, error) {
	prefix := b.innerPrefix
	if level == 1 {
		prefix = b.leafPrefix
	}
	data, err := scanNode(block, func(l rawLink) error {
		// Unchanged links are copied as they stand, so they must stand in the
		// one form we would give them.
		if !hasPrefix(l.cid, prefix, b.digest) || len(l.name) != 0 || len(l.all) != linkLen(len(l.cid), 0, l.tsize) || len(l.all) > 127 {
			return fmt.Errorf("%w: link %d", ErrForeign, len(kids))
		}
		if kids == nil {
			kids = make([]baseNode, 0, len(block)/len(l.all)+1)
		}
		kids = append(kids, baseNode{raw: l.all, tsize: l.tsize})
		return nil
	})
	if err != nil {
		return nil, err
	}
	m, err := scanMessage(data)
	if err != nil {
		return nil, err
	}
	if m.typ != File || len(m.data) > 0 || !m.stat.isZero() || m.packed || m.size != size {
		return nil, fmt.Errorf("%w: interior node of another form, or of %d bytes where its parent says %d", ErrForeign, m.size, size)
	}
	return kids, b.sizes(&m, kids, size, level)
}

// sizes gives each child its size, which only the last may have less of than a
// full node of its level.
func (b *base) sizes(m *message, kids []baseNode, size uint64, level int) error {
	full := b.full(level - 1)
	for i := range kids {
		want := min(full, size)
		got, err := m.nextBlockSize()
		if err != nil {
			return malformed("%d links, %d block sizes", len(kids), i)
		}
		if got != want || want == 0 {
			return fmt.Errorf("%w: child of %d bytes, balanced would be %d", ErrForeign, got, want)
		}
		kids[i].size = got
		size -= got
	}
	if size != 0 || len(m.blockSizes) > 0 || int64(len(kids)) > b.links {
		return fmt.Errorf("%w: number of children", ErrForeign)
	}
	return nil
}

// hasPrefix tells whether a binary CID has a prefix and then a digest.
func hasPrefix(c, prefix []byte, digest int) bool {
	return len(c) == len(prefix)+digest && string(c[:len(prefix)]) == string(prefix)
}

func (p Profile) layout() layout { return layout{chunk: p.ChunkSize, links: int64(p.MaxLinks)} }

// copyLink adds an unchanged child.
func (f *fileNode) copyLink(b baseNode) {
	f.links = append(f.links, b.raw...)
	f.count(b.size, b.tsize)
}
