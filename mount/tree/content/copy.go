package content

import (
	"context"
	"math"
	"syscall"

	"github.com/ipfs/go-cid"
)

const (
	copyStep = 1 << 20 // bytes copied at a time
	// minShare is the least number of bytes for which a reference to a leaf is
	// better than a copy.
	minShare = 16 << 10
)

// CopyFrom copies n bytes at srcOff of src to off. Leaf blocks are shared; what
// is not in blocks is copied. The ranges must not overlap when src is f. What
// lies beyond the end of src is not copied; the number of bytes copied is returned, also
// with an error. Errors: EINVAL, EFBIG, ENOSPC, those of ReadAt.
func (f *File) CopyFrom(ctx context.Context, src *File, srcOff, off, n int64) (int64, error) {
	if srcOff < 0 || off < 0 || n < 0 || (src == f && srcOff < off+n && off < srcOff+n) {
		return 0, syscall.EINVAL
	}
	if n = min(n, src.Size()-srcOff); n <= 0 {
		return 0, nil
	}
	if off > math.MaxInt64-n {
		return 0, syscall.EFBIG
	}
	var done int64
	for done < n {
		k, err := f.copySome(ctx, src, srcOff+done, off+done, n-done)
		done += k
		if err != nil || k == 0 {
			return done, err
		}
	}
	return done, nil
}

// shared is a range of a leaf; see source for own and tsize.
type shared struct {
	leaf    cid.Cid
	skip, n int64
	length  int64 // of the leaf's content, if whole
	whole   bool
	own     bool
	tsize   uint64
}

// copySome copies the first region at srcOff, or a part of it.
func (f *File) copySome(ctx context.Context, src *File, srcOff, off, n int64) (int64, error) {
	var r region
	var sh shared
	src.mu.RLock()
	end := srcOff + n
	base := src.base
	src.regions(f.fs.cfg.ChunkSize, srcOff, end, func(first region) bool {
		r = first
		if s := r.src; s != nil && s.block.Defined() {
			sh = shared{leaf: s.block, skip: int64(r.skip), n: r.end - r.off, length: int64(s.n), whole: s.whole, own: s.own, tsize: s.tsize}
		}
		return false
	})
	src.mu.RUnlock()
	n = r.end - r.off
	if n <= 0 {
		return 0, nil // it was truncated meanwhile
	}
	if r.hole() {
		return n, f.copyHole(off, n)
	}
	if r.base {
		b, err := src.openBase(ctx, base)
		if err != nil {
			return 0, err
		}
		leaf, start, length, err := b.Leaf(ctx, r.off)
		if err != nil {
			return 0, err
		}
		skip := r.off - start
		n = min(n, length-skip)
		if skip >= 0 && n > 0 && leaf.Defined() && length <= maxRecord {
			sh = shared{leaf: leaf, skip: skip, n: n, length: length, whole: true, own: f.fs.isOwn(leaf), tsize: uint64(length)}
		}
	}
	if sh.leaf.Defined() && n >= minShare {
		return n, f.showLeaf(sh, off)
	}
	return f.copyBytes(ctx, src, r.off, off, min(max(n, 1), copyStep))
}

func (f *File) copyBytes(ctx context.Context, src *File, srcOff, off, n int64) (int64, error) {
	b := getScratch(int(n))
	defer putScratch(b)
	k, err := src.ReadAt(ctx, *b, srcOff)
	if err != nil && !isEOF(err) {
		return 0, err
	}
	if k == 0 {
		return 0, nil
	}
	if err := f.WriteAt(ctx, (*b)[:k], off); err != nil {
		return 0, err
	}
	return int64(k), nil
}

// copyHole makes n bytes at off zeros, extending the file.
func (f *File) copyHole(off, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return ErrClosed
	}
	f.seq++
	if end := min(off+n, f.size); off < end {
		f.punch(off, end)
	}
	if off+n > f.size {
		f.size, f.metaSeq = off+n, f.seq
	}
	return nil
}

// showLeaf shows a range of a leaf at off.
func (f *File) showLeaf(sh shared, off int64) error {
	if err := f.fs.room(0); err != nil {
		return err
	}
	cs := f.fs.cfg.ChunkSize
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return ErrClosed
	}
	for sh.n > 0 {
		at := off % cs
		n := min(sh.n, cs-at)
		f.seq++
		c := f.change(off / cs)
		c.used = f.fs.clock.Add(1)
		// It may be in a block that is not flushed yet: so is the new source.
		src := &source{
			seq: f.seq, n: int32(sh.skip + n), frozen: true, block: sh.leaf,
			whole: sh.whole && sh.skip+n == sh.length, own: sh.own, tsize: sh.tsize,
		}
		f.lay(c, int32(at), src, int32(sh.skip), int32(n))
		if at <= int64(c.fill) {
			c.fill = max(c.fill, int32(at+n))
		}
		f.mature(c)
		sh.skip, sh.n, off = sh.skip+n, sh.n-n, off+n
		if off > f.size {
			f.size, f.metaSeq = off, f.seq
		}
	}
	return nil
}
