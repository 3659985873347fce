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
// given its name first, so that the order of a put and a delete is that of the
// calls. Collectors that run beside writers use [Dir.Sweep].
func (d *Dir) Delete(ctx context.Context, h mh.Multihash) error {
	_, _, err := d.remove(ctx, string(h), nil)
	return err
}

// Sweep is a run of a collector, or of something that puts blocks and refers to
// them later, such as an import: between its begin and its end every put is
// noted, and no collector deletes what was. When a run ends, its notes go to the
// others: what an import put before a collection began is safe until the end of
// that, too.
//
// A note is 64 bits of the multihash: what looks the same is spared as well.
type Sweep struct {
	d *Dir

	mu   sync.Mutex
	live []map[uint64]struct{} // the first is this run's own
}

// noteKey is the end of a multihash.
func noteKey(key string) (n uint64) {
	for _, b := range []byte(key[len(key)-min(8, len(key)):]) {
		n = n<<8 | uint64(b)
	}
	return n
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
	s := &Sweep{d: d, live: []map[uint64]struct{}{{}}}
	d.sweeps.mu.Lock()
	defer d.sweeps.mu.Unlock()
	if d.sweeps.runs == nil {
		d.sweeps.runs = map[*Sweep]struct{}{}
	}
	d.sweeps.runs[s] = struct{}{}
	d.sweeps.count.Add(1)
	return s
}

// End ends the run; it deletes nothing afterwards. What the run put must be
// referred to durably by then.
func (s *Sweep) End() {
	w := &s.d.sweeps
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.runs[s]; !ok {
		return
	}
	delete(w.runs, s)
	w.count.Add(-1)
	for run := range w.runs {
		run.mu.Lock()
		run.live = append(run.live, s.live...) // which nobody writes to any more
		run.mu.Unlock()
	}
}

// Delete removes a block unless some run noted it, and tells its length and
// whether it did.
func (s *Sweep) Delete(ctx context.Context, h mh.Multihash) (size int64, done bool, err error) {
	return s.d.remove(ctx, string(h), s)
}

// Spare notes a block as a put would, and tells whether it is there.
func (d *Dir) Spare(ctx context.Context, c cid.Cid) (bool, error) {
	if err := d.enter(); err != nil {
		return false, err
	}
	defer d.leave()
	key := hashKey(c)
	latch := d.sweeps.latches.Of(key)
	latch.RLock()
	defer latch.RUnlock()
	d.sweeps.note(key)
	_, err := d.length(key)
	if isNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

func (s *Sweep) has(n uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, live := range s.live {
		if _, ok := live[n]; ok {
			return true
		}
	}
	return false
}

// noted tells whether any run has noted the block.
func (s *sweeps) noted(key string) bool {
	n := noteKey(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	for run := range s.runs {
		if run.has(n) {
			return true
		}
	}
	return false
}

// note tells every run about a put.
func (s *sweeps) note(key string) {
	if s.count.Load() == 0 {
		return
	}
	n := noteKey(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	for run := range s.runs {
		run.mu.Lock()
		run.live[0][n] = struct{}{}
		run.mu.Unlock()
	}
}

func (d *Dir) remove(ctx context.Context, key string, run *Sweep) (size int64, done bool, err error) {
	if err := d.begin(ctx); err != nil {
		return 0, false, err
	}
	defer d.leave()
	for {
		size, done, err := d.tryRemove(key, run)
		if err == errPending {
			if err = d.flush(ctx, []cid.Cid{cidOf(key)}); err == nil {
				err = d.settle(ctx)
			}
			if err == nil {
				continue
			}
			if run != nil && noSpace(err) && d.poisoned() == nil {
				return 0, false, nil // a full disk holds no collector up; the next one finds it
			}
		}
		if err != nil {
			return 0, false, fmt.Errorf("store: delete %s: %w", keyString(key), err)
		}
		return size, done, nil
	}
}

var errPending = fmt.Errorf("block is pending")

func (d *Dir) tryRemove(key string, run *Sweep) (size int64, done bool, err error) {
	latch := d.sweeps.latches.Of(key)
	latch.Lock()
	defer latch.Unlock()
	if run != nil && d.sweeps.noted(key) {
		return 0, false, nil
	}
	if d.table.get(key) != nil {
		return 0, false, errPending
	}
	name := blockName(key)
	dir, err := d.folders.get(d.shard.Dir(blockKey(name)), false)
	if err != nil {
		return 0, false, ignoreNotExist(err)
	}
	defer dir.release()
	info, err := dir.Stat(name)
	if err == nil {
		err = dir.Remove(name)
	}
	if err != nil {
		return 0, false, ignoreNotExist(err)
	}
	d.files.drop(key)
	d.pages.replaced(key)
	d.room.giveBack(info.Size)
	return info.Size, true, nil
}
