package content

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	minClass = 9       // log2 of the smallest buffer: 512 bytes
	slabSize = 1 << 20 // buffers are carved from slabs of at least this many bytes
	keepFree = 64      // empty slabs kept for reuse
)

// memory hands out buffers for unsaved bytes and holds back those who need more
// than the limit. Buffers live outside the Go heap: they would double the heap's
// target, and have explicit owners anyway.
//
// Who waits in reserve holds no locks, and what frees memory never waits for
// memory: the limit may be passed by what is being written at that moment, so
// that nobody waits for a buffer in the middle of a change.
type memory struct {
	limit    int64
	slabSize int64
	pressed  func() // called without locks when memory should be freed
	heap     bool   // slabs come from the Go heap, which the race detector watches
	poison   bool   // freed buffers are overwritten, so that tests see late reads

	mu       sync.Mutex
	used     int64 // bytes in buffers, each counted with its class
	reserved int64 // bytes promised to writers
	waiters  []*waiter
	classes  [32][]*slab // slabs with free slots, by class
	empty    []*slab
	closed   bool
	freed    chan struct{} // closed when memory comes back; nil: nobody was told of it
}

type waiter struct {
	n    int64
	done chan error // buffered
}

// slab is a piece of memory cut into buffers of one class.
type slab struct {
	data  []byte
	class int
	free  []int32 // offsets of free slots
	used  int
	at    int // position in memory.classes[class], or -1
}

// buf is a buffer. It is freed when the last reference is given back.
type buf struct {
	data []byte // all of it; its length is its class
	used int32  // bytes handed out from the front; guarded by the mutex of the file
	refs atomic.Int32
	slab *slab
	off  int32
}

func newMemory(limit, chunk int64, pressed func()) *memory {
	return &memory{limit: limit, slabSize: max(slabSize, int64(1)<<classOf(chunk)), pressed: pressed}
}

func classOf(n int64) int { return max(minClass, bits.Len64(uint64(n-1))) }

// reserve waits until n bytes may be written; first come, first served.
func (m *memory) reserve(ctx context.Context, n int64) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrClosed
	}
	if len(m.waiters) == 0 && m.fits(n) {
		m.reserved += n
		press := m.used+m.reserved > m.limit/4*3
		m.mu.Unlock()
		if press {
			m.pressed()
		}
		return nil
	}
	w := &waiter{n: n, done: make(chan error, 1)}
	m.waiters = append(m.waiters, w)
	m.mu.Unlock()
	m.pressed()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, o := range m.waiters {
		if o == w {
			m.waiters = append(m.waiters[:i], m.waiters[i+1:]...)
			m.grant()
			return ctx.Err()
		}
	}
	if err := <-w.done; err == nil { // granted at the same moment
		m.reserved -= n
		m.grant()
	}
	return ctx.Err()
}

// fits tells whether n more bytes are within the limit. What is larger than the
// limit by itself gets through alone.
func (m *memory) fits(n int64) bool {
	return m.used+m.reserved+n <= m.limit || m.used+m.reserved == 0
}

// grant lets the first waiters pass.
func (m *memory) grant() {
	for len(m.waiters) > 0 && m.fits(m.waiters[0].n) {
		m.reserved += m.waiters[0].n
		m.waiters[0].done <- nil
		m.waiters = m.waiters[1:]
	}
}

// unreserve gives a reservation back: its bytes are in buffers by now.
func (m *memory) unreserve(n int64) {
	m.mu.Lock()
	m.reserved -= n
	m.grant()
	m.signal()
	m.mu.Unlock()
}

// fail ends the waits of all who wait now: nothing can be freed because of err.
func (m *memory) fail(err error) {
	m.mu.Lock()
	for _, w := range m.waiters {
		w.done <- err
	}
	m.waiters = nil
	m.mu.Unlock()
}

func (m *memory) signal() {
	if m.freed != nil {
		close(m.freed)
		m.freed = nil
	}
}

// nudge makes the spiller look again: bytes that were being worked on are not any more.
func (m *memory) nudge() {
	m.mu.Lock()
	m.signal()
	m.mu.Unlock()
}

func (m *memory) inUse() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

// excess returns how many bytes are in use above the low mark, whether somebody
// waits, and a channel that is closed when memory comes back.
func (m *memory) excess() (n int64, waiting bool, freed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n = m.used + m.reserved - m.limit/2
	if len(m.waiters) > 0 {
		n = max(n, m.waiters[0].n)
	} else if m.used+m.reserved <= m.limit/4*3 {
		n = 0
	}
	if m.freed == nil {
		m.freed = make(chan struct{})
	}
	return n, len(m.waiters) > 0, m.freed
}

// alloc returns a buffer of at least n bytes with one reference. Its content is
// undefined.
func (m *memory) alloc(n int64) (*buf, error) {
	class := classOf(n)
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.slab(class)
	if err != nil {
		return nil, err
	}
	off := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.used++
	if len(s.free) == 0 {
		m.unlist(s)
	}
	m.used += int64(1) << class
	b := &buf{data: s.data[off : int64(off)+1<<class : int64(off)+1<<class], slab: s, off: off}
	b.refs.Store(1)
	return b, nil
}

// slab returns a slab of the class with a free slot.
func (m *memory) slab(class int) (*slab, error) {
	if l := m.classes[class]; len(l) > 0 {
		return l[len(l)-1], nil
	}
	var s *slab
	if n := len(m.empty); n > 0 {
		s, m.empty = m.empty[n-1], m.empty[:n-1]
	} else {
		s = new(slab)
		if m.heap {
			s.data = make([]byte, m.slabSize)
		} else {
			data, err := syscall.Mmap(-1, 0, int(m.slabSize), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			if err != nil {
				return nil, fmt.Errorf("content: memory for %d bytes: %w", m.slabSize, err)
			}
			s.data = data
		}
	}
	s.class, s.free = class, s.free[:0]
	for off := m.slabSize - 1<<class; off >= 0; off -= 1 << class {
		s.free = append(s.free, int32(off))
	}
	m.list(s)
	return s, nil
}

func (m *memory) list(s *slab) {
	s.at = len(m.classes[s.class])
	m.classes[s.class] = append(m.classes[s.class], s)
}

func (m *memory) unlist(s *slab) {
	l := m.classes[s.class]
	last := l[len(l)-1]
	l[s.at], last.at = last, s.at
	m.classes[s.class] = l[:len(l)-1]
	s.at = -1
}

// hold takes another reference.
func (b *buf) hold() *buf {
	b.refs.Add(1)
	return b
}

// release gives a reference back.
func (m *memory) release(b *buf) {
	left := b.refs.Add(-1)
	if left > 0 {
		return
	}
	if left < 0 {
		panic("content: buffer freed twice")
	}
	if m.poison {
		for i := range b.data {
			b.data[i] = 0xDB
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := b.slab
	s.free = append(s.free, b.off)
	s.used--
	m.used -= int64(1) << s.class
	if s.at < 0 {
		m.list(s)
	}
	if s.used == 0 {
		m.unlist(s)
		m.putEmpty(s)
	}
	m.grant()
	m.signal()
}

func (m *memory) putEmpty(s *slab) {
	if (len(m.empty) < keepFree && !m.closed) || m.heap {
		m.empty = append(m.empty, s)
		return
	}
	if err := syscall.Munmap(s.data); err != nil {
		panic("content: unmapping a slab: " + err.Error())
	}
}

// close ends all waits and returns free slabs; buffers still held stay valid.
func (m *memory) close() {
	m.fail(ErrClosed)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	empty := m.empty
	m.empty = nil
	for _, s := range empty {
		if !m.heap {
			m.putEmpty(s)
		}
	}
}
