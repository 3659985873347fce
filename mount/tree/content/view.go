package content

import (
	"context"
	"fmt"
	"sort"

	"cafs/mount/tree/index"

	"github.com/ipfs/go-cid"
)

// view is the content of a file at a moment: an overlay of chunks over the
// visible ranges of a base. A byte that neither shows is zero.
type view struct {
	tab      table
	size     int64
	base     cid.Cid
	baseSize int64
	baseData int64
	visible  []index.Range // replaced, never changed in place
}

func (v *view) content() index.Content {
	return index.Content{Base: v.base, BaseSize: v.baseSize, BaseData: v.baseData, Size: v.size, Visible: v.visible}
}

// region is a maximal range [off, end) of one origin: a fragment (src is not
// nil, skip tells where in it), the base, or nothing.
type region struct {
	off, end int64
	src      *source
	skip     int32
	base     bool
}

// hole tells whether the region is known to be zeros.
func (r region) hole() bool { return !r.base && (r.src == nil || r.src.hole) }

// regions visits the regions of [off, end) in order, up to size. The caller
// holds the file's mutex. However large a range without chunks is, it is one region
// or one for each visible range.
func (v *view) regions(chunkSize, off, end int64, yield func(region) bool) {
	end = min(end, v.size)
	at := off
	gap := func(to int64) bool {
		ok := at >= to || v.under(at, to, yield)
		at = max(at, to)
		return ok
	}
	if at < end {
		v.tab.from(at/chunkSize, func(c *chunk) bool {
			start := c.idx * chunkSize
			if start >= end {
				return false
			}
			for _, g := range c.frags {
				a, b := max(start+int64(g.off), at), min(start+int64(g.end()), end)
				if a >= b {
					continue
				}
				if !gap(a) || !yield(region{off: a, end: b, src: g.src, skip: g.skip + int32(a-start) - g.off}) {
					at = end + 1
					return false
				}
				at = b
			}
			return true
		})
	}
	if at <= end {
		gap(end)
	}
}

// under visits the regions of [a, b) below the overlay.
func (v *view) under(a, b int64, yield func(region) bool) bool {
	i := sort.Search(len(v.visible), func(i int) bool { return v.visible[i].Off+v.visible[i].Len > a })
	for ; a < b && i < len(v.visible); i++ {
		r := v.visible[i]
		if r.Off >= b {
			break
		}
		if r.Off > a {
			if !yield(region{off: a, end: r.Off}) {
				return false
			}
			a = r.Off
		}
		to := min(b, r.Off+r.Len)
		if !yield(region{off: a, end: to, base: true}) {
			return false
		}
		a = to
	}
	return a >= b || yield(region{off: a, end: b})
}

// hide takes [a, b) out of the visible ranges.
func hide(visible []index.Range, a, b int64) []index.Range {
	out := make([]index.Range, 0, len(visible)+1)
	for _, r := range visible {
		end := r.Off + r.Len
		if end <= a || r.Off >= b {
			out = append(out, r)
			continue
		}
		if r.Off < a {
			out = append(out, index.Range{Off: r.Off, Len: a - r.Off})
		}
		if end > b {
			out = append(out, index.Range{Off: b, Len: end - b})
		}
	}
	return out
}

// overlap returns how many bytes of [a, b) are visible.
func overlap(visible []index.Range, a, b int64) (n int64) {
	i := sort.Search(len(visible), func(i int) bool { return visible[i].Off+visible[i].Len > a })
	for ; i < len(visible) && visible[i].Off < b; i++ {
		n += min(b, visible[i].Off+visible[i].Len) - max(a, visible[i].Off)
	}
	return n
}

// piece is a part of a read that needs I/O. It keeps the memory or segment it
// refers to until done is called, so the file's mutex need not be held.
type piece struct {
	dst   []byte
	buf   *buf // bytes in memory: mem is part of it
	mem   []byte
	place *place // bytes in a staging record
	block cid.Cid
	skip  int64 // where the bytes are in the record, block or base
	base  bool
}

// pieceOf refers to len(dst) bytes of src from skip on. The caller holds the file's mutex.
func pieceOf(src *source, skip int32, dst []byte) piece {
	p := piece{dst: dst, skip: int64(skip)}
	switch {
	case src.buf != nil:
		p.buf, p.mem = src.buf.hold(), src.mem()[skip:]
	case src.block.Defined():
		p.block = src.block
	case src.place != nil:
		p.place = src.place
		p.place.seg.ref()
	}
	return p
}

func (p *piece) done(m *memory) {
	if p.buf != nil {
		m.release(p.buf)
	}
	if p.place != nil {
		p.place.seg.unref()
	}
}

// read fills p.dst.
func (fs *Files) read(ctx context.Context, p *piece, base Base) error {
	switch {
	case p.buf != nil:
		copy(p.dst, p.mem)
		return nil
	case p.place != nil:
		return fs.staging.read(p.place, p.dst, p.skip)
	case p.block.Defined():
		return fs.readBlock(ctx, p.block, p.dst, p.skip)
	case p.base:
		n, err := base.ReadAt(ctx, p.dst, p.skip)
		if n == len(p.dst) {
			return nil
		}
		if err == nil || isEOF(err) {
			// The base is shorter than its record says.
			return fmt.Errorf("%w: base ends at %d", ErrDamaged, p.skip+int64(n))
		}
		return err
	}
	clear(p.dst)
	return nil
}

// rangeGetter is what a store offers that can check a part of a block.
type rangeGetter interface {
	GetRange(ctx context.Context, c cid.Cid, p []byte, off int64) (int, error)
}

// sizer tells the length of a block without reading it.
type sizer interface {
	Size(ctx context.Context, c cid.Cid) (int64, error)
}

// isOwn tells whether c names a leaf as Config.Leaf makes them, whoever made this one.
func (fs *Files) isOwn(c cid.Cid) bool {
	return fs.raw.Codec == cid.Raw && c.Prefix() == fs.raw
}

func (fs *Files) readBlock(ctx context.Context, c cid.Cid, p []byte, skip int64) error {
	if fs.ranges != nil && c.Prefix().Codec == cid.Raw {
		n, err := fs.ranges.GetRange(ctx, c, p, skip)
		if n == len(p) {
			return nil
		}
		if err == nil || isEOF(err) {
			return fmt.Errorf("%w: leaf %s ends at %d", ErrDamaged, c, skip+int64(n))
		}
		return fmt.Errorf("content: leaf %s: %w", c, err)
	}
	data, err := fs.cfg.LeafData(ctx, c)
	if err != nil {
		return fmt.Errorf("content: leaf %s: %w", c, err)
	}
	if skip+int64(len(p)) > int64(len(data)) {
		return fmt.Errorf("%w: leaf %s ends at %d", ErrDamaged, c, len(data))
	}
	copy(p, data[skip:])
	return nil
}
