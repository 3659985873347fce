package content

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"cafs/mount/tree/index"

	"github.com/ipfs/go-cid"
)

// File is the content of one file. Methods may be called concurrently.
type File struct {
	fs  *Files
	ino index.Ino

	touched atomic.Uint64 // when it was last written, by Files.clock

	mu sync.RWMutex // never held during I/O
	view
	seq     uint64 // of the last change
	cutSeq  uint64 // of the last change that a cut has
	metaSeq uint64 // of the last change of size, base or visible ranges
	rebased uint64 // counts changes of the base
	opened  Base   // the base, once it was read

	cuts  int       // live cuts
	grave []*source // what only live cuts show

	// pub is what the index has, by chunk; content is its record, metaPub the
	// metaSeq of it. changed has the chunks that differ, with the last change of each.
	pub     map[int64][]published
	inline  int64 // bytes of pub that are in the index
	content index.Content
	metaPub uint64
	changed map[int64]uint64

	counted bool // data and under are those of all chunks that are not in recount
	data    int64
	hidden  int64 // visible bytes of the base that fragments hide
	recount []int64

	listed bool  // in Files.dirty
	dead   bool  // dropped or released
	lost   error // set when bytes were lost; wraps ErrLost
}

// New returns an empty file that is not in the index.
func (fs *Files) New(ino index.Ino) *File {
	return &File{fs: fs, ino: ino, changed: make(map[int64]uint64), pub: make(map[int64][]published)}
}

// Load returns the file that the index describes. The extents' inline data are
// copied. It must be the current state: segments that only older states refer to may be gone.
// Errors: ErrDamaged when the record contradicts itself.
func (fs *Files) Load(ino index.Ino, c index.Content, extents iter.Seq2[index.Extent, error]) (*File, error) {
	f := fs.New(ino)
	f.view = view{size: c.Size, base: c.Base, baseSize: c.BaseSize, baseData: c.BaseData, visible: c.Visible}
	f.content = c
	if err := f.checkContent(); err != nil {
		return nil, err
	}
	last := int64(0)
	for e, err := range extents {
		if err == nil {
			err = f.checkExtent(e, last)
		}
		if err == nil {
			err = f.load(e)
		}
		if err != nil {
			f.Release()
			return nil, fmt.Errorf("content: load inode %d: %w", ino, err)
		}
		last = e.Off + e.Len
	}
	f.cutSeq = f.seq
	return f, nil
}

func (f *File) checkContent() error {
	last := int64(0)
	for _, r := range f.visible {
		if r.Off < last || r.Len <= 0 || r.Off > f.baseSize-r.Len || r.Off > f.size-r.Len {
			return fmt.Errorf("content: load inode %d: %w: visible range %d+%d", f.ino, ErrDamaged, r.Off, r.Len)
		}
		last = r.Off + r.Len
	}
	if f.size < 0 || f.baseSize < 0 || (len(f.visible) > 0 && !f.base.Defined()) {
		return fmt.Errorf("content: load inode %d: %w: size %d, base %s of %d", f.ino, ErrDamaged, f.size, f.base, f.baseSize)
	}
	return nil
}

func (f *File) checkExtent(e index.Extent, last int64) error {
	cs := f.fs.cfg.ChunkSize
	if e.Off < last || e.Len <= 0 || e.Len > cs || e.Off > f.size-e.Len || e.Off%cs+e.Len > cs ||
		e.Skip < 0 || e.Skip+e.Len > math.MaxInt32 || (e.Kind == index.Inline && int64(len(e.Data)) != e.Len) {
		return fmt.Errorf("%w: extent %d+%d of kind %d", ErrDamaged, e.Off, e.Len, e.Kind)
	}
	return nil
}

// load enters an extent of the index.
func (f *File) load(e index.Extent) error {
	cs := f.fs.cfg.ChunkSize
	f.seq++
	src := &source{seq: f.seq, n: int32(e.Skip + e.Len), refs: 1, frozen: true}
	p := published{kind: e.Kind}
	switch e.Kind {
	case index.Inline:
		b, err := f.fs.mem.alloc(e.Len)
		if err != nil {
			return err
		}
		f.inline += e.Len
		src.buf, src.n = b, int32(copy(b.data, e.Data))
		b.used = src.n
		f.enlist()
	case index.Staged:
		if e.Pos < 0 {
			return fmt.Errorf("%w: staged extent at %d", ErrDamaged, e.Pos)
		}
		p.place = &place{seg: f.fs.staging.get(e.Seg), pos: e.Pos, n: int32(e.Skip + e.Len), crc: e.CRC, loaded: true}
		p.place.seg.ref()
		src.place = p.place
	case index.Block:
		if !e.Block.Defined() {
			return fmt.Errorf("%w: extent of no block", ErrDamaged)
		}
		src.block, src.stored, src.own = e.Block, true, f.fs.isOwn(e.Block)
	case index.Hole:
		src.hole = true
	default:
		return fmt.Errorf("%w: extent of kind %d", ErrDamaged, e.Kind)
	}
	c := f.tab.edit(e.Off / cs)
	g := frag{off: int32(e.Off % cs), n: int32(e.Len), skip: int32(e.Skip), src: src}
	if e.Kind == index.Inline {
		g.skip = 0
	}
	c.frags = append(c.frags, g)
	if c.fill == g.off && !src.hole {
		c.fill = g.end()
	}
	p.frag = g
	f.pub[c.idx] = append(f.pub[c.idx], p)
	return nil
}

// enlist makes the spiller know that f has bytes in memory. The caller holds f.mu.
func (f *File) enlist() {
	if !f.listed {
		f.listed = true
		f.fs.list(f)
	}
}

// Size is the length in bytes.
func (f *File) Size() int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.size
}

// Blocks is the number of 512-byte units that hold data: the overlay's, and
// those of the base that are visible and not zero leaves.
func (f *File) Blocks() int64 {
	f.mu.RLock()
	if f.counted && len(f.recount) == 0 {
		defer f.mu.RUnlock()
		return f.blocks()
	}
	f.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count()
	return f.blocks()
}

func (f *File) blocks() int64 {
	shown := overlap(f.visible, 0, math.MaxInt64) - f.hidden
	// Which of the shown bytes are in zero leaves is not looked up: for a sparse
	// base this is an upper bound until the next seal.
	return (f.data + min(shown, f.baseData) + 511) / 512
}

// count brings data and hidden up to date. Chunks are counted when somebody
// asks, not when they are written.
func (f *File) count() {
	cs := f.fs.cfg.ChunkSize
	one := func(c *chunk) bool {
		var data, under int32
		for _, g := range c.frags {
			at := c.idx*cs + int64(g.off)
			under += int32(overlap(f.visible, at, at+int64(g.n)))
			if !g.src.hole {
				data += g.n
			}
		}
		f.data += int64(data - c.data)
		f.hidden += int64(under - c.under)
		c.data, c.under, c.stale = data, under, false
		return true
	}
	if !f.counted {
		f.data, f.hidden = 0, 0
		f.tab.from(0, func(c *chunk) bool {
			// A chunk that a cut shares is written to here, but only fields that no cut looks at.
			c.data, c.under = 0, 0
			return one(c)
		})
		f.counted = true
	} else {
		for _, idx := range f.recount {
			if c := f.tab.get(idx); c != nil && c.stale {
				one(c)
			}
		}
	}
	f.recount = f.recount[:0]
}

// change returns chunk idx to be changed, and notes that it differs from what
// is published. The caller holds f.mu and has advanced f.seq.
func (f *File) change(idx int64) *chunk {
	c := f.tab.edit(idx)
	f.changed[idx] = f.seq
	if f.counted && !c.stale {
		c.stale = true
		f.recount = append(f.recount, idx)
	}
	return c
}

// Dirty tells whether the content differs from what was published.
func (f *File) Dirty() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return len(f.changed) > 0 || f.metaSeq > f.metaPub
}

// Unsealed tells whether the content is more than its base, or never had one.
func (f *File) Unsealed() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return !f.sealed()
}

func (f *File) sealed() bool {
	return f.base.Defined() && f.tab.n == 0 && f.size == f.baseSize &&
		(f.size == 0 || len(f.visible) == 1 && f.visible[0] == index.Range{Len: f.size})
}

// Published is the content as of the last committed cut, or of Load: what
// attribute batches carry.
func (f *File) Published() index.Content {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.content
}

// Refs calls yield with every leaf block the overlay refers to: roots for garbage collection.
func (f *File) Refs(yield func(cid.Cid) bool) {
	var refs []cid.Cid
	f.mu.RLock()
	f.tab.from(0, func(c *chunk) bool {
		for _, g := range c.frags {
			if g.src.block.Defined() {
				refs = append(refs, g.src.block)
			}
		}
		return true
	})
	for _, src := range f.grave {
		if src.block.Defined() {
			refs = append(refs, src.block)
		}
	}
	f.mu.RUnlock()
	for _, c := range refs {
		if !yield(c) {
			return
		}
	}
}

// Release gives back the memory of a file that the tree is about to forget. It
// must not be dirty, and not be used afterwards.
func (f *File) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bury()
}

// dropOneByOne is the number of extents up to which those of a deleted file are
// removed by their offsets: looking for them in the index takes longer.
const dropOneByOne = 64

// Drop gives back everything of a deleted file and puts the removal of its
// published extents into b. The file must not be used afterwards.
func (f *File) Drop(b *index.Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return
	}
	deltas := make(map[uint64]int64)
	n := 0
	for _, l := range f.pub {
		n += len(l)
	}
	for idx, l := range f.pub {
		for _, p := range l {
			if p.kind == index.Staged {
				deltas[p.place.seg.id] -= int64(p.n)
			}
			if n <= dropOneByOne {
				b.DeleteExtent(f.ino, idx*f.fs.cfg.ChunkSize+int64(p.off))
			}
		}
	}
	if n > dropOneByOne {
		b.DeleteExtents(f.ino)
	}
	for seg, d := range deltas {
		b.AddSegment(seg, d)
	}
	f.fs.staging.addLive(deltas)
	f.bury()
}

// bury takes the overlay apart.
func (f *File) bury() {
	if f.dead {
		return
	}
	f.dead = true
	f.tab.from(0, func(c *chunk) bool {
		for _, g := range c.frags {
			f.deref(g.src)
		}
		return true
	})
	f.tab = table{gen: f.tab.gen + 1, root: f.tab.gen + 1}
	f.pub, f.inline, f.changed = nil, 0, make(map[int64]uint64)
	f.visible, f.size, f.counted = nil, 0, false
	f.fs.unlist(f)
}

// openBase returns the base to read from.
func (f *File) openBase(ctx context.Context, c cid.Cid) (Base, error) {
	f.mu.RLock()
	b, same := f.opened, f.base == c
	f.mu.RUnlock()
	if b != nil && same {
		return b, nil
	}
	b, err := f.fs.cfg.OpenBase(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("content: open base %s: %w", c, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.base == c {
		f.opened = b
	}
	return b, nil
}

// dispose what only cuts had shown once there are none.
func (f *File) endCut() {
	f.cuts--
	if f.cuts == 0 {
		for _, src := range f.grave {
			f.dispose(src)
		}
		f.grave = slices.Delete(f.grave, 0, len(f.grave))
	}
}
