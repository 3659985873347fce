package store

import (
	"context"
	"sync"
	"time"
)

// What may wait for a barrier. Beyond kick a barrier starts by itself; beyond
// limit puts wait. Memory is that of small blocks; files are large blocks, each
// with an open handle. The express lane takes so little that no one who waits
// for it notices. A batch has at most batchMax blocks.
type limits struct {
	kick, limit, express load
	settle               load // of blocks in a log: beyond it they get names
	batchMax             int
}

var defaultLimits = limits{
	kick:     load{count: 1024, memory: 8 << 20, files: 64, bytes: 64 << 20},
	limit:    load{count: 1 << 17, memory: 64 << 20, files: 512, bytes: 256 << 20},
	express:  load{count: 128, memory: 4 << 20, files: 16, bytes: 20 << 20},
	settle:   load{count: 4096, memory: 8 << 20, files: 1, bytes: 8 << 20},
	batchMax: 4096,
}

// entryMemory is what a small block takes beside its bytes while it waits.
const entryMemory = 512

// settleAfter is how long a block is in a log only, when few come.
const settleAfter = time.Second

// How many batches run at once. Small blocks cost system calls: two batches, so
// that one writes while the other is flushed, leave time to those who put, and
// what comes meanwhile makes the next batch large, which is cheaper. Large ones
// wait for the device, and share flushes of the file system: with three at once,
// puts waited for a busy device. Nobody waits for names of blocks in a log: one.
const (
	smallLanes = 2
	largeLanes = 16
	nameLanes  = 1
)

// load measures a set of pending blocks.
type load struct{ count, memory, files, bytes int64 }

func (l *load) add(e *entry, sign int64) {
	l.count += sign
	l.bytes += sign * e.size
	if e.inMemory() {
		l.memory += sign * (e.size + entryMemory)
	} else {
		l.files += sign
	}
}

func (l load) over(m load) bool {
	return l.count >= m.count || l.memory >= m.memory || l.files >= m.files || l.bytes >= m.bytes
}

// batch is a set of blocks that become durable together.
type batch struct {
	entries []*entry
	done    chan struct{}
	log     *logFile // which made it durable; nil when its blocks have names
	err     error    // after done
}

// lane runs batches in order, max at a time.
//
// A lane that gathers holds a batch back for a moment, until as many blocks are
// there as in the last one and behind it: those who waited for that one are coming
// back one by one, and would otherwise make one barrier, and those who came
// meanwhile another.
type lane struct {
	max     int
	waiting []*batch
	running int
	active  map[*batch]struct{} // waiting or running

	logs    bool // its batches go to a log, if they are fit for that
	gathers bool
	took    time.Duration // by the last batch
	enough  int           // blocks that end the holding back
	full    chan struct{} // closed when there are enough; nil when nothing is held back
}

// gatherShare of the time of the last batch is the most that one is held back,
// and gatherMax in any case.
const (
	gatherShare = 2
	gatherMax   = 2 * time.Millisecond
)

// queue decides which blocks become durable when. Requests for little have a
// lane of their own, so that one small flush does not stand behind a large one;
// the rest goes by the size of the block. Within a lane those who come while a
// batch runs share the next one. What a log has made durable is kept, and goes
// through a lane that nobody waits for, to get its names.
type queue struct {
	d      *Dir
	limits limits
	wg     sync.WaitGroup // runners

	mu      sync.Mutex
	idle    []*entry // of no batch, mixed with some that are in one, in a log, or done
	live    load     // of idle, without those
	kept    []*entry // in a log, and of no batch
	waiting load     // of kept
	logged  load     // of all that are in a log and have no name yet
	total   load     // of all
	express lane
	small   lane
	large   lane
	names   lane
	freed   chan struct{} // closed when total shrinks or a batch fails
	lastErr error         // of the last batch
	later   time.Duration // until blocks that are kept get names
	timer   *time.Timer   // for that
	ended   bool          // no timer is set any more
}

func (q *queue) init(d *Dir) {
	q.d = d
	q.limits, q.later = defaultLimits, settleAfter
	q.express.max, q.express.gathers, q.express.logs = 1, true, true
	q.small.max, q.large.max, q.names.max = smallLanes, largeLanes, nameLanes
	for _, l := range []*lane{&q.express, &q.small, &q.large, &q.names} {
		l.active = map[*batch]struct{}{}
	}
	q.freed = make(chan struct{})
}

// pending counts what is not durable.
func (q *queue) pending() (n, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total.count - q.logged.count, q.total.bytes - q.logged.bytes
}

// admit waits until there is room for e among the pending blocks, and counts it.
func (q *queue) admit(ctx context.Context, e *entry) error {
	q.mu.Lock()
	for q.total.over(q.limits.limit) {
		q.claimIdle()
		q.claimKept()
		freed := q.freed
		q.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := q.d.poisoned(); err != nil {
			return err
		}
		q.mu.Lock()
		if q.lastErr != nil && q.total.over(q.limits.limit) {
			err := q.lastErr
			q.mu.Unlock()
			return err
		}
	}
	q.total.add(e, 1)
	q.mu.Unlock()
	return nil
}

// release undoes admit.
func (q *queue) release(entries ...*entry) {
	q.mu.Lock()
	for _, e := range entries {
		q.total.add(e, -1)
	}
	q.wake()
	q.mu.Unlock()
}

// wake requires mu.
func (q *queue) wake() {
	close(q.freed)
	q.freed = make(chan struct{})
}

// push hands over a block that can be read from the table.
func (q *queue) push(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle = append(q.idle, e)
	q.live.add(e, 1)
	if q.live.over(q.limits.kick) {
		q.claimIdle()
	}
}

// claimIdle puts every idle block into a batch. It requires mu.
func (q *queue) claimIdle() {
	idle := q.idle
	q.idle = nil
	express := !q.live.over(q.limits.express)
	for _, e := range idle {
		if e.batch == nil && e.log == nil {
			q.claim(q.laneFor(e, express), e)
		}
	}
}

func (q *queue) laneFor(e *entry, express bool) *lane {
	switch {
	case express:
		return &q.express
	case e.inMemory():
		return &q.small
	}
	return &q.large
}

// claimKept puts every block that waits for a name into a batch. It requires mu.
func (q *queue) claimKept() {
	for _, e := range q.kept {
		q.claim(&q.names, e)
	}
	q.kept, q.waiting = nil, load{}
}

// claim puts e into the last batch that waits in l. It requires mu.
func (q *queue) claim(l *lane, e *entry) {
	n := len(l.waiting)
	if n == 0 || len(l.waiting[n-1].entries) >= q.limits.batchMax {
		b := &batch{done: make(chan struct{})}
		l.active[b] = struct{}{}
		l.waiting = append(l.waiting, b)
		n++
	}
	b := l.waiting[n-1]
	b.entries = append(b.entries, e)
	e.batch = b
	if l.full != nil && len(l.waiting[0].entries) >= l.enough {
		close(l.full)
		l.full = nil
	}
	if e.log == nil {
		q.live.add(e, -1)
	}
	if l.running < l.max {
		l.running++
		q.wg.Add(1)
		go q.run(l)
	}
}

// run commits the batches of a lane until none waits.
func (q *queue) run(l *lane) {
	defer q.wg.Done()
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(l.waiting) > 0 {
		q.gather(l)
		b := l.waiting[0]
		l.waiting = l.waiting[1:]
		q.mu.Unlock()
		begin := time.Now()
		if l.logs {
			b.log, b.err = q.d.logRound(b)
		}
		if b.log == nil && b.err == nil {
			b.err = q.d.commit(b)
		}
		q.mu.Lock()
		l.took, l.enough = time.Since(begin), len(b.entries)
		if len(l.waiting) > 0 {
			l.enough += len(l.waiting[0].entries)
		}
		q.finish(l, b)
	}
	l.running--
}

// gather holds the next batch back. It requires mu, and lets go of it.
func (q *queue) gather(l *lane) {
	if !l.gathers || len(l.waiting[0].entries) >= l.enough {
		return
	}
	full := make(chan struct{})
	l.full = full
	q.mu.Unlock()
	timer := time.NewTimer(min(l.took/gatherShare, gatherMax))
	select {
	case <-full:
	case <-timer.C:
	}
	timer.Stop()
	q.mu.Lock()
	l.full = nil
}

// finish ends a batch: blocks that have names leave, those in a log are kept,
// those of a failed batch are what they were before. It requires mu.
func (q *queue) finish(l *lane, b *batch) {
	for _, e := range b.entries {
		switch {
		case b.err == nil && b.log == nil:
			q.total.add(e, -1)
			if e.log != nil {
				q.logged.add(e, -1)
			}
			continue
		case b.log != nil:
			e.log = b.log
			q.logged.add(e, 1)
		}
		e.batch = nil
		if e.log != nil {
			q.kept = append(q.kept, e)
			q.waiting.add(e, 1)
		} else {
			q.idle = append(q.idle, e)
			q.live.add(e, 1)
		}
	}
	if b.err == nil && q.waiting.over(q.limits.settle) {
		q.claimKept()
	}
	q.settleSoon()
	q.lastErr = b.err
	delete(l.active, b)
	close(b.done)
	q.wake()
}

// settleSoon sees to it that kept blocks get names although no more come. It
// requires mu.
func (q *queue) settleSoon() {
	if len(q.kept) == 0 || q.timer != nil || q.ended || q.d.poisoned() != nil {
		return
	}
	q.timer = time.AfterFunc(q.later, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.timer = nil
		if !q.ended {
			q.claimKept()
		}
	})
}

// keep is push for a block that log has.
func (q *queue) keep(e *entry, log *logFile) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e.log = log
	q.kept = append(q.kept, e)
	for _, l := range []*load{&q.waiting, &q.logged, &q.total} {
		l.add(e, 1)
	}
}

// claimAll returns the batches that hold every block pushed so far and not in a
// log.
func (q *queue) claimAll() []*batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.claimIdle()
	var list []*batch
	for _, l := range []*lane{&q.express, &q.small, &q.large} {
		for b := range l.active {
			list = append(list, b)
		}
	}
	return list
}

// claimNames returns the batches that hold every block in a log.
func (q *queue) claimNames() []*batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.claimKept()
	var list []*batch
	for b := range q.names.active {
		list = append(list, b)
	}
	return list
}

// claimSome returns the batches that hold those of the given blocks that are
// not in a log.
func (q *queue) claimSome(entries []*entry) []*batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	var fresh load
	for _, e := range entries {
		if e.batch == nil && e.log == nil {
			fresh.add(e, 1)
		}
	}
	express := !fresh.over(q.limits.express)
	var list []*batch
	for _, e := range entries {
		if e.log != nil {
			continue
		}
		if e.batch == nil {
			q.claim(q.laneFor(e, express), e)
		}
		if n := len(list); n == 0 || list[n-1] != e.batch {
			list = append(list, e.batch)
		}
	}
	q.compact()
	return list
}

// compact drops claimed blocks from idle when they are most of it. It requires mu.
func (q *queue) compact() {
	if int64(len(q.idle)) < 2*q.live.count+64 {
		return
	}
	kept := make([]*entry, 0, q.live.count)
	for _, e := range q.idle {
		if e.batch == nil && e.log == nil {
			kept = append(kept, e)
		}
	}
	q.idle = kept
}

// await waits for batches; cancelling ends the wait only.
func await(ctx context.Context, list []*batch) error {
	for _, b := range list {
		select {
		case <-b.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if b.err != nil {
			return b.err
		}
	}
	return nil
}

// wait returns when no batch runs any more; it is for the end, when no more are
// claimed but by claimNames.
func (q *queue) wait() {
	q.mu.Lock()
	q.ended = true
	if q.timer != nil {
		q.timer.Stop() // it would keep the store in memory
	}
	q.mu.Unlock()
	q.wg.Wait()
}
