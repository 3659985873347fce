package store

import (
	"context"
	"fmt"
	"io"
	"iter"
	"sync"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// Mem is a store in memory, for tests and small jobs. Nothing of it is durable;
// Sync and Flush succeed at once.
type Mem struct {
	mu     sync.RWMutex
	blocks map[string][]byte
}

// NewMem returns an empty store.
func NewMem() *Mem { return &Mem{blocks: map[string][]byte{}} }

func (m *Mem) find(op string, c cid.Cid) ([]byte, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	b, ok := m.blocks[hashKey(c)]
	if !ok {
		return nil, fmt.Errorf("store: %s %s: %w", op, c, ErrNotFound)
	}
	return b, nil
}

// Get implements [Getter].
func (m *Mem) Get(ctx context.Context, c cid.Cid) ([]byte, error) { return m.find("get", c) }

// GetRange implements [RangeGetter].
func (m *Mem) GetRange(ctx context.Context, c cid.Cid, p []byte, off int64) (int, error) {
	b, err := m.find("get", c)
	if err != nil {
		return 0, err
	}
	return copyRange(p, b, off)
}

// copyRange is ReadAt on a slice.
func copyRange(p, b []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(b)) {
		off = int64(len(b))
	}
	n := copy(p, b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Put implements [Putter].
func (m *Mem) Put(ctx context.Context, c cid.Cid, block []byte) error {
	if err := CheckPut(c, block); err != nil {
		return err
	}
	key := hashKey(c)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.blocks[key]; !ok {
		m.blocks[key] = append(make([]byte, 0, len(block)), block...)
	}
	return nil
}

// Has implements [Haser].
func (m *Mem) Has(ctx context.Context, c cid.Cid) (bool, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, ok := m.blocks[hashKey(c)]
	return ok, nil
}

// Size implements [Sizer].
func (m *Mem) Size(ctx context.Context, c cid.Cid) (int64, error) {
	b, err := m.find("size", c)
	return int64(len(b)), err
}

// Sync implements [Syncer].
func (m *Mem) Sync(ctx context.Context) error { return ctx.Err() }

// Flush implements [Flusher].
func (m *Mem) Flush(ctx context.Context, cids []cid.Cid) error { return ctx.Err() }

// All implements [Enumerator]. It lists what was there when it began.
func (m *Mem) All(ctx context.Context) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		m.mu.RLock()
		entries := make([]Entry, 0, len(m.blocks))
		for k, b := range m.blocks {
			entries = append(entries, Entry{mh.Multihash(k), int64(len(b))})
		}
		m.mu.RUnlock()
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				yield(Entry{}, err)
				return
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// Delete implements [Deleter].
func (m *Mem) Delete(ctx context.Context, h mh.Multihash) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.blocks, string(h))
	return nil
}

// Close frees the blocks.
func (m *Mem) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.blocks)
	return nil
}
