package content

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/index"

	"github.com/ipfs/go-cid"
)

// sealWindow is how many chunks Leaves reads and hashes at a time.
const sealWindow = 4

// leavesCount is what Leaves found out about the data in the new base.
type leavesCount struct {
	done bool
	data int64 // bytes of the new content that are not in zero leaves
}

// zeroLeaf keeps the leaf of a chunk of zeros.
type zeroLeaf struct {
	mu   sync.Mutex
	leaf unixfs.Block
}

// zeros returns and stores the leaf of n zeros.
func (fs *Files) zeros(ctx context.Context, n int64) (unixfs.Root, error) {
	if n != fs.cfg.ChunkSize {
		return fs.store(ctx, make([]byte, n))
	}
	fs.zero.mu.Lock()
	defer fs.zero.mu.Unlock()
	leaf := fs.zero.leaf
	if leaf.Data == nil {
		var err error
		if leaf, err = fs.cfg.Leaf(make([]byte, n)); err != nil {
			return unixfs.Root{}, fmt.Errorf("content: encode leaf: %w", err)
		}
		fs.zero.leaf = leaf
	}
	// Put each time: it may have been collected, or is about to be.
	if err := fs.cfg.Blocks.Put(ctx, leaf.Cid, leaf.Data); err != nil {
		return unixfs.Root{}, fmt.Errorf("content: put leaf: %w", err)
	}
	return unixfs.Root{Cid: leaf.Cid, Size: uint64(n), Tsize: uint64(len(leaf.Data))}, nil
}

// step is a run of chunks that differ from the base: one to be composed, or
// several of zeros.
type step struct {
	first, count int64
	zero         bool
}

// steps lists what differs from the base, in ascending order.
func (c *Cut) steps() []step {
	cs := c.f.fs.cfg.ChunkSize
	chunks := make(map[int64]bool)
	c.f.mu.RLock()
	c.tab.from(0, func(ch *chunk) bool {
		if len(ch.frags) > 0 {
			chunks[ch.idx] = true
		}
		return true
	})
	c.f.mu.RUnlock()
	var zero []step
	lim := int64(0)
	if c.base.Defined() {
		lim = min(c.baseSize, c.size)
	}
	if c.size != c.baseSize && lim%cs != 0 {
		chunks[lim/cs] = true // its length changes
	}
	c.under(0, lim, func(r region) bool {
		if r.base {
			return true
		}
		first, last := r.off/cs, r.end/cs
		if r.off%cs != 0 {
			chunks[first] = true
			first++
		}
		if r.end%cs != 0 && r.end < lim {
			chunks[last] = true
		} else if r.end%cs != 0 {
			last++
		}
		if first < last {
			zero = append(zero, step{first: first, count: last - first, zero: true})
		}
		return true
	})
	var all []step
	for idx := range chunks {
		all = append(all, step{first: idx, count: 1})
	}
	slices.SortFunc(all, func(a, b step) int { return int(min(max(a.first-b.first, -1), 1)) })
	return mergeSteps(all, zero)
}

// mergeSteps puts runs of zeros between the single chunks.
func mergeSteps(single, zero []step) []step {
	if len(zero) == 0 {
		return single
	}
	var out []step
	for _, z := range zero {
		for z.count > 0 {
			if len(single) > 0 && single[0].first <= z.first {
				if single[0].first == z.first {
					z.first, z.count = z.first+1, z.count-1
				}
				out, single = append(out, single[0]), single[1:]
				continue
			}
			n := z.count
			if len(single) > 0 {
				n = min(n, single[0].first-z.first)
			}
			out = append(out, step{first: z.first, count: n, zero: true})
			z.first, z.count = z.first+n, z.count-n
		}
	}
	return append(out, single...)
}

// Leaves stores every chunk that differs from the base as a leaf block and
// yields them in ascending order, runs of holes as one Run. The blocks are not
// flushed: flush what was yielded before the new root is published.
func (c *Cut) Leaves(ctx context.Context) iter.Seq2[unixfs.Run, error] {
	return func(yield func(unixfs.Run, error) bool) {
		c.sealed = leavesCount{data: c.baseData}
		if c.size == 0 {
			c.sealed.data = 0
		}
		steps := c.steps()
		for len(steps) > 0 {
			n := min(sealWindow, len(steps))
			for _, r := range c.leaves(ctx, steps[:n]) {
				for _, run := range r.runs {
					if !yield(run, nil) {
						return
					}
				}
				if r.err != nil {
					yield(unixfs.Run{}, r.err)
					return
				}
				c.sealed.data += r.data
			}
			steps = steps[n:]
		}
		lost, err := c.baseDataIn(ctx, c.size, c.baseSize)
		if err != nil {
			yield(unixfs.Run{}, err)
			return
		}
		c.sealed.data -= lost
		c.sealed.done = true
	}
}

// leafResult is what became of a step.
type leafResult struct {
	runs []unixfs.Run
	data int64 // how much more data there is than in the base
	err  error
}

// leaves works on some steps at a time.
func (c *Cut) leaves(ctx context.Context, steps []step) []leafResult {
	out := make([]leafResult, len(steps))
	var wg sync.WaitGroup
	for i, s := range steps {
		wg.Go(func() { out[i] = c.leaf(ctx, s) })
	}
	wg.Wait()
	return out
}

// leaf makes the leaves of a step.
func (c *Cut) leaf(ctx context.Context, s step) (r leafResult) {
	cs := c.f.fs.cfg.ChunkSize
	start := s.first * cs
	end := c.size
	if s.count <= (math.MaxInt64-start)/cs {
		end = min(end, start+s.count*cs)
	}
	var data int64
	if s.zero {
		whole := (end - start) / cs
		if whole > 0 {
			r.add(s.first, whole, cs)(c.f.fs.zeros(ctx, cs))
		}
		if rest := end - start - whole*cs; rest > 0 && r.err == nil {
			r.add(s.first+whole, 1, rest)(c.f.fs.zeros(ctx, rest))
		}
	} else {
		var root unixfs.Root
		root, data, r.err = c.chunkLeaf(ctx, s.first, end-start)
		r.add(s.first, 1, end-start)(root, r.err)
	}
	if r.err == nil {
		var old int64
		old, r.err = c.baseDataIn(ctx, start, end)
		r.data = data - old
	}
	return r
}

// add returns a function that adds a run of the leaf it is given.
func (r *leafResult) add(first, count, size int64) func(unixfs.Root, error) {
	return func(root unixfs.Root, err error) {
		root.Size = uint64(size)
		if r.err = err; err == nil {
			r.runs = append(r.runs, unixfs.Run{First: first, Count: count, Leaf: root})
		}
	}
}

// chunkLeaf returns the leaf of n bytes of one chunk, and how many of them are data.
func (c *Cut) chunkLeaf(ctx context.Context, idx, n int64) (unixfs.Root, int64, error) {
	f := c.f
	f.mu.RLock()
	if ch := c.tab.get(idx); ch != nil && len(ch.frags) == 1 {
		if g, src := ch.frags[0], *ch.frags[0].src; src.own && g.skip == 0 && int64(g.n) == n && int64(src.n) == n {
			f.mu.RUnlock()
			if src.whole {
				return unixfs.Root{Cid: src.block, Tsize: src.tsize}, n, nil
			}
			if f.fs.isWhole(ctx, src.block, n) {
				return unixfs.Root{Cid: src.block, Tsize: uint64(n)}, n, nil
			}
			f.mu.RLock()
		}
	}
	if c.ended {
		f.mu.RUnlock()
		return unixfs.Root{}, 0, ErrEnded
	}
	co := f.compose(&c.view, idx)
	f.mu.RUnlock()
	defer co.release(f.fs.mem)
	if err := f.fetch(ctx, co.pieces, c.base); err != nil {
		return unixfs.Root{}, 0, err
	}
	if allZero(co.data) {
		root, err := f.fs.zeros(ctx, n)
		return root, 0, err
	}
	root, err := f.fs.store(ctx, co.data)
	return root, n, err
}

// isWhole tells whether a leaf of bare bytes that came from the index has n of them.
func (fs *Files) isWhole(ctx context.Context, c cid.Cid, n int64) bool {
	if fs.sizes == nil || !fs.isOwn(c) {
		return false
	}
	size, err := fs.sizes.Size(ctx, c)
	return err == nil && size == n // what is wrong comes to light when it is read
}

var zeroPage [4096]byte

func allZero(p []byte) bool {
	for len(p) > 0 {
		n := min(len(p), len(zeroPage))
		if !bytes.Equal(p[:n], zeroPage[:n]) {
			return false
		}
		p = p[n:]
	}
	return true
}

// baseDataIn returns how many bytes of the base in [a, b) are not in zero leaves.
func (c *Cut) baseDataIn(ctx context.Context, a, b int64) (n int64, err error) {
	b = min(b, c.baseSize)
	if !c.base.Defined() || a >= b || (a == 0 && c.size == 0) {
		return 0, nil
	}
	base, err := c.f.openBase(ctx, c.base)
	if err != nil {
		return 0, err
	}
	for a < b {
		data, err := base.NextData(ctx, a)
		if err != nil {
			return 0, fmt.Errorf("content: data in base: %w", err)
		}
		if data >= b {
			break
		}
		hole, err := base.NextHole(ctx, data)
		if err != nil {
			return 0, fmt.Errorf("content: holes in base: %w", err)
		}
		if hole <= data {
			return 0, fmt.Errorf("%w: hole before data in base %s", ErrDamaged, c.base)
		}
		a = min(hole, b)
		n += a - data
	}
	return n, nil
}

// Rebase makes root, built from the base and Leaves, the base of the file: what
// is newer than the cut stays on top. Every block of root must be durable. The
// next cut publishes it. It ends the cut. False: root is not of the cut's size, or the base
// changed since the cut, and nothing was done.
func (c *Cut) Rebase(root unixfs.Root) bool {
	f := c.f
	f.mu.Lock()
	defer f.mu.Unlock()
	defer c.end()
	if c.ended || f.dead || f.rebased != c.rebased || !root.Cid.Defined() || root.Size != uint64(c.size) {
		return false
	}
	visible := f.visibleAfter(c)
	f.seq++
	f.dropUpTo(c.seq)
	f.base, f.baseSize, f.baseData, f.visible = root.Cid, c.size, c.size, visible
	if c.sealed.done {
		f.baseData = min(max(0, c.sealed.data), c.size)
	}
	f.rebased++
	f.metaSeq, f.opened, f.counted, f.recount = f.seq, nil, false, nil
	f.limitVisible()
	return true
}

// dropUpTo takes the fragments out that a cut had.
func (f *File) dropUpTo(seq uint64) {
	old := f.tab
	f.tab = table{gen: old.gen, root: old.gen}
	old.from(0, func(c *chunk) bool {
		n := 0
		for _, g := range c.frags {
			if g.src.seq > seq {
				n++
			}
		}
		if n == len(c.frags) && n > 0 {
			f.tab.push(c)
			return true
		}
		f.changed[c.idx] = f.seq
		keep := make([]frag, 0, n)
		for _, g := range c.frags {
			if g.src.seq > seq {
				keep = append(keep, g)
			} else {
				f.deref(g.src)
			}
		}
		if n > 0 {
			k := *c
			k.gen, k.frags, k.shared, k.fill = old.gen, keep, false, filled(keep)
			f.tab.push(&k)
		}
		return true
	})
}

// filled returns how far the fragments cover a chunk from its beginning.
func filled(frags []frag) (end int32) {
	for _, g := range frags {
		if g.off != end || g.src.hole {
			break
		}
		end = g.end()
	}
	return end
}

// visibleAfter returns the ranges of c's content that are visible in the file:
// all but what is neither under fragments nor base now and was at the cut.
func (f *File) visibleAfter(c *Cut) []index.Range {
	lim := min(c.size, f.size)
	now, then := f.absent(&f.view, lim), f.absent(&c.view, lim)
	var out []index.Range
	at := int64(0)
	show := func(to int64) {
		if to > at {
			out = append(out, index.Range{Off: at, Len: to - at})
		}
	}
	for _, r := range now {
		a, end := r.Off, r.Off+r.Len
		for a < end {
			for len(then) > 0 && then[0].Off+then[0].Len <= a {
				then = then[1:]
			}
			if len(then) > 0 && then[0].Off <= a { // zeros then, too
				a = min(end, then[0].Off+then[0].Len)
				continue
			}
			to := end
			if len(then) > 0 {
				to = min(end, then[0].Off)
			}
			show(a)
			at, a = to, to
		}
	}
	show(lim)
	return out
}

// absent returns the ranges of [0, lim) that nothing shows.
func (f *File) absent(v *view, lim int64) (out []index.Range) {
	v.regions(f.fs.cfg.ChunkSize, 0, lim, func(r region) bool {
		if r.src == nil && !r.base {
			out = append(out, index.Range{Off: r.off, Len: r.end - r.off})
		}
		return true
	})
	return out
}

// Base returns the base of the cut; undefined: none.
func (c *Cut) Base() cid.Cid { return c.base }
