package store

import (
	"hash/maphash"
	"io"
	"sync"

	"cafs/store/disk"
)

// entry is a block that was put and is not durable yet. Its bytes are in data,
// or in file, and it can be read until drop.
type entry struct {
	key  string // multihash
	name string // file name
	size int64
	sums []uint32 // page checksums, nil for a small block

	mu   sync.RWMutex
	data []byte    // a small block, until it is durable
	file disk.File // a large block's temporary file, until it is durable

	// The rest belongs to whoever runs the batch, or to the put before.
	temp    temp
	written bool // temp holds the bytes
	unnamed bool // temp has no name, or had none: it takes SyncFS to keep that
	renamed bool

	// Guarded by queue.mu.
	batch *batch   // nil when no barrier has it yet
	log   *logFile // where it is durable already; nil when nowhere
}

// bytes returns the whole block; ok is false when it is in the store meanwhile.
func (e *entry) bytes() (b []byte, ok bool, err error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.data != nil || e.size == 0 {
		return e.data, true, nil
	}
	if e.file == nil {
		return nil, false, nil
	}
	b, _ = newPages(e.size)
	n, err := readFull(e.file, b, 0)
	return b[:n], true, err
}

// readAt fills p from off; ok as in bytes.
func (e *entry) readAt(p []byte, off int64) (n int, ok bool, err error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.data != nil {
		n, err = copyRange(p, e.data, off)
		return n, true, err
	}
	if e.file == nil {
		return 0, false, nil
	}
	n, err = e.file.ReadAt(p, off)
	return n, true, err
}

func (e *entry) inMemory() bool { return e.sums == nil }

// drop lets go of the bytes.
func (e *entry) drop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.file != nil {
		e.file.Close() // after its Sync, or of a file to be thrown away
	}
	e.data, e.file = nil, nil
}

// readFull reads len(p) bytes; a file that ends before is io.ErrUnexpectedEOF.
func readFull(f disk.File, p []byte, off int64) (int, error) {
	n, err := f.ReadAt(p, off)
	if n == len(p) {
		return n, nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

const tableStripes = 64

// table finds pending blocks by multihash.
type table struct {
	seed    maphash.Seed
	stripes [tableStripes]struct {
		mu sync.RWMutex
		m  map[string]*entry
	}
}

func (t *table) init() {
	t.seed = maphash.MakeSeed()
	for i := range t.stripes {
		t.stripes[i].m = map[string]*entry{}
	}
}

func (t *table) get(key string) *entry {
	s := &t.stripes[maphash.String(t.seed, key)%tableStripes]
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.m[key]
}

// add tells false when the key is there already.
func (t *table) add(e *entry) bool {
	s := &t.stripes[maphash.String(t.seed, e.key)%tableStripes]
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.m[e.key]; ok {
		return false
	}
	s.m[e.key] = e
	return true
}

func (t *table) remove(e *entry) {
	s := &t.stripes[maphash.String(t.seed, e.key)%tableStripes]
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, e.key)
}

// each calls f for what is in the table, some of which may have left it by then.
func (t *table) each(f func(*entry)) {
	var list []*entry
	for i := range t.stripes {
		s := &t.stripes[i]
		s.mu.RLock()
		list = list[:0]
		for _, e := range s.m {
			list = append(list, e)
		}
		s.mu.RUnlock()
		for _, e := range list {
			f(e)
		}
	}
}
