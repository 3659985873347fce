package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"cafs/shard"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// Delete implements [Deleter]. A missing block is no error. A pending block is
// made durable first, so that the order of a put and a delete is that of the
// calls. Collectors that run beside writers use [Dir.Sweep].
func (d *Dir) Delete(ctx context.Context, h mh.Multihash) error {
	_, err := d.remove(ctx, string(h), nil)
	return err
}

// Sweep is one run of a collector: between its begin and its end, every put is
// noted, and what was put is not deleted by it.
type Sweep struct {
	d *Dir

	mu   sync.Mutex
	live map[string]struct{}
}

type sweeps struct {
	latches shard.Latches // of a multihash: shared by puts, exclusive for a deletion
	count   atomic.Int32

	mu   sync.RWMutex
	runs map[*Sweep]struct{}
}

// Sweep begins a run. The collector then marks what is reachable, deletes
// through the run, and ends it. A block is safe when its put returned after the
// begin, or when the collector reached it.
func (d *Dir) Sweep() *Sweep {
	s := &Sweep{d: d, live: map[string]struct{}{}}
	d.sweeps.mu.Lock()
	defer d.sweeps.mu.Unlock()
	if d.sweeps.runs == nil {
		d.sweeps.runs = map[*Sweep]struct{}{}
	}
	d.sweeps.runs[s] = struct{}{}
	d.sweeps.count.Add(1)
	return s
}

// End ends the run; it deletes nothing afterwards.
func (s *Sweep) End() {
	s.d.sweeps.mu.Lock()
	defer s.d.sweeps.mu.Unlock()
	if _, ok := s.d.sweeps.runs[s]; ok {
		delete(s.d.sweeps.runs, s)
		s.d.sweeps.count.Add(-1)
	}
}

// Delete removes a block unless it was put since the run began, and tells
// whether it did.
func (s *Sweep) Delete(ctx context.Context, h mh.Multihash) (bool, error) {
	return s.d.remove(ctx, string(h), s)
}

func (s *Sweep) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.live[key]
	return ok
}

// note tells every run about a put.
func (s *sweeps) note(key string) {
	if s.count.Load() == 0 {
		return
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for run := range s.runs {
		run.mu.Lock()
		run.live[key] = struct{}{}
		run.mu.Unlock()
	}
}

func (d *Dir) remove(ctx context.Context, key string, run *Sweep) (bool, error) {
	if err := d.begin(ctx); err != nil {
		return false, err
	}
	defer d.leave()
	for {
		done, err := d.tryRemove(key, run)
		if err == errPending {
			err = d.flush(ctx, []cid.Cid{cidOf(key)})
			if err == nil {
				continue
			}
		}
		if err != nil {
			return false, fmt.Errorf("store: delete %s: %w", keyString(key), err)
		}
		return done, nil
	}
}

var errPending = fmt.Errorf("block is pending")

func (d *Dir) tryRemove(key string, run *Sweep) (bool, error) {
	latch := d.sweeps.latches.Of(key)
	latch.Lock()
	defer latch.Unlock()
	if run != nil && run.has(key) {
		return false, nil
	}
	if d.table.get(key) != nil {
		return false, errPending
	}
	name := blockName(key)
	dir, err := d.folders.get(d.shard.Dir(blockKey(name)), false)
	if err != nil {
		return false, ignoreNotExist(err)
	}
	defer dir.release()
	info, err := dir.Stat(name)
	if err == nil {
		err = dir.Remove(name)
	}
	if err != nil {
		return false, ignoreNotExist(err)
	}
	d.files.drop(key)
	d.pages.replaced(key)
	d.room.giveBack(info.Size)
	return true, nil
}
