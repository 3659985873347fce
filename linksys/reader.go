package linksys

import (
	"context"
	"errors"
	"io"
)

// Reader is a position in a File. It is for one goroutine at a time.
type Reader struct {
	ctx context.Context
	f   *File
	off int64
}

// Reader returns a reader at the start of the file. Its reads end with ctx.
func (f *File) Reader(ctx context.Context) *Reader { return &Reader{ctx: ctx, f: f} }

func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := r.f.ReadAt(r.ctx, p, r.off)
	r.off += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// Seek implements io.Seeker.
func (r *Reader) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += r.off
	case io.SeekEnd:
		off += r.f.size
	}
	if off < 0 {
		return r.off, errors.New("linksys: seek before the start of a file")
	}
	r.off = off
	return off, nil
}

// WriteTo writes the rest of the file, slice by slice as the blocks have it.
func (r *Reader) WriteTo(w io.Writer) (int64, error) { return r.write(w, r.f.size) }

// WriteRange writes n bytes from the reader's position, fewer at the end of the
// file, without copying them.
func (r *Reader) WriteRange(w io.Writer, n int64) (int64, error) {
	return r.write(w, min(r.f.size, r.off+max(n, 0)))
}

// viewStep is how much of a file is asked for at a time.
const viewStep = 1 << 20

func (r *Reader) write(w io.Writer, end int64) (int64, error) {
	start := r.off
	for r.off < end {
		err := r.f.each(r.ctx, r.off, min(viewStep, end-r.off), func(p []byte) error {
			n, err := w.Write(p)
			r.off += int64(n)
			return err
		})
		if err != nil {
			return r.off - start, err
		}
	}
	return r.off - start, nil
}
