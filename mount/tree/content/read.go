package content

import (
	"context"
	"io"
	"math"

	"github.com/ipfs/go-cid"
)

// ReadAt reads len(p) bytes at off; fewer, with io.EOF, only at the end of the
// file. Errors: ErrDamaged, and those of the base and of the block store.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	for try := 0; ; try++ {
		f.mu.RLock()
		seq := f.seq
		n, err := f.readView(ctx, &f.view, p, off, true)
		if err == nil || isEOF(err) || ctx.Err() != nil || try == 3 {
			return n, err
		}
		// A block may have been collected because a write at the same time
		// made it garbage; then the file has changed.
		f.mu.RLock()
		same := f.seq == seq
		f.mu.RUnlock()
		if same {
			return n, err
		}
	}
}

// readView reads from v. The caller holds f.mu for reading; it is released
// before any I/O. What is in memory may be written in place once the mutex is
// released unless v is a cut's, so live asks to copy it before.
func (f *File) readView(ctx context.Context, v *view, p []byte, off int64, live bool) (int, error) {
	if off < 0 || off >= v.size {
		f.mu.RUnlock()
		return 0, io.EOF
	}
	var eof error
	if int64(len(p)) > v.size-off {
		p, eof = p[:v.size-off], io.EOF
	}
	var few [4]piece
	pieces := f.pieces(few[:0], v, p, off, live)
	base := v.base
	f.mu.RUnlock()
	err := f.fetch(ctx, pieces, base)
	if err != nil {
		return 0, err
	}
	return len(p), eof
}

// pieces appends the parts of p, the content of v at off, that are to be
// fetched; zeros are filled in, and so is what is in memory when live.
func (f *File) pieces(to []piece, v *view, p []byte, off int64, live bool) []piece {
	v.regions(f.fs.cfg.ChunkSize, off, off+int64(len(p)), func(r region) bool {
		dst := p[r.off-off : r.end-off]
		switch {
		case r.base:
			to = append(to, piece{dst: dst, base: true, skip: r.off})
		case r.hole():
			clear(dst)
		case live && r.src.buf != nil:
			copy(dst, r.src.mem()[r.skip:])
		default:
			to = append(to, pieceOf(r.src, r.skip, dst))
		}
		return true
	})
	return to
}

// fetch reads the pieces and gives up what they hold.
func (f *File) fetch(ctx context.Context, pieces []piece, base cid.Cid) (err error) {
	var b Base
	for i := range pieces {
		p := &pieces[i]
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && p.base && b == nil {
			b, err = f.openBase(ctx, base)
		}
		if err == nil {
			err = f.fs.read(ctx, p, b)
		}
		p.done(f.fs.mem)
	}
	return err
}

// ReadAt reads the content as of the cut, like [File.ReadAt].
func (c *Cut) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	c.f.mu.RLock()
	if c.ended {
		c.f.mu.RUnlock()
		return 0, ErrEnded
	}
	return c.f.readView(ctx, &c.view, p, off, false)
}

// NextData returns the first offset at or after off that is data, or the size.
func (f *File) NextData(ctx context.Context, off int64) (int64, error) {
	return f.next(ctx, off, false)
}

// NextHole returns the first offset at or after off that is a hole; the end of the file is one.
func (f *File) NextHole(ctx context.Context, off int64) (int64, error) {
	return f.next(ctx, off, true)
}

// next finds the first byte at or after off that is in a hole, or is not.
func (f *File) next(ctx context.Context, off int64, hole bool) (int64, error) {
	for {
		f.mu.RLock()
		size, base := f.size, f.base
		found, ask := int64(-1), region{}
		f.regions(f.fs.cfg.ChunkSize, off, math.MaxInt64, func(r region) bool {
			switch {
			case r.base:
				ask = r
			case r.hole() == hole:
				found = r.off
			default:
				return true
			}
			return false
		})
		f.mu.RUnlock()
		if found >= 0 {
			return found, nil
		}
		if !ask.base {
			return size, nil
		}
		b, err := f.openBase(ctx, base)
		if err != nil {
			return 0, err
		}
		next := b.NextData
		if hole {
			next = b.NextHole
		}
		at, err := next(ctx, ask.off)
		if err != nil || at < ask.end {
			return at, err
		}
		off = ask.end
	}
}
