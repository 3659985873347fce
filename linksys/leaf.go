package linksys

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// smallRead: at most one part in this many of a leaf is read on its own.
const smallRead = 4

// readLeaf copies part of a leaf into p, which does not reach beyond it.
func (f *File) readLeaf(ctx context.Context, ref leafRef, p []byte, skip int64, whole bool) error {
	return f.withLeaf(ctx, ref, int64(len(p)), whole, func(data []byte) error {
		if data == nil {
			return f.readRange(ctx, ref, p, skip)
		}
		copy(p, data[skip:])
		return nil
	})
}

// withLeaf calls use with what leafBytes returns, which is valid during the call.
func (f *File) withLeaf(ctx context.Context, ref leafRef, n int64, whole bool, use func([]byte) error) error {
	if f.tracked || ref.data != nil || f.inParts(ref, n, whole) || f.s.isZeroLeaf(ref.c, ref.length) {
		data, err := f.leafBytes(ctx, ref, n, whole)
		if err != nil {
			return err
		}
		return use(data)
	}
	it, err := f.s.cache.borrow(ctx, ref.c)
	if err != nil {
		return err
	}
	defer f.s.cache.giveBack(it)
	if int64(len(it.leaf)) != ref.length {
		return f.sizeError(ref, int64(len(it.leaf)))
	}
	return use(it.leaf)
}

// inParts tells whether n bytes of a leaf are better read on their own: it is a
// large raw block that is neither here nor needed whole.
func (f *File) inParts(ref leafRef, n int64, whole bool) bool {
	return !whole && !f.tracked && f.s.ranges != nil && n*smallRead <= ref.length && !f.s.cache.ready(ref.c)
}

// leafBytes returns all of a leaf, to keep, or nil when it is to be read in parts.
func (f *File) leafBytes(ctx context.Context, ref leafRef, n int64, whole bool) ([]byte, error) {
	if ref.data != nil {
		return ref.data, nil
	}
	if !f.tracked && f.s.isZeroLeaf(ref.c, ref.length) {
		return zeroes(ref.length), nil
	}
	if f.inParts(ref, n, whole) {
		return nil, nil
	}
	it, err := f.load(ctx, ref.c)
	if err != nil {
		return nil, err
	}
	if int64(len(it.leaf)) != ref.length {
		return nil, f.sizeError(ref, int64(len(it.leaf)))
	}
	return it.leaf, nil
}

// readRange reads part of a raw leaf from the store, which checks it page by page.
func (f *File) readRange(ctx context.Context, ref leafRef, p []byte, skip int64) error {
	if ref.t != nil && !ref.t.measured(ref.i) {
		got, err := f.s.size(ctx, ref.c)
		if err != nil {
			return err
		}
		if got != ref.length {
			return f.sizeError(ref, got)
		}
		ref.t.setMeasured(ref.i)
	}
	n, err := f.s.ranges.GetRange(ctx, ref.c, p, skip)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return f.sizeError(ref, skip+int64(n))
	}
	return fmt.Errorf("linksys: block %s: %w", ref.c, err)
}
