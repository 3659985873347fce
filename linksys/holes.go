package linksys

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys/unixfs"
)

// maxScan bounds how many interior nodes one search for data or holes visits.
const maxScan = 1 << 20

// NextData returns the first offset at or after off that is data: not in a leaf
// of zeros. It is Size when there is none. Subtrees of zeros are told by their
// CIDs and passed over whole. Where telling would need a leaf to be read, the
// answer is data, which is always permitted.
func (f *File) NextData(ctx context.Context, off int64) (int64, error) {
	return f.next(ctx, off, false)
}

// NextHole returns the first offset at or after off that lies in a leaf of
// zeros. It is Size when there is none, since every file ends in a hole.
func (f *File) NextHole(ctx context.Context, off int64) (int64, error) {
	return f.next(ctx, off, true)
}

func (f *File) next(ctx context.Context, off int64, hole bool) (int64, error) {
	off = max(off, 0)
	if off >= f.size {
		return f.size, nil
	}
	if f.root == nil {
		if f.s.isZeroLeaf(f.c, f.size) == hole {
			return off, nil
		}
		return f.size, nil
	}
	sc := &scan{f: f, hole: hole, left: maxScan}
	at, err := sc.node(ctx, f.root, 0, off, 0)
	if err != nil {
		return 0, err
	}
	if at < 0 {
		return f.size, nil
	}
	return at, nil
}

// scan is one search through a file.
type scan struct {
	f    *File
	hole bool // what is searched for; else data
	left int  // nodes that may still be visited
}

// node searches below it, which starts at base, from off on. It returns -1 when
// there is nothing.
func (sc *scan) node(ctx context.Context, it *item, base, off int64, depth int) (int64, error) {
	if err := sc.visit(ctx, depth); err != nil {
		return 0, err
	}
	if len(it.leaf) > 0 && off < base+int64(len(it.leaf)) && allZero(it.leaf) == sc.hole {
		return max(off, base), nil
	}
	t := it.file
	if it.isLeaf() || sc.hole && t.dense.Load() {
		return -1, nil
	}
	from := t.child(max(off-base, 0))
	for i := from; i < len(t.cids); i++ {
		at := leafRef{c: t.cids[i], start: base + t.start(i), t: t, i: i}
		at.length = base + t.ends[i] - at.start
		if at.length == 0 || i > from && at.c == t.cids[i-1] && at.length == t.ends[i-1]-t.start(i-1) {
			continue // like the one before, which had none
		}
		found, err := sc.childAt(ctx, at, max(off, at.start), depth)
		if found >= 0 || err != nil {
			return found, err
		}
	}
	if sc.hole && off <= base {
		t.dense.Store(!allZero(it.leaf) || len(it.leaf) == 0)
	}
	return -1, nil
}

func (sc *scan) childAt(ctx context.Context, at leafRef, off int64, depth int) (int64, error) {
	if at.leafSized() {
		if sc.f.s.isZeroLeaf(at.c, at.length) == sc.hole {
			return off, nil
		}
		return -1, nil
	}
	child, err := sc.f.child(ctx, at)
	if err != nil {
		return 0, err
	}
	if !sc.hole {
		zero, err := sc.allZeroBelow(ctx, child, depth+1)
		if err != nil || zero {
			return -1, err
		}
	}
	return sc.node(ctx, child, at.start, off, depth+1)
}

// leafSized: it is small enough to be one block, and is not looked into.
func (r leafRef) leafSized() bool {
	return r.length <= maxLeaf || r.c.Prefix().Codec == cid.Raw
}

// allZeroBelow tells whether all leaves of a node are zero leaves.
func (sc *scan) allZeroBelow(ctx context.Context, it *item, depth int) (bool, error) {
	if it.isLeaf() {
		return allZero(it.leaf), nil
	}
	t := it.file
	if v := t.zero.Load(); v != triUnknown {
		return v == triYes, nil
	}
	if err := sc.visit(ctx, depth); err != nil {
		return false, err
	}
	zero := allZero(it.leaf)
	for i := 0; zero && i < len(t.cids); i++ {
		at := leafRef{c: t.cids[i], start: t.start(i), length: t.ends[i] - t.start(i)}
		if at.length == 0 || i > 0 && at.c == t.cids[i-1] && at.length == t.ends[i-1]-t.start(i-1) {
			continue
		}
		if at.leafSized() {
			zero = sc.f.s.isZeroLeaf(at.c, at.length)
			continue
		}
		child, err := sc.f.child(ctx, at)
		if err != nil {
			return false, err
		}
		if zero, err = sc.allZeroBelow(ctx, child, depth+1); err != nil {
			return false, err
		}
	}
	if zero {
		t.zero.Store(triYes)
	} else {
		t.zero.Store(triNo)
	}
	return zero, nil
}

func (sc *scan) visit(ctx context.Context, depth int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if sc.left--; sc.left < 0 || depth > maxDepth {
		return fmt.Errorf("linksys: file %s: search for data: %w", sc.f.c, ErrBudget)
	}
	return nil
}

var zeroBuf = make([]byte, maxLeaf)

// zeroes returns n <= maxLeaf bytes of zeros, read-only.
func zeroes(n int64) []byte { return zeroBuf[:n] }

func allZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeroBuf))
		if !bytes.Equal(b[:n], zeroBuf[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// zeroLeaves knows the CIDs of leaves of zeros, by what decides them.
type zeroLeaves struct {
	mu   sync.Mutex // guards the rest
	cids map[zeroKey]cid.Cid
	odd  int // of them, those of no whole number of pages
}

type zeroKey struct {
	length        int64
	codec, mhType uint64
	version       uint64
}

// maxOddZeros bounds how many lengths that are no whole pages are looked into,
// against files cut by content, all of whose leaves differ in length.
const maxOddZeros = 128

// isZeroLeaf tells whether c is the leaf of length zeros, raw or in the framing
// cafs and Kubo give a dag-pb leaf. The CID alone proves it; nothing is read.
func (s *System) isZeroLeaf(c cid.Cid, length int64) bool {
	p := c.Prefix()
	if length <= 0 || length > maxLeaf || p.MhType == mh.IDENTITY {
		return false
	}
	k := zeroKey{length, p.Codec, p.MhType, p.Version}
	z := &s.zeros
	z.mu.Lock()
	want, ok := z.cids[k]
	full := z.odd >= maxOddZeros
	z.mu.Unlock()
	odd := length%4096 != 0
	if !ok {
		if odd && full {
			return false // it is then read like any other leaf
		}
		want = zeroLeaf(k)
		z.mu.Lock()
		if z.cids == nil {
			z.cids = make(map[zeroKey]cid.Cid)
		}
		z.cids[k] = want
		if odd {
			z.odd++
		}
		z.mu.Unlock()
	}
	return want.Defined() && c == want
}

// zeroLeaf computes the leaf's CID; undefined when no profile makes such leaves.
func zeroLeaf(k zeroKey) cid.Cid {
	p := unixfs.V1_2025
	p.CidVersion, p.Hash, p.RawLeaves = int(k.version), k.mhType, k.codec == cid.Raw
	if p.Validate() != nil {
		return cid.Undef
	}
	b, err := p.Leaf(zeroes(k.length))
	if err != nil {
		return cid.Undef
	}
	return b.Cid
}
