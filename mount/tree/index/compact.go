package index

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// compactions lets the engine merge tables, as many at a time as it wants to,
// but none before start. The end of pebble.Open waits for every merge that runs
// (v2.1.7: obsolete_files.go 346), and what the replay of a log has written may
// begin one of seconds: whoever opens an index after a crash would wait for it.
//
// The engine's lock comes before mu: TrySchedule is called under it, and mu is
// never held during a call into the engine that takes it. The number of merges
// it allows changes only when a merge or a flush ends, which it tells.
type compactions struct {
	db   pebble.DBForCompaction // set by Register, before any other call
	poke chan struct{}          // something may be granted; capacity 1
	quit chan struct{}          // closed by Unregister
	done sync.WaitGroup         // the goroutine that grants what had to wait

	mu      sync.Mutex
	started bool
	ended   bool
	running int
}

var _ pebble.CompactionScheduler = (*compactions)(nil)

func newCompactions() *compactions {
	return &compactions{poke: make(chan struct{}, 1), quit: make(chan struct{})}
}

// start lets compactions begin. It is called once, after Open.
func (c *compactions) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.started = true
	c.done.Go(c.grant)
	c.look()
}

// look makes the granting goroutine look what can be granted.
func (c *compactions) look() {
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

func (c *compactions) grant() {
	for {
		select {
		case <-c.quit:
			return
		case <-c.poke:
		}
		for {
			// Asked before taking a turn and again after giving one back: the engine
			// may have asked for it in between, got none, and is waiting.
			if waiting, _ := c.db.GetWaitingCompaction(); !waiting || !c.take() {
				break
			}
			if !c.db.Schedule(c) {
				c.give()
			}
		}
	}
}

// take counts one more that runs, if it may.
func (c *compactions) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.started || c.ended || c.running >= c.db.GetAllowedWithoutPermission() {
		return false
	}
	c.running++
	return true
}

func (c *compactions) give() {
	c.mu.Lock()
	c.running--
	c.mu.Unlock()
}

// Register, Unregister, TrySchedule and UpdateGetAllowedWithoutPermission
// implement pebble.CompactionScheduler.

// Register is called by pebble.Open.
func (c *compactions) Register(_ int, db pebble.DBForCompaction) { c.db = db }

// Unregister ends the granting and waits until no call into the engine is under way.
func (c *compactions) Unregister() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	close(c.quit)
	c.done.Wait()
}

// TrySchedule asks for a turn. Whoever gets none waits to be granted one.
func (c *compactions) TrySchedule() (bool, pebble.CompactionGrantHandle) {
	if !c.take() {
		return false, nil
	}
	return true, c
}

// UpdateGetAllowedWithoutPermission says that a flush has ended.
func (c *compactions) UpdateGetAllowedWithoutPermission() { c.look() }

// Done says that a compaction has ended; with the next three it implements
// pebble.CompactionGrantHandle.
func (c *compactions) Done() {
	c.give()
	c.look()
}

// Started has nothing to do.
func (c *compactions) Started() {}

// MeasureCPU has nothing to do.
func (c *compactions) MeasureCPU(pebble.CompactionGoroutineKind) {}

// CumulativeStats has nothing to do.
func (c *compactions) CumulativeStats(pebble.CompactionGrantHandleStats) {}
