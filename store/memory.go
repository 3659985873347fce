package store

import (
	"strings"
	"sync"
	"unsafe"
)

// allocator finds memory for a block of size bytes: a slice of that length, and
// how to give it back, nil when the garbage collector sees to that. The memory
// of a large block is whole pages.
type allocator func(size int64) (b []byte, release func())

// newPages makes new memory. The Go heap gives slices of this size whole pages.
// It is not cleared, which would take as long as half of reading the block into
// it: whoever asked for it hands out no more than was read.
func newPages(size int64) ([]byte, func()) {
	if size < largeBlock {
		return make([]byte, size), nil
	}
	// The only memory of Go that is not cleared is that of a growing string.
	var text strings.Builder
	n := int(roundPages(size))
	text.Grow(n)
	text.WriteByte(0)
	return unsafe.Slice(unsafe.StringData(text.String()), n)[:size], nil
}

func roundPages(size int64) int64 { return (size + pageSize - 1) / pageSize * pageSize }

// lentStep is the difference of two sizes of lent memory, and its smallest size.
const lentStep = 64 << 10

// lent is memory that was given back, by size. What a garbage collection finds
// there goes.
var lent [MaxBlock/lentStep + 1]sync.Pool

// lentPages takes memory that was used before, which spares clearing it and
// asking the kernel for it: half the time of reading a block from memory.
func lentPages(size int64) ([]byte, func()) {
	if size < largeBlock {
		return make([]byte, size), nil
	}
	class := (size + lentStep - 1) / lentStep
	p, _ := lent[class].Get().(*[]byte)
	if p == nil {
		b, _ := newPages(class * lentStep)
		p = &b
	}
	return (*p)[:size], func() { lent[class].Put(p) }
}
