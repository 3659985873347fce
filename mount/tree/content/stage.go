package content

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"syscall"

	"cafs/mount/tree/index"
	"cafs/store"

	"github.com/ipfs/go-cid"
)

// needs is what must become durable before a batch may refer to it.
type needs struct {
	syncs  map[*segment]uint64
	blocks []cid.Cid
}

func (n *needs) sync(s *segment, ticket uint64) {
	if n.syncs == nil {
		n.syncs = make(map[*segment]uint64)
	}
	n.syncs[s] = max(n.syncs[s], ticket)
}

// bareSource is a source to be staged.
type bareSource struct {
	c   *Cut
	src *source
	off int64
	buf *buf
}

// Stage makes all bytes that the cuts refer to durable, so that Fill may be
// called: with one sync of each lane of staging and one flush of blocks. Cuts with at
// most inlineLimit bytes in memory leave them to be written into the batch.
// The error joins those of the cuts; a cut whose Err is nil may be filled all
// the same. Cancelling ctx fails the stage, but nothing is lost by that.
func (fs *Files) Stage(ctx context.Context, inlineLimit int, cuts ...*Cut) error {
	defer fs.mem.nudge()
	for _, c := range cuts {
		c.prepare()
	}
	fs.finishJobs(ctx, cuts)
	fs.stageBare(inlineLimit, cuts)
	var n needs
	for _, c := range cuts {
		c.resolve(&n)
	}
	synced, flushed := fs.makeDurable(ctx, &n)
	var errs []error
	for _, c := range cuts {
		c.conclude(ctx, synced, flushed)
		if c.err != nil {
			errs = append(errs, c.err)
		}
	}
	return errors.Join(errs...)
}

// prepare plans the cut, or fails it at once.
func (c *Cut) prepare() {
	move := c.f.tooMuchInline()
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.err = c.f.lost
	if c.ended || c.committed {
		c.err = ErrEnded
	}
	c.unplan()
	if c.err == nil {
		c.diff(move)
	}
}

// finishJobs waits for the chunks of the cuts that are about to become blocks:
// that is less work than staging them.
func (fs *Files) finishJobs(ctx context.Context, cuts []*Cut) {
	var jobs []*job
	for _, c := range cuts {
		c.f.mu.RLock()
		for i := range c.plan.chunks {
			cp := &c.plan.chunks[i]
			if live := c.f.tab.get(cp.idx); live != nil && live.queued != nil && len(cp.set) == 1 &&
				cp.next[cp.set[0]].src.onlyMem() && int64(cp.next[cp.set[0]].n) == fs.cfg.ChunkSize {
				jobs = append(jobs, live.queued)
			}
		}
		c.f.mu.RUnlock()
	}
	for _, j := range jobs {
		fs.work.hurry(j)
	}
	for _, j := range jobs {
		select {
		case <-j.done:
		case <-ctx.Done():
			return
		}
	}
}

// stageBare writes what is in memory only to staging, for the cuts that have
// more of it than inlineLimit.
func (fs *Files) stageBare(inlineLimit int, cuts []*Cut) {
	var bare []*bareSource
	var recs []record
	total := 0
	for _, c := range cuts {
		if c.err != nil {
			continue
		}
		limit := int64(inlineLimit)
		if c.plan.move {
			limit = 0
		}
		for _, b := range c.bareSources(limit) {
			bare = append(bare, b)
			recs = append(recs, record{ino: uint64(c.f.ino), off: b.off, data: b.buf.data[b.src.at : b.src.at+b.src.n]})
			total += int(b.src.n)
		}
	}
	if len(recs) == 0 {
		return
	}
	l := small
	if total > 1<<20 {
		l = bulk
	}
	err := fs.staging.append(l, recs)
	fs.space.spent.Add(int64(total))
	for i, b := range bare {
		if err != nil {
			b.c.err = err
		} else {
			b.c.f.mu.Lock()
			b.c.f.staged(b.src, recs[i].place)
			b.c.f.mu.Unlock()
		}
		fs.mem.release(b.buf)
	}
}

// bareSources returns the sources of the plan to be staged, each once and with its
// buffer held.
func (c *Cut) bareSources(inlineLimit int64) []*bareSource {
	cs := c.f.fs.cfg.ChunkSize
	c.f.mu.RLock()
	defer c.f.mu.RUnlock()
	var total int64
	for _, g := range c.plan.bare() {
		total += int64(g.n)
	}
	if total <= inlineLimit {
		return nil
	}
	var list []*bareSource
	seen := make(map[*source]bool)
	for idx, g := range c.plan.bare() {
		if !seen[g.src] {
			seen[g.src] = true
			list = append(list, &bareSource{c: c, src: g.src, off: idx*cs + int64(g.off)})
		}
	}
	for _, b := range list {
		b.buf = b.src.buf.hold()
	}
	return list
}

// bare visits what the plan sets and only memory has, with its chunk. The caller
// holds the file's lock.
func (p *plan) bare() iter.Seq2[int64, frag] {
	return func(yield func(int64, frag) bool) {
		for i := range p.chunks {
			cp := &p.chunks[i]
			for _, k := range cp.set {
				if g := cp.next[k].frag; g.src.onlyMem() && !yield(cp.idx, g) {
					return
				}
			}
		}
	}
}

// staged notes that src is in staging; its memory is kept until Commit.
func (f *File) staged(src *source, p *place) {
	if src.gone || src.place != nil || src.block.Defined() {
		p.seg.unref()
		return
	}
	src.place = p
}

// resolve decides where each extent of the plan is found, and collects what
// must be durable for that.
func (c *Cut) resolve(n *needs) {
	if c.err != nil {
		return
	}
	c.f.mu.RLock()
	defer c.f.mu.RUnlock()
	for i := range c.plan.chunks {
		cp := &c.plan.chunks[i]
		for _, k := range cp.set {
			p := &cp.next[k]
			switch src := p.src; {
			case src.hole:
				p.kind = index.Hole
			case src.block.Defined():
				p.kind = index.Block
				if !src.stored {
					n.blocks = append(n.blocks, src.block)
					c.plan.stored = append(c.plan.stored, src)
				}
			case src.place != nil:
				p.kind, p.place = index.Staged, src.place
				p.place.seg.ref()
				c.plan.staged = append(c.plan.staged, p.place)
				n.sync(p.place.seg, p.place.ticket)
			default:
				p.kind = index.Inline
				c.plan.keep(src.mem()[p.skip : p.skip+p.n])
			}
		}
	}
}

// makeDurable syncs the segments and flushes the blocks, side by side.
func (fs *Files) makeDurable(ctx context.Context, n *needs) (synced map[*segment]error, flushed error) {
	if len(n.syncs)+len(n.blocks) == 0 {
		return nil, nil
	}
	var wg sync.WaitGroup
	var mu sync.Mutex // guards synced
	synced = make(map[*segment]error, len(n.syncs))
	do := func(s *segment, ticket uint64) {
		err := s.sync(ctx, fs.cfg.Staging, ticket)
		mu.Lock()
		synced[s] = err
		mu.Unlock()
	}
	alone := len(n.syncs) == 1 && len(n.blocks) == 0 // the common case needs no goroutine
	for s, ticket := range n.syncs {
		if alone {
			do(s, ticket)
		} else if ticket > 0 {
			wg.Go(func() { do(s, ticket) })
		}
	}
	if len(n.blocks) > 0 {
		if err := fs.cfg.Blocks.Flush(ctx, n.blocks); err != nil {
			flushed = fmt.Errorf("content: flush leaves: %w", err)
		}
	}
	wg.Wait()
	return synced, flushed
}

// conclude notes what became durable for the cut, and what did not. Bytes of a failed
// write-out are lost for good, whatever a later attempt says; a cancelled wait
// loses nothing, nor do blocks for which there was no room yet.
func (c *Cut) conclude(ctx context.Context, synced map[*segment]error, flushed error) {
	if c.err != nil {
		return
	}
	lost := false
	if len(c.plan.stored) > 0 && flushed != nil {
		c.err, lost = flushed, !waitsForRoom(flushed)
	}
	for _, p := range c.plan.staged {
		if err := synced[p.seg]; err != nil {
			c.err, lost = err, true
		}
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if c.err != nil {
		if lost && ctx.Err() == nil {
			c.err = fmt.Errorf("%w: %w", ErrLost, c.err)
			c.f.lost = c.err
		}
		return
	}
	for _, src := range c.plan.stored {
		src.stored = true
	}
	c.plan.ready = true
}

// waitsForRoom tells whether a flush of blocks failed because the disk is full,
// and can be repeated: the blocks are as they were.
func waitsForRoom(err error) bool {
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	return full && !errors.Is(err, store.ErrPoisoned)
}
