package disk

import (
	"io"
	"io/fs"
	"slices"
	"syscall"
)

// pageSize is the unit in which a crash keeps or loses bytes.
const pageSize = 4096

// memPages is the content of a file, now and after a crash.
type memPages struct {
	size        int64
	durableSize int64
	sizes       []int64 // sizes since the last sync, oldest first
	pages       map[int64]*page
}

// page holds one page as callers see it and as it is durable; both may be the
// same array, which is then not written to any more. nil means zeros.
type page struct {
	now, durable *[pageSize]byte
	edits        []edit // from durable to now
	gone         bool   // cut off by a truncation that is not durable; takes no room
}

// edit is one write to a page; nil data zeroes the page from off on.
type edit struct {
	off  int
	data []byte
}

func newMemPages() *memPages { return &memPages{pages: map[int64]*page{}} }

func (p *page) apply(to *[pageSize]byte, e edit) {
	if e.data == nil {
		clear(to[e.off:])
	} else {
		copy(to[e.off:], e.data)
	}
}

// edit changes a page and remembers the change for a crash.
func (m *memPages) edit(idx int64, e edit) {
	p := m.pages[idx]
	if p == nil {
		p = &page{}
		m.pages[idx] = p
	}
	if p.now == nil {
		p.now = new([pageSize]byte)
	} else if p.now == p.durable {
		copied := *p.now
		p.now = &copied
	}
	p.apply(p.now, e)
	p.edits = append(p.edits, e)
	p.gone = false
}

func (m *memPages) setSize(size int64) {
	if size != m.size {
		m.size = size
		m.sizes = append(m.sizes, size)
	}
}

// truncate changes the size; bytes beyond it read as zeros should it grow again.
func (m *memPages) truncate(size int64) {
	for idx, p := range m.pages {
		start := idx * pageSize
		switch {
		case start+pageSize <= size:
		case start >= size && p.durable == nil:
			delete(m.pages, idx)
		case start < m.size:
			m.edit(idx, edit{off: int(max(0, size-start))})
			p.gone = start >= size
		}
	}
	m.setSize(size)
}

// sync makes bytes and size durable.
func (m *memPages) sync() {
	for idx, p := range m.pages {
		if p.gone {
			delete(m.pages, idx)
		} else if len(p.edits) > 0 {
			p.durable, p.edits = p.now, nil
		}
	}
	m.durableSize, m.sizes = m.size, nil
}

// forget does what Linux does after a failed write-out: it takes the pages for
// clean, so that later syncs do not write them, although they are not durable.
func (m *memPages) forget() {
	for _, p := range m.pages {
		p.edits = nil
	}
	m.sizes = nil
}

// takes tells whether the page idx has its room already.
func (m *memPages) takes(idx int64) bool {
	p := m.pages[idx]
	return p != nil && !p.gone
}

func (m *memPages) allocated() int64 {
	var n int64
	for _, p := range m.pages {
		if !p.gone {
			n += pageSize
		}
	}
	return n
}

// memFile is an open file of a Mem.
type memFile struct {
	w           *world
	n           *node
	name        string
	read, write bool
	closed      bool
	told        int // of node.lost
}

func (f *memFile) begin(op string, allowed bool, off int64) (func(), error) {
	f.w.mu.Lock()
	var err error
	switch {
	case f.closed:
		err = fs.ErrClosed
	case !allowed:
		err = syscall.EBADF
	case off < 0:
		err = syscall.EINVAL
	default:
		return f.w.mu.Unlock, nil
	}
	f.w.mu.Unlock()
	return nil, pathErr(op, f.name, err)
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	end, err := f.begin("read", f.read, off)
	if err != nil {
		return 0, err
	}
	defer end()
	m := f.n.file
	want := len(p)
	p = p[:max(0, min(int64(want), m.size-off))]
	for done := 0; done < len(p); {
		at := off + int64(done)
		part := p[done:min(len(p), done+int(pageSize-at%pageSize))]
		if pg := m.pages[at/pageSize]; pg != nil && pg.now != nil {
			copy(part, pg.now[at%pageSize:])
		} else {
			clear(part)
		}
		done += len(part)
	}
	if len(p) < want {
		return len(p), io.EOF
	}
	return len(p), nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	end, err := f.begin("write", f.write, off)
	if err != nil {
		return 0, err
	}
	defer end()
	if err := f.w.reserve(f.n.file, off, int64(len(p))); err != nil {
		return 0, pathErr("write", f.name, err)
	}
	m := f.n.file
	for done := 0; done < len(p); {
		at := off + int64(done)
		part := p[done:min(len(p), done+int(pageSize-at%pageSize))]
		m.edit(at/pageSize, edit{off: int(at % pageSize), data: slices.Clone(part)})
		done += len(part)
	}
	m.setSize(max(m.size, off+int64(len(p))))
	f.w.dirty[f.n] = true
	return len(p), nil
}

func (f *memFile) Truncate(size int64) error {
	end, err := f.begin("truncate", true, size)
	if err != nil {
		return err
	}
	defer end()
	if !f.write {
		return pathErr("truncate", f.name, syscall.EINVAL) // as ftruncate(2)
	}
	f.w.resize(f.n, size)
	return nil
}

func (f *memFile) Sync() error {
	end, err := f.begin("sync", true, 0)
	if err != nil {
		return err
	}
	defer end()
	f.n.file.sync()
	delete(f.w.dirty, f.n)
	if f.told < f.n.lost {
		f.tell()
		return pathErr("sync", f.name, syscall.EIO)
	}
	return nil
}

// tell notes that this handle was told of all failures so far.
func (f *memFile) tell() { f.told, f.n.told = f.n.lost, f.n.lost }

// forget is called by Fault in place of a Sync that it lets fail.
func (f *memFile) forget() {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.n.file.forget()
	f.n.lost++
	f.tell()
}

func (f *memFile) WriteOut(off, n int64) error {
	end, err := f.begin("writeout", true, off)
	if err != nil {
		return err
	}
	end()
	return nil
}

func (f *memFile) Allocate(off, n int64, keepSize bool) error {
	end, err := f.begin("allocate", f.write, off)
	if err != nil {
		return err
	}
	defer end()
	if n <= 0 {
		return pathErr("allocate", f.name, syscall.EINVAL)
	}
	m := f.n.file
	if err := f.w.reserve(m, off, n); err != nil {
		return pathErr("allocate", f.name, err)
	}
	for idx := off / pageSize; idx*pageSize < off+n; idx++ {
		if p := m.pages[idx]; p == nil {
			m.pages[idx] = &page{}
		} else {
			p.gone = false
		}
	}
	if !keepSize {
		m.setSize(max(m.size, off+n))
	}
	f.w.dirty[f.n] = true
	return nil
}

func (f *memFile) Size() (int64, error) {
	end, err := f.begin("stat", true, 0)
	if err != nil {
		return 0, err
	}
	defer end()
	return f.n.file.size, nil
}

func (f *memFile) Close() error {
	end, err := f.begin("close", true, 0)
	if err != nil {
		return err
	}
	defer end()
	f.closed = true
	f.n.handles--
	f.w.release(f.n)
	return nil
}

// reserve takes the room that writing n bytes at off needs, or fails with
// ENOSPC and takes none.
func (w *world) reserve(m *memPages, off, n int64) error {
	var need int64
	for idx := off / pageSize; idx*pageSize < off+n; idx++ {
		if !m.takes(idx) {
			need += pageSize
		}
	}
	if w.capacity > 0 && need > 0 && w.used+need > w.capacity {
		return syscall.ENOSPC
	}
	w.used += need
	return nil
}

// resize truncates or extends a file. Pages wholly beyond the new size give
// their room back, though a crash may still bring them back.
func (w *world) resize(n *node, size int64) {
	before := n.file.allocated()
	n.file.truncate(size)
	w.used += n.file.allocated() - before
	w.dirty[n] = true
}
