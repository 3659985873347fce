package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"cafs/store/disk"

	"github.com/ipfs/go-cid"
)

// maxFiles bounds the kept handles of blocks that are read in parts.
const maxFiles = 128

// fileCache keeps open blocks, so that a small read of a large block costs one
// pread. A random idle one gives way to a new one.
type fileCache struct {
	mu   sync.Mutex
	open map[string]*openBlock
}

type openBlock struct {
	disk.File
	size int64
	refs atomic.Int32 // the cache itself holds one
}

func (o *openBlock) release() {
	if o.refs.Add(-1) == 0 {
		o.Close()
	}
}

// get returns a kept handle, to be released, or nil.
func (f *fileCache) get(key string) *openBlock {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.open[key]
	if o != nil {
		o.refs.Add(1)
	}
	return o
}

// add keeps file and returns it, to be released.
func (f *fileCache) add(key string, file disk.File, size int64) *openBlock {
	o := &openBlock{File: file, size: size}
	o.refs.Store(2)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		f.open = map[string]*openBlock{}
	}
	if old := f.open[key]; old != nil {
		old.release()
	} else if len(f.open) >= maxFiles {
		for k, old := range f.open {
			delete(f.open, k)
			old.release()
			break
		}
	}
	f.open[key] = o
	return o
}

// drop forgets a block whose file is another or gone.
func (f *fileCache) drop(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.open[key]; o != nil {
		delete(f.open, key)
		o.release()
	}
}

func (f *fileCache) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, o := range f.open {
		delete(f.open, k)
		o.release()
	}
}

// GetRange implements [RangeGetter]. A part of a large block is checked by page
// checksums; the first read of one whose checksums are not known reads and
// hashes it all.
func (d *Dir) GetRange(ctx context.Context, c cid.Cid, p []byte, off int64) (int, error) {
	if err := d.begin(ctx); err != nil {
		return 0, err
	}
	defer d.leave()
	d.stats.ranges.Add(1)
	n, err := d.readRange(hashKey(c), p, off)
	if err != nil && err != io.EOF {
		return n, fmt.Errorf("store: get %s: %w", c, err)
	}
	return n, err
}

func (d *Dir) readRange(key string, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("offset %d is negative", off)
	}
	if e := d.table.get(key); e != nil {
		n, ok, err := d.readPending(e, p, off)
		if ok || err != nil {
			return n, err
		}
	}
	o := d.files.get(key)
	if o == nil {
		f, size, err := d.openBlock(key)
		if err != nil {
			return 0, err
		}
		if size < PagedBlock {
			defer f.Close()
			b, err := d.readAll(key, f, size)
			if err != nil {
				return 0, err
			}
			return copyRange(p, b, off)
		}
		o = d.files.add(key, f, size)
	}
	defer o.release()
	sums, ok, err := d.pages.load(key)
	if err != nil {
		d.log.Warn("page checksums not read", "block", keyString(key), "err", err)
	}
	if ok && int64(len(sums)) == (o.size+pageSize-1)/pageSize {
		n, err := readPages(o, sums, o.size, p, off)
		if err != errPage {
			d.stats.read.Add(int64(n))
			return n, err
		}
	}
	return d.readHashed(key, o, p, off)
}

// readHashed reads the whole block for a part of it, and keeps its checksums.
func (d *Dir) readHashed(key string, o *openBlock, p []byte, off int64) (int, error) {
	d.pages.drop(key)
	b, err := d.readAll(key, o.File, o.size)
	if err != nil {
		d.files.drop(key)
		return 0, err
	}
	if sums, ok := d.pages.get(key); ok {
		d.pages.save(key, sums)
	}
	return copyRange(p, b, off)
}

// readPending reads a part of a block that is not durable yet; ok is false when
// it is in the store meanwhile.
func (d *Dir) readPending(e *entry, p []byte, off int64) (n int, ok bool, err error) {
	if e.inMemory() {
		return e.readAt(p, off)
	}
	n, err = readPages(pendingReader{e}, e.sums, e.size, p, off)
	switch err {
	case errGone:
		return 0, false, nil
	case errPage:
		return 0, true, d.corrupt(e.key, nil, "page checksum differs")
	}
	return n, true, err
}

var (
	errPage = errors.New("page checksum differs")
	errGone = errors.New("block is not pending any more")
)

// pendingReader reads an entry's temporary file.
type pendingReader struct{ e *entry }

func (r pendingReader) ReadAt(p []byte, off int64) (int, error) {
	n, ok, err := r.e.readAt(p, off)
	if !ok {
		return 0, errGone
	}
	return n, err
}

var scratch = sync.Pool{New: func() any { return new([]byte) }}

// readPages reads the pages around [off, off+len(p)) of a block of size bytes
// and checks each; errPage when one differs or the file is shorter.
func readPages(r io.ReaderAt, sums []uint32, size int64, p []byte, off int64) (int, error) {
	if off >= size {
		return 0, io.EOF
	}
	end := min(off+int64(len(p)), size)
	first, last := off/pageSize, (end+pageSize-1)/pageSize
	from, to := first*pageSize, min(last*pageSize, size)
	buf := p
	direct := from == off && to == end
	if !direct {
		s := scratch.Get().(*[]byte)
		defer scratch.Put(s)
		if int64(cap(*s)) < to-from {
			*s = make([]byte, to-from)
		}
		buf = *s
	}
	buf = buf[:to-from]
	if n, err := r.ReadAt(buf, from); n < len(buf) {
		if err == nil || err == io.EOF {
			err = errPage
		}
		return 0, err
	}
	if !sumsMatch(sums[first:last], buf) {
		return 0, errPage
	}
	n := int(end - off)
	if !direct {
		copy(p, buf[off-from:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
