package content

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"

	"cafs/mount/tree/index"
	"cafs/store"

	"github.com/ipfs/go-cid"
)

// Cut is the state of a file at a moment. It must be ended: by Commit, Abort or
// Rebase. Writes after the cut do not change it. Its methods are called by one
// goroutine at a time.
type Cut struct {
	f *File
	view
	seq     uint64
	metaSeq uint64 // File.metaSeq and File.rebased at the cut
	rebased uint64
	changed []int64
	err     error
	plan    plan

	retained, committed, ended bool
	sealed                     leavesCount
}

// Cut takes the state of this moment, in memory. At most one cut of a file may
// be between Stage and Commit at a time, and cuts are committed in the order in
// which they were taken; cuts that are only sealed do not count.
func (f *File) Cut() *Cut {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &Cut{f: f, view: f.view, seq: f.seq, metaSeq: f.metaSeq, rebased: f.rebased}
	c.tab = f.tab.snapshot()
	c.changed = slices.Sorted(maps.Keys(f.changed))
	f.cutSeq = f.seq
	f.cuts++
	return c
}

// Retain keeps the cut usable for Leaves, ReadAt and Rebase after Commit; then
// Rebase or Abort must end it.
func (c *Cut) Retain() { c.retained = true }

// Content is the cut's record for the inode.
func (c *Cut) Content() index.Content { return c.content() }

// Err is why Stage failed for this cut, or nil.
func (c *Cut) Err() error { return c.err }

// plan is what a batch has to change in the index for a cut. It keeps no buffers:
// who commits it may have to wait for a lock whose holder waits for memory.
type plan struct {
	chunks []chunkPlan
	clear  bool             // nothing that is published stays
	staged []*place         // of the extents to be set; each with a reference to its segment
	stored []*source        // in blocks that need a flush
	inline [][]byte         // bytes of the extents to be set, in their order
	deltas map[uint64]int64 // changes of the segments' live bytes
	ready  bool             // everything it refers to is durable
	filled bool
}

type chunkPlan struct {
	idx  int64
	next []published // what the index will have
	set  []int       // positions in next that it does not have yet
	del  []int32     // offsets to be deleted
	old  []published
}

// needs is what must become durable before a batch may refer to it.
type needs struct {
	syncs  map[*segment]uint64
	blocks []cid.Cid
}

// bareSource is a source to be staged.
type bareSource struct {
	c   *Cut
	src *source
	off int64
	buf *buf
}

// diff plans the cut's batch. The caller holds f.mu.
func (c *Cut) diff() {
	p := plan{chunks: make([]chunkPlan, 0, len(c.changed))}
	known, kept := 0, 0
	for _, idx := range c.changed {
		cp := chunkPlan{idx: idx, old: c.f.pub[idx]}
		if cp.old != nil {
			known++
		}
		if ch := c.tab.get(idx); ch != nil {
			cp.next = make([]published, len(ch.frags))
			for i, g := range ch.frags {
				cp.next[i].frag = g
			}
		}
		kept += cp.compare()
		p.chunks = append(p.chunks, cp)
	}
	p.clear = known == len(c.f.pub) && kept == 0 && known > 0
	c.plan = p
}

// compare finds out what is to be set and deleted, and returns how many
// extents stay as they are.
func (cp *chunkPlan) compare() (kept int) {
	i := 0
	for k := range cp.next {
		n := &cp.next[k]
		for ; i < len(cp.old) && cp.old[i].off < n.off; i++ {
			cp.del = append(cp.del, cp.old[i].off)
		}
		if i < len(cp.old) && cp.old[i].off == n.off {
			o := cp.old[i]
			i++
			if o.frag == n.frag && !(o.kind == index.Staged && (n.src.block.Defined() || n.src.place != o.place)) {
				*n = o
				kept++
				continue
			}
		}
		cp.set = append(cp.set, k)
	}
	for ; i < len(cp.old); i++ {
		cp.del = append(cp.del, cp.old[i].off)
	}
	return kept
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
	n := needs{syncs: make(map[*segment]uint64)}
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
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.err = c.f.lost
	if c.ended || c.committed {
		c.err = ErrEnded
	}
	c.unplan()
	if c.err == nil {
		c.diff()
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
		for _, b := range c.bareSources(int64(inlineLimit)) {
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
	var list []*bareSource
	seen := make(map[*source]bool)
	var total int64
	c.f.mu.RLock()
	defer c.f.mu.RUnlock()
	for i := range c.plan.chunks {
		cp := &c.plan.chunks[i]
		for _, k := range cp.set {
			g := cp.next[k].frag
			if !g.src.onlyMem() {
				continue
			}
			total += int64(g.n)
			if !seen[g.src] {
				seen[g.src] = true
				list = append(list, &bareSource{c: c, src: g.src, off: cp.idx*cs + int64(g.off)})
			}
		}
	}
	if total <= inlineLimit {
		return nil
	}
	for _, b := range list {
		b.buf = b.src.buf.hold()
	}
	return list
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
				n.syncs[p.place.seg] = max(n.syncs[p.place.seg], p.place.ticket)
			default:
				p.kind = index.Inline
				c.plan.inline = append(c.plan.inline, slices.Clone(src.mem()[p.skip:p.skip+p.n]))
			}
		}
	}
}

// makeDurable syncs the segments and flushes the blocks, side by side.
func (fs *Files) makeDurable(ctx context.Context, n *needs) (synced map[*segment]error, flushed error) {
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

// Fill puts the extents that differ from the published ones into b. Stage must
// have succeeded for this cut. The bytes are copied into b.
func (c *Cut) Fill(b *index.Batch) {
	if !c.plan.ready {
		panic("content: Fill of a cut that was not staged")
	}
	p := &c.plan
	p.deltas = make(map[uint64]int64)
	if p.clear {
		b.DeleteExtents(c.f.ino)
	}
	in := p.inline
	for i := range p.chunks {
		cp := &p.chunks[i]
		start := cp.idx * c.f.fs.cfg.ChunkSize
		for _, off := range cp.del {
			if !p.clear {
				b.DeleteExtent(c.f.ino, start+int64(off))
			}
		}
		for _, o := range cp.old {
			if o.kind == index.Staged {
				p.deltas[o.place.seg.id] -= int64(o.n)
			}
		}
		for _, n := range cp.next {
			if n.kind == index.Staged {
				p.deltas[n.place.seg.id] += int64(n.n)
			}
		}
		for _, k := range cp.set {
			n := &cp.next[k]
			e := index.Extent{Off: start + int64(n.off), Len: int64(n.n), Kind: n.kind, Skip: int64(n.skip)}
			switch n.kind {
			case index.Inline:
				e.Data, e.Skip, in = in[0], 0, in[1:]
			case index.Staged:
				e.Seg, e.Pos, e.CRC = n.place.seg.id, n.place.pos, n.place.crc
			case index.Block:
				e.Block = n.src.block
			case index.Hole:
				e.Skip = 0
			}
			b.SetExtent(c.f.ino, e)
		}
	}
	for seg, d := range p.deltas {
		if d != 0 {
			b.AddSegment(seg, d)
		}
	}
	p.filled = true
}

// Commit notes that the filled batch was committed: the extents are published, and memory
// of what is in staging is freed.
func (c *Cut) Commit() {
	if !c.plan.filled {
		panic("content: Commit of a cut that was not filled")
	}
	f := c.f
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fs.staging.addLive(c.plan.deltas)
	for i := range c.plan.chunks {
		cp := &c.plan.chunks[i]
		for _, k := range cp.set {
			if src := cp.next[k].src; src.place != nil {
				f.dropMem(src)
			}
		}
		if f.dead {
			continue
		}
		if len(cp.next) > 0 {
			f.pub[cp.idx] = cp.next
		} else {
			delete(f.pub, cp.idx)
		}
		if f.changed[cp.idx] <= c.seq {
			delete(f.changed, cp.idx)
		}
	}
	f.content, f.metaPub = c.content(), c.metaSeq
	c.committed = true
	c.unplan()
	if !c.retained {
		c.end()
	}
}

// Abort ends the cut; nothing of it counts as published. After Commit it only
// ends what Retain kept. Aborting an ended cut does nothing.
func (c *Cut) Abort() {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	c.unplan()
	c.end()
}

// end gives up what only the cut shows. The caller holds f.mu.
func (c *Cut) end() {
	if !c.ended {
		c.ended = true
		c.f.endCut()
	}
}

// unplan gives up what the plan refers to.
func (c *Cut) unplan() {
	for _, p := range c.plan.staged {
		p.seg.unref()
	}
	c.plan = plan{}
}
