package content

import (
	"maps"
	"slices"
	"sync"

	"cafs/mount/tree/index"
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
	c.changed = slices.AppendSeq(make([]int64, 0, len(f.changed)), maps.Keys(f.changed))
	slices.Sort(c.changed)
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
	inline *[]byte          // bytes of the extents to be set, one after the other; from inlines
	deltas map[uint64]int64 // changes of the segments' live bytes
	grows  int64            // change of the bytes that the index has
	move   bool             // bytes that the index has go to staging
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

// tooMuchInline tells whether the index has so many of the file's bytes that they
// should be moved. On a full disk they stay: an fsync must not fail for this.
func (f *File) tooMuchInline() bool {
	f.mu.RLock()
	n := f.inline
	f.mu.RUnlock()
	return n > maxInline*f.fs.cfg.ChunkSize && f.fs.room(n) == nil
}

// withInline returns the chunks that changed and those whose bytes the index has.
func (c *Cut) withInline() []int64 {
	all := slices.Clone(c.changed)
	for idx, l := range c.f.pub {
		if slices.ContainsFunc(l, published.inline) {
			all = append(all, idx)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// diff plans the cut's batch; with move, bytes that the index has go to staging.
// The caller holds f.mu.
func (c *Cut) diff(move bool) {
	changed := c.changed
	if move {
		changed = c.withInline()
	}
	p := plan{chunks: make([]chunkPlan, 0, len(changed)), move: move}
	known, kept := 0, 0
	for _, idx := range changed {
		cp := chunkPlan{idx: idx, old: c.f.pub[idx]}
		if cp.old != nil {
			known++
		}
		var frags []frag
		if ch := c.tab.get(idx); ch != nil {
			frags = ch.frags
		}
		kept += cp.compare(frags, move)
		p.chunks = append(p.chunks, cp)
	}
	p.clear = known == len(c.f.pub) && kept == 0 && known > 0 && !move
	c.plan = p
}

// compare finds out what is to be set and deleted for the chunk to have these
// fragments, and returns how many extents stay as they are. With move those whose
// bytes the index has do not.
func (cp *chunkPlan) compare(frags []frag, move bool) (kept int) {
	stays := func(p *published, g frag) bool { return p.shows(g) && !(move && p.inline()) }
	// What is appended to again and again has its new fragments at the end.
	// There may be room for them behind the published ones, where nobody looks.
	for kept < len(cp.old) && kept < len(frags) && stays(&cp.old[kept], frags[kept]) {
		kept++
	}
	cp.next = cp.old[:kept:kept]
	if kept == len(cp.old) {
		cp.next = cp.old
	}
	cp.next = slices.Grow(cp.next, len(frags)-kept)
	i := kept
	for k := kept; k < len(frags); k++ {
		n := published{frag: frags[k]}
		for ; i < len(cp.old) && cp.old[i].off < n.off; i++ {
			cp.del = append(cp.del, cp.old[i].off)
		}
		same := i < len(cp.old) && cp.old[i].off == n.off
		if same && stays(&cp.old[i], n.frag) {
			n = cp.old[i]
			kept++
		} else {
			cp.set = append(cp.set, k)
		}
		cp.next = append(cp.next, n)
		if same {
			i++
		}
	}
	for ; i < len(cp.old); i++ {
		cp.del = append(cp.del, cp.old[i].off)
	}
	return kept
}

// shows tells whether the extent can stay as it is for a fragment.
func (p *published) shows(g frag) bool {
	return p.frag == g && !(p.kind == index.Staged && (g.src.block.Defined() || g.src.place != p.place))
}

var inlines = sync.Pool{New: func() any { return new([]byte) }}

// keep adds the bytes of an extent to be set.
func (p *plan) keep(b []byte) {
	if p.inline == nil {
		p.inline = inlines.Get().(*[]byte)
	}
	*p.inline = append(*p.inline, b...)
}

// Fill puts the extents that differ from the published ones into b. Stage must
// have succeeded for this cut. The bytes are copied into b.
func (c *Cut) Fill(b *index.Batch) {
	if !c.plan.ready {
		panic("content: Fill of a cut that was not staged")
	}
	p := &c.plan
	if p.clear {
		b.DeleteExtents(c.f.ino)
	}
	var in []byte
	if p.inline != nil {
		in = *p.inline
	}
	for i := range p.chunks {
		cp := &p.chunks[i]
		start := cp.idx * c.f.fs.cfg.ChunkSize
		for _, off := range cp.del {
			if !p.clear {
				b.DeleteExtent(c.f.ino, start+int64(off))
			}
		}
		for _, o := range cp.old {
			switch o.kind {
			case index.Staged:
				p.count(o.place, -int64(o.n))
			case index.Inline:
				p.grows -= int64(o.n)
			}
		}
		for _, n := range cp.next {
			switch n.kind {
			case index.Staged:
				p.count(n.place, int64(n.n))
			case index.Inline:
				p.grows += int64(n.n)
			}
		}
		for _, k := range cp.set {
			n := &cp.next[k]
			e := index.Extent{Off: start + int64(n.off), Len: int64(n.n), Kind: n.kind, Skip: int64(n.skip)}
			switch n.kind {
			case index.Inline:
				e.Data, e.Skip, in = in[:n.n], 0, in[n.n:]
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

// count adds to the change of the live bytes of the segment that pl is in.
func (p *plan) count(pl *place, n int64) {
	if p.deltas == nil {
		p.deltas = make(map[uint64]int64)
	}
	p.deltas[pl.seg.id] += n
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
	f.inline += c.plan.grows
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
	if c.plan.inline != nil {
		*c.plan.inline = (*c.plan.inline)[:0]
		inlines.Put(c.plan.inline)
	}
	c.plan = plan{}
}
