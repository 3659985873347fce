package unixfs

import (
	"context"
	"fmt"
	"iter"
	"math"
	"strings"
	"sync"

	"github.com/ipfs/go-cid"
)

// Run is Count chunks in a row that all are the same leaf.
type Run struct {
	First, Count int64 // chunk indexes
	Leaf         Root
}

// EditFile builds the file of size bytes whose chunks are base's (undefined: an
// empty file's) except for those in changed, and returns what building it from
// its bytes would. Chunks that neither has are zeros, and where size falls
// inside a chunk of base, or base ended inside one, that chunk is cut or filled
// with zeros; so truncating and growing need no runs.
//
// Runs come in ascending order, do not overlap, and end within size; every leaf
// but that of the file's last chunk is of ChunkSize bytes. Changed leaves were
// stored by the caller; EditFile emits the interior nodes above them, and the
// zero leaf once when it uses it.
//
// Only the interior nodes above changes, above base's end and above the new end
// are loaded (a leaf only to cut or fill it): k changes in a file of n chunks
// cost O(k log n) nodes, not n leaves.
//
// Base must be laid out by this profile. What is loaded is checked and answered
// with ErrForeign or ErrMalformed; what is not loaded is believed. Profiles with
// a Chunker cannot edit: ErrForeign.
func (p Profile) EditFile(ctx context.Context, load Load, base cid.Cid, size uint64, changed iter.Seq2[Run, error], emit Emit) (Root, error) {
	if err := p.Validate(); err != nil {
		return Root{}, fmt.Errorf("unixfs: edit: %w", err)
	}
	if p.Chunker != "" {
		return Root{}, fmt.Errorf("unixfs: edit: %w: chunks cut by content", ErrForeign)
	}
	if size > math.MaxInt64 {
		return Root{}, fmt.Errorf("unixfs: edit: file of %d bytes", size)
	}
	if size == 0 {
		return p.emitLeaf(nil, emit)
	}
	if changed == nil {
		changed = func(func(Run, error) bool) {}
	}
	next, stop := iter.Pull2(changed)
	defer stop()
	lay := p.layout()
	b, err := p.newBase(load)
	if err != nil {
		return Root{}, err
	}
	e := &fileEditor{layout: lay, p: p, ctx: ctx, base: b, emit: emit, size: size, count: lay.chunks(size), next: next}
	e.zeros = uniformWriter{p: p, zero: true}
	if err := e.advance(); err != nil {
		return Root{}, err
	}
	replaced := e.run.First == 0 && e.run.Count == e.count // nothing of base is left: do not even look
	if base.Defined() && !replaced {
		if err := b.open(ctx, base); err != nil {
			return Root{}, err
		}
	}
	return e.edit()
}

type fileEditor struct {
	layout
	p     Profile
	ctx   context.Context
	base  *base
	emit  Emit
	size  uint64
	count int64 // chunks
	zeros uniformWriter

	next    func() (Run, error, bool)
	run     Run // the first run not wholly passed; Count 0: there is none
	end     int64
	uniform uniformWriter  // of run
	writer  *uniformWriter // uniform, or zeros when that is the same
}

// advance takes the next run.
func (e *fileEditor) advance() error {
	r, err, ok := e.next()
	if err != nil {
		return fmt.Errorf("unixfs: edit: changed chunks: %w", err)
	}
	if !ok {
		e.run = Run{}
		return nil
	}
	if r.First < e.end || r.Count < 1 || r.First > e.count || r.Count > e.count-r.First {
		return fmt.Errorf("unixfs: edit: run of %d chunks at %d: overlapping, out of order or beyond %d chunks", r.Count, r.First, e.count)
	}
	e.end = r.First + r.Count
	want := uint64(e.chunk)
	if last := e.size - uint64(e.count-1)*want; e.end == e.count && last != want {
		if r.Count > 1 {
			return fmt.Errorf("unixfs: edit: run of %d chunks over the shorter last one", r.Count)
		}
		want = last
	}
	if r.Leaf.Size != want || e.p.RawLeaves && r.Leaf.Tsize != want {
		return fmt.Errorf("unixfs: edit: leaf of %d bytes (Tsize %d) at chunk %d, want %d", r.Leaf.Size, r.Leaf.Tsize, r.First, want)
	}
	if c := r.Leaf.Cid.KeyString(); len(c) != len(e.base.leafPrefix)+e.base.digest || !strings.HasPrefix(c, string(e.base.leafPrefix)) {
		return fmt.Errorf("unixfs: edit: leaf %s at chunk %d is none of this profile", r.Leaf.Cid, r.First)
	}
	e.run = r
	e.uniform = uniformWriter{p: e.p, tree: uniform{leaf: r.Leaf}}
	e.writer = &e.uniform
	if r.Count > 1 { // one zero leaf is not worth the look
		zero, err := e.p.ZeroLeaf()
		if err != nil {
			return err
		}
		if zero == r.Leaf {
			e.writer = &e.zeros
		}
	}
	return nil
}

// edit walks from the new root down.
func (e *fileEditor) edit() (Root, error) {
	level := e.height(e.count)
	old := e.base.root
	for l := e.base.level; l > level; l-- { // base is higher: its first child has our root's place
		kids, err := e.base.children(e.ctx, old, l, nil)
		if err != nil {
			return Root{}, err
		}
		old = kids[0]
	}
	return e.node(level, 0, old)
}

// node returns the node of a level that covers the chunks from first on. old is
// what base has in that place.
func (e *fileEditor) node(level int, first int64, old baseNode) (Root, error) {
	end := e.count
	if n := e.span(level); n < e.count-first {
		end = first + n
	}
	size := min(uint64(end)*uint64(e.chunk), e.size) - uint64(first)*uint64(e.chunk)
	if e.run.Count == 0 || e.run.First >= end {
		switch {
		case old.size == size:
			return e.base.subtree(old)
		case old.size == 0:
			return e.zeros.subtree(level, size, e.emit)
		case level == 0:
			return e.resize(old, size)
		}
	} else if e.run.First <= first && e.end >= end {
		root, err := e.writer.subtree(level, size, e.emit)
		if err == nil && e.end == end {
			err = e.advance()
		}
		return root, err
	}
	return e.children(level, first, end, old)
}

// children rebuilds an interior node.
func (e *fileEditor) children(level int, first, end int64, old baseNode) (Root, error) {
	s := e.scratch()
	defer s.release()
	f := s.node
	var kids []baseNode
	var err error
	switch {
	case old.size == 0:
	case level > e.base.level: // base is lower: its root is our first child
		kids = []baseNode{old}
	case old.raw == nil:
		kids = e.base.kids
	default:
		if s.kids, err = e.base.children(e.ctx, old, level, s.kids); err != nil {
			return Root{}, err
		}
		kids = s.kids
	}
	span, full := e.span(level-1), e.full(level-1)
	for i := 0; first < end; i, first = i+1, first+span {
		var kid baseNode
		if i < len(kids) {
			kid = kids[i]
		}
		// The common case, kept short: nothing changed below, so the link stays.
		// (The last child may have to be cut and takes the long way.)
		if kid.size == full && kid.raw != nil && span < end-first && (e.run.Count == 0 || e.run.First-first >= span) {
			f.copyLink(kid)
			continue
		}
		root, err := e.node(level-1, first, kid)
		if err != nil {
			return Root{}, err
		}
		f.add(root)
	}
	return e.p.node(f, Stat{}, e.emit)
}

// scratch is memory for one node, kept for the next: an edit may touch thousands.
type scratch struct {
	kids []baseNode
	node *fileNode
}

var scratches sync.Pool

func (e *fileEditor) scratch() *scratch {
	if s, ok := scratches.Get().(*scratch); ok {
		s.node.reset()
		return s
	}
	n := min(e.links, e.count)
	return &scratch{kids: make([]baseNode, 0, n), node: newFileNode(n)}
}

func (s *scratch) release() {
	clear(s.kids[:cap(s.kids)]) // they point into blocks
	s.kids = s.kids[:0]
	scratches.Put(s)
}

// resize cuts a leaf of base, or fills it with zeros.
func (e *fileEditor) resize(old baseNode, size uint64) (Root, error) {
	root, err := e.base.subtree(old)
	if err != nil {
		return Root{}, err
	}
	block, err := e.base.fetch(e.ctx, root.Cid)
	if err != nil {
		return Root{}, err
	}
	data, err := e.p.LeafData(root.Cid, block)
	if err != nil {
		return Root{}, err
	}
	if uint64(len(data)) != old.size {
		return Root{}, fmt.Errorf("unixfs: edit: leaf %s: %w: %d bytes, its parent says %d", root.Cid, ErrMalformed, len(data), old.size)
	}
	resized := make([]byte, size)
	copy(resized, data)
	return e.p.emitLeaf(resized, e.emit)
}
