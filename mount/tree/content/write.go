package content

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sort"
	"syscall"
)

const (
	// fragSize is a chunk's size for each fragment that it may have before some are
	// merged, or, if that does not help, it is composed into a block: one that is
	// written page by page need not be.
	fragSize = 4 << 10
	// mergedPart is the part of a chunk up to which fragments are merged. What is
	// larger stays, so that no byte is merged again and again.
	mergedPart = 64
	// maxInline is how many chunks' worth of a file's bytes the index may have. Then
	// they are moved to staging: what is appended becomes blocks, but a file that is
	// written here and there would be in the index whole, and in memory when it is
	// loaded.
	maxInline = 2
	// maxVisible bounds the visible ranges of a base, which are part of the
	// inode's record. Further holes become extents.
	maxVisible = 64
)

// WriteAt writes p at off, extending the file. It waits while too much memory
// is taken by unsaved bytes; ctx ends the wait. Errors: ENOSPC, EFBIG, EINVAL.
// On an error nothing, or a prefix of p, was written. p is not kept.
func (f *File) WriteAt(ctx context.Context, p []byte, off int64) error {
	if off < 0 {
		return syscall.EINVAL
	}
	if off > math.MaxInt64-int64(len(p)) {
		return syscall.EFBIG
	}
	for len(p) > 0 {
		n := min(len(p), int(f.fs.mem.slabSize))
		if err := f.write(ctx, p[:n], off); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

func (f *File) write(ctx context.Context, p []byte, off int64) error {
	if err := f.fs.room(int64(len(p))); err != nil {
		return err
	}
	reserved := int64(1) << classOf(int64(len(p)))
	if err := f.fs.mem.reserve(ctx, reserved); err != nil {
		return err
	}
	defer f.fs.mem.unreserve(reserved)
	cs := f.fs.cfg.ChunkSize
	now := f.fs.clock.Add(1)
	f.touched.Store(now)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return ErrClosed
	}
	f.enlist()
	for len(p) > 0 {
		at := off % cs
		n := int(min(cs-at, int64(len(p))))
		f.seq++
		c := f.change(off / cs)
		c.used = now
		if err := f.put(c, int32(at), p[:n]); err != nil {
			return err
		}
		p, off = p[n:], off+int64(n)
		if off > f.size {
			f.size, f.metaSeq = off, f.seq
		}
		f.mature(c)
	}
	return nil
}

// writable tells whether nobody but the overlay has seen src's bytes.
func (f *File) writable(src *source) bool {
	return src.buf != nil && src.seq > f.cutSeq && !src.frozen
}

// put writes p at offset at of the chunk. It overwrites bytes in memory in place,
// extends those that end where p begins, and otherwise makes a new source.
func (f *File) put(c *chunk, at int32, p []byte) error {
	if at <= c.fill {
		c.fill = max(c.fill, at+int32(len(p)))
	}
	for len(p) > 0 {
		i := c.search(at)
		if i < len(c.frags) && c.frags[i].off <= at && f.writable(c.frags[i].src) {
			g := c.frags[i]
			n := copy(g.src.mem()[g.skip+at-g.off:g.skip+g.n], p)
			p, at = p[n:], at+int32(n)
			continue
		}
		n, err := f.extend(c, i-1, at, p)
		if err != nil {
			return err
		}
		if n == 0 {
			if n, err = f.add(c, at, p); err != nil {
				return err
			}
		}
		p, at = p[n:], at+int32(n)
	}
	return nil
}

// search returns the position of the first fragment that ends after at.
func (c *chunk) search(at int32) int {
	if n := len(c.frags); n > 0 && c.frags[n-1].end() <= at {
		return n
	}
	return sort.Search(len(c.frags), func(i int) bool { return c.frags[i].end() > at })
}

// extend appends to fragment i if that ends at offset at and its bytes are the last of
// their buffer. It returns how much of p was written.
func (f *File) extend(c *chunk, i int, at int32, p []byte) (int, error) {
	if i < 0 || c.frags[i].end() != at {
		return 0, nil
	}
	g := c.frags[i]
	src := g.src
	if src.buf == nil || g.skip+g.n != src.n || src.buf.used != src.at+src.n {
		return 0, nil
	}
	if !f.writable(src) {
		return f.share(c, src, at, p)
	}
	if int(src.n)+len(p) > len(src.buf.data)-int(src.at) {
		if err := f.grow(src, int64(len(p))); err != nil {
			return 0, err
		}
	}
	n := copy(src.buf.data[src.at+src.n:], p)
	f.carve(c, at, at+int32(n))
	c.own()
	src.n += int32(n)
	src.buf.used = src.at + src.n
	c.frags[i].n += int32(n)
	return n, nil
}

// share makes a new source in the room that is left in the buffer of an
// earlier one, so that small appends between cuts do not take a buffer each.
func (f *File) share(c *chunk, old *source, at int32, p []byte) (int, error) {
	room := len(old.buf.data) - int(old.buf.used)
	if room < len(p) {
		return 0, nil
	}
	src := &source{seq: f.seq, buf: old.buf.hold(), at: old.buf.used, n: int32(len(p))}
	copy(src.mem(), p)
	src.buf.used += src.n
	f.lay(c, at, src, 0, src.n)
	return len(p), nil
}

// grow gives src a buffer with room for n more bytes: four times as large, up
// to a chunk, since what is appended to once is appended to again.
func (f *File) grow(src *source, n int64) error {
	want := min(max(int64(src.n)+n, 4*int64(src.n)), max(f.fs.cfg.ChunkSize, int64(src.n)+n))
	b, err := f.fs.mem.alloc(want)
	if err != nil {
		return err
	}
	copy(b.data, src.mem())
	f.fs.mem.release(src.buf)
	src.buf, src.at, b.used = b, 0, src.n
	return nil
}

// add lays a new source over the chunk.
func (f *File) add(c *chunk, at int32, p []byte) (int, error) {
	b, err := f.fs.mem.alloc(int64(len(p)))
	if err != nil {
		return 0, err
	}
	src := &source{seq: f.seq, buf: b, n: int32(len(p))}
	b.used = src.n
	copy(b.data, p)
	f.lay(c, at, src, 0, src.n)
	return len(p), nil
}

// lay shows n bytes of src, from skip on, at offset at of the chunk.
func (f *File) lay(c *chunk, at int32, src *source, skip, n int32) {
	i := f.carve(c, at, at+n)
	if i < len(c.frags) {
		c.own()
	}
	c.frags = slices.Insert(c.frags, i, frag{off: at, n: n, skip: skip, src: src})
	src.refs++
}

// carve takes [a, b) out of the chunk's fragments and returns where a fragment
// there would go.
func (f *File) carve(c *chunk, a, b int32) int {
	i := c.search(a)
	if i == len(c.frags) || c.frags[i].off >= b {
		return i
	}
	c.own()
	if g := c.frags[i]; g.off < a && g.end() > b { // in the middle of one
		g.src.refs++
		c.frags[i] = g.cutTo(g.off, a)
		c.frags = slices.Insert(c.frags, i+1, g.cutTo(b, g.end()))
		return i + 1
	}
	if g := c.frags[i]; g.off < a {
		c.frags[i] = g.cutTo(g.off, a)
		i++
	}
	j := i
	for ; j < len(c.frags) && c.frags[j].end() <= b; j++ {
		f.deref(c.frags[j].src)
	}
	if j < len(c.frags) && c.frags[j].off < b {
		c.frags[j] = c.frags[j].cutTo(b, c.frags[j].end())
	}
	c.frags = slices.Delete(c.frags, i, j)
	return i
}

// mature hands the chunk to the workers when it is ripe.
func (f *File) mature(c *chunk) {
	if c.queued != nil {
		return
	}
	if f.scattered(c) && !f.full(c) {
		f.merge(c)
	}
	if f.ripe(c) {
		c.queued = f.fs.work.push(f, c.idx)
	}
}

// ripe tells whether a block should be made of the chunk: it was filled in
// order, or is in too many pieces.
func (f *File) ripe(c *chunk) bool { return f.full(c) || f.scattered(c) }

// scattered tells whether the chunk is in too many pieces.
func (f *File) scattered(c *chunk) bool { return len(c.frags) > int(f.fs.cfg.ChunkSize/fragSize) }

// full tells whether the chunk was filled in order and not made a block since:
// with one, or parts of one with newer bytes over it, it was full before.
func (f *File) full(c *chunk) bool {
	cs := f.fs.cfg.ChunkSize
	return int64(c.fill) == cs && !slices.ContainsFunc(c.frags, func(g frag) bool {
		return g.src.block.Defined() && int64(g.src.n) == cs
	})
}

// merge makes one of neighbouring small fragments in memory: a file that is
// appended to with an fsync each time gets one each time, and a block for every so
// many would be garbage as soon as it is followed by the next.
func (f *File) merge(c *chunk) {
	most := int32(f.fs.cfg.ChunkSize / mergedPart)
	small := func(g frag) bool { return g.src.buf != nil && g.n < most }
	for i := 0; i < len(c.frags); i++ {
		first := c.frags[i]
		end, j := first.off, i
		for ; j < len(c.frags) && c.frags[j].off == end && small(c.frags[j]); j++ {
			end = c.frags[j].end()
		}
		if j-i < 2 {
			continue
		}
		b, err := f.fs.mem.alloc(int64(end - first.off))
		if err != nil {
			return // then it becomes a block
		}
		src := &source{seq: f.seq, buf: b, n: end - first.off}
		b.used = src.n
		for _, g := range c.frags[i:j] {
			copy(b.data[g.off-first.off:], g.src.mem()[g.skip:g.skip+g.n])
		}
		f.lay(c, first.off, src, 0, src.n)
	}
}

// Truncate sets the size; what is added reads as zeros. Errors: EINVAL.
func (f *File) Truncate(_ context.Context, size int64) error {
	if size < 0 {
		return syscall.EINVAL
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return ErrClosed
	}
	if size == f.size {
		return nil
	}
	f.seq++
	f.metaSeq = f.seq
	if size < f.size {
		f.erase(size, f.size)
		f.visible = hide(f.visible, size, math.MaxInt64)
	}
	f.size = size
	return nil
}

// Punch makes n bytes at off a hole. The size does not change.
func (f *File) Punch(_ context.Context, off, n int64) error {
	if off < 0 || n < 0 {
		return syscall.EINVAL
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return ErrClosed
	}
	end := f.size
	if off < end && n < end-off {
		end = off + n
	}
	if off >= end || n == 0 {
		return nil
	}
	f.seq++
	f.punch(off, end)
	return nil
}

// punch makes [off, end) read as zeros.
func (f *File) punch(off, end int64) {
	f.erase(off, end)
	if overlap(f.visible, off, end) == 0 {
		return
	}
	cs := f.fs.cfg.ChunkSize
	first, last := roundUp(off, cs), end/cs*cs
	if end >= f.size { // the chunk at the end of the file is whole, too
		last = end
	}
	if first >= last {
		f.cover(off, end)
		return
	}
	f.cover(off, first)
	f.cover(last, end)
	f.visible, f.metaSeq = hide(f.visible, first, last), f.seq
	f.limitVisible()
}

// limitVisible turns the shortest gaps between too many visible ranges into
// holes of the overlay.
func (f *File) limitVisible() {
	for len(f.visible) > maxVisible {
		short := 1
		gap := func(i int) int64 { return f.visible[i].Off - f.visible[i-1].Off - f.visible[i-1].Len }
		for i := 2; i < len(f.visible); i++ {
			if gap(i) < gap(short) {
				short = i
			}
		}
		prev, next := f.visible[short-1], f.visible[short]
		v := slices.Clone(f.visible)
		v[short-1].Len = next.Off + next.Len - prev.Off
		f.visible = slices.Delete(v, short, short+1)
		f.counted, f.recount = false, f.recount[:0] // there may be chunks in the gap
		f.cover(prev.Off+prev.Len, next.Off)
	}
}

// roundUp returns the first multiple of n at or after off, or the largest offset.
func roundUp(off, n int64) int64 {
	r := off % n
	if r == 0 {
		return off
	}
	if off > math.MaxInt64-(n-r) {
		return math.MaxInt64
	}
	return off + n - r
}

// cover lays holes over what is visible of the base in [off, end) and not
// under fragments.
func (f *File) cover(off, end int64) {
	var bare []region
	f.regions(f.fs.cfg.ChunkSize, off, end, func(r region) bool {
		if r.base {
			bare = append(bare, r)
		}
		return true
	})
	cs := f.fs.cfg.ChunkSize
	for _, r := range bare {
		for at := r.off; at < r.end; {
			n := min(r.end-at, cs-at%cs)
			c := f.change(at / cs)
			f.lay(c, int32(at%cs), &source{seq: f.seq, n: int32(n), hole: true}, 0, int32(n))
			at += n
			f.mature(c)
		}
	}
}

// erase takes the fragments in [off, end) away.
func (f *File) erase(off, end int64) {
	cs := f.fs.cfg.ChunkSize
	var hit []int64
	f.tab.from(off/cs, func(c *chunk) bool {
		if c.idx*cs >= end {
			return false
		}
		hit = append(hit, c.idx)
		return true
	})
	var from, to int64 = -1, 0 // whole chunks
	for _, idx := range hit {
		start := idx * cs
		a, b := max(off, start)-start, min(end-start, cs)
		c := f.tab.get(idx)
		if whole := a == 0 && (b == cs || len(c.frags) == 0 || int64(c.frags[len(c.frags)-1].end()) <= b); whole {
			for _, g := range c.frags {
				f.deref(g.src)
			}
			f.changed[idx] = f.seq
			f.data -= int64(c.data)
			f.hidden -= int64(c.under)
			if from < 0 {
				from = idx
			}
			to = idx + 1
			continue
		}
		c = f.change(idx)
		f.carve(c, int32(a), int32(b))
		c.fill = min(c.fill, int32(a))
		c.epoch++
	}
	if from >= 0 {
		f.tab.remove(from, to)
	}
}

// Allocate checks that there is room for n bytes at off, and extends the file
// to off+n unless keep. Contents do not change. Errors: ENOSPC, EFBIG, EINVAL.
func (f *File) Allocate(_ context.Context, off, n int64, keep bool) error {
	if off < 0 || n <= 0 {
		return syscall.EINVAL
	}
	if off > math.MaxInt64-n {
		return syscall.EFBIG
	}
	if err := f.fs.room(n); err != nil {
		return fmt.Errorf("content: allocate %d bytes: %w", n, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return ErrClosed
	}
	if !keep && off+n > f.size {
		f.seq++
		f.size, f.metaSeq = off+n, f.seq
	}
	return nil
}
