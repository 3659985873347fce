package linksys

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys/unixfs"
)

// maxDepth bounds how far a file's leaf may lie below its root. A balanced file
// of 2^63 one-byte leaves at two links per node is 63 deep.
const maxDepth = 128

// File is the content of a file DAG of any layout: balanced, trickle (bytes in
// interior nodes too), any chunking and fan-out, raw and dag-pb leaves, inline
// and identity data. Nodes are resolved when a read needs them. Sizes in nodes
// are believed only after they were compared with what they describe: a child
// that is shorter or longer than its parent says is [unixfs.ErrMalformed], never
// zeros. All methods may be called concurrently; there is nothing to close.
type File struct {
	s    *System
	load loader
	c    cid.Cid
	root *item // nil when the whole file is one raw block that was not read yet
	size int64
	// tracked: every block must go through load, as a whole.
	tracked bool

	mu      sync.Mutex // guards the streams
	streams [maxStreams]stream
	clock   uint64
}

// leafRef is a run of a file's bytes that lies in one block.
type leafRef struct {
	c             cid.Cid
	start, length int64  // within the file
	data          []byte // nil for a raw block not read yet
	t             *table // where it is listed, and at which index; nil for a root
	i             int
}

func (r leafRef) end() int64 { return r.start + r.length }

// OpenFile returns the content of c, a UnixFS file or a raw block. Errors:
// [ErrNotFile], [unixfs.ErrMalformed], store.ErrNotFound, store.ErrCorrupt.
func (s *System) OpenFile(ctx context.Context, c cid.Cid) (*File, error) {
	return s.openFile(ctx, c, s.cache.get)
}

func (s *System) openFile(ctx context.Context, c cid.Cid, load loader) (*File, error) {
	if c.Defined() && c.Prefix().Codec == cid.Raw && c.Prefix().MhType != mh.IDENTITY {
		size, err := s.rawSize(ctx, c)
		return &File{s: s, load: load, c: c, size: size}, err
	}
	for range maxDepth {
		it, err := load(ctx, c)
		if errors.Is(err, ErrNotUnixFS) {
			return nil, fmt.Errorf("linksys: open %s: %w", c, ErrNotFile)
		}
		if err != nil {
			return nil, err
		}
		if it.node != nil && it.node.Type == unixfs.Metadata && len(it.node.Links) == 1 {
			c = it.node.Links[0].Cid // a metadata node wraps the file it describes
			continue
		}
		if it.node != nil && it.file == nil {
			return nil, fmt.Errorf("linksys: open %s: %w", c, ErrNotFile)
		}
		return &File{s: s, load: load, c: c, root: it, size: it.size()}, nil
	}
	return nil, fmt.Errorf("linksys: open %s: metadata nested too deep: %w", c, ErrBudget)
}

// Size returns the length of the content in bytes.
func (f *File) Size() int64 { return f.size }

// Cid returns the root of the file's DAG.
func (f *File) Cid() cid.Cid { return f.c }

// ReadAt reads len(p) bytes at off, fewer only at the end of the file (then
// with io.EOF) or before an error. A missing block is an error that wraps
// store.ErrNotFound and names the CID.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("linksys: read %s at %d: negative offset", f.c, off)
	}
	if off >= f.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), f.size-off))
	whole := f.touch(off, int64(n))
	done := 0
	for done < n {
		ref, err := f.locate(ctx, off+int64(done))
		if err != nil {
			return done, err
		}
		skip := off + int64(done) - ref.start
		m := int(min(int64(n-done), ref.length-skip))
		if err := f.readLeaf(ctx, ref, p[done:done+m], skip, whole); err != nil {
			return done, err
		}
		done += m
	}
	if done < len(p) {
		return done, io.EOF
	}
	return done, nil
}

// View returns n bytes at off, fewer at the end of the file, as slices of the
// blocks that hold them: read-only, valid for as long as referenced. It copies
// nothing that is or becomes cached.
func (f *File) View(ctx context.Context, off, n int64) ([][]byte, error) {
	if off < 0 || off >= f.size {
		return nil, nil
	}
	n = min(n, f.size-off)
	whole := f.touch(off, n)
	var views [][]byte
	for n > 0 {
		ref, err := f.locate(ctx, off)
		if err != nil {
			return views, err
		}
		skip := off - ref.start
		m := min(n, ref.length-skip)
		data, err := f.leafBytes(ctx, ref, m, whole)
		if err != nil {
			return views, err
		}
		if data != nil {
			data = data[skip : skip+m]
		} else {
			data = make([]byte, m)
			if err := f.readRange(ctx, ref, data, skip); err != nil {
				return views, err
			}
		}
		views = append(views, data)
		off, n = off+m, n-m
	}
	return views, nil
}

// each calls use with n bytes at off, piece by piece as the blocks have them;
// they are valid during the call.
func (f *File) each(ctx context.Context, off, n int64, use func([]byte) error) error {
	n = min(n, f.size-off)
	whole := f.touch(off, n)
	for n > 0 {
		ref, err := f.locate(ctx, off)
		if err != nil {
			return err
		}
		skip := off - ref.start
		m := min(n, ref.length-skip)
		err = f.withLeaf(ctx, ref, m, whole, func(data []byte) error {
			if data != nil {
				return use(data[skip : skip+m])
			}
			part := make([]byte, m)
			if err := f.readRange(ctx, ref, part, skip); err != nil {
				return err
			}
			return use(part)
		})
		if err != nil {
			return err
		}
		off, n = off+m, n-m
	}
	return nil
}

// Leaf returns the block that holds the byte at off and the range of the file
// it holds. The block's file bytes are what unixfs.Profile.LeafData returns;
// in a trickle layout it can be an interior node. Past the end: io.EOF.
func (f *File) Leaf(ctx context.Context, off int64) (c cid.Cid, start, length int64, err error) {
	if off < 0 || off >= f.size {
		return cid.Undef, 0, 0, io.EOF
	}
	ref, err := f.locate(ctx, off)
	return ref.c, ref.start, ref.length, err
}

// locate descends to the leaf that holds the byte at off, which is in the file.
func (f *File) locate(ctx context.Context, off int64) (leafRef, error) {
	if f.root == nil {
		return leafRef{c: f.c, length: f.size}, nil
	}
	it, base := f.root, int64(0)
	at := leafRef{c: f.c}
	for range maxDepth {
		if off-base < int64(len(it.leaf)) {
			return leafRef{c: it.c, start: base, length: int64(len(it.leaf)), data: it.leaf, t: at.t, i: at.i}, nil
		}
		t := it.file
		i := t.child(off - base)
		at = leafRef{c: t.cids[i], start: base + t.start(i), t: t, i: i}
		at.length = base + t.ends[i] - at.start
		if p := at.c.Prefix(); p.Codec == cid.Raw && p.MhType != mh.IDENTITY {
			return at, nil
		}
		child, err := f.child(ctx, at)
		if err != nil {
			return leafRef{}, err
		}
		it, base = child, at.start
	}
	return leafRef{}, fmt.Errorf("linksys: file %s is deeper than %d nodes: %w", f.c, maxDepth, ErrBudget)
}

// child loads the node or leaf a parent lists, and holds it to the listed size.
func (f *File) child(ctx context.Context, at leafRef) (*item, error) {
	it, err := f.load(ctx, at.c)
	if err != nil {
		return nil, err
	}
	if it.node != nil && it.file == nil {
		return nil, fmt.Errorf("linksys: file %s: part %s is no file: %w", f.c, at.c, unixfs.ErrMalformed)
	}
	if it.size() != at.length {
		return nil, f.sizeError(at, it.size())
	}
	return it, nil
}

func (f *File) sizeError(at leafRef, got int64) error {
	return fmt.Errorf("linksys: file %s: part %s at %d has %d bytes, its parent says %d: %w",
		f.c, at.c, at.start, got, at.length, unixfs.ErrMalformed)
}
