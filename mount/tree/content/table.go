package content

import (
	"slices"
	"sort"
)

// chunk is the overlay over one chunk of a file.
type chunk struct {
	idx   int64
	gen   uint64 // the table generation that owns it; others must copy it
	frags []frag // ascending, disjoint; append to them, or own them first
	// shared: the fragments' memory is also that of an older generation, which
	// does not see what is appended.
	shared bool
	// fill is how far the chunk was covered in order from its beginning.
	fill   int32
	epoch  uint32 // counts truncations and punches: what was composed before is void
	queued *job   // it waits for a worker or is being worked on
	used   uint64 // when it was last written, by Files.clock

	// data and under are what File.Blocks counts: bytes of fragments that are
	// not holes, and visible bytes of the base under fragments.
	data, under int32
	stale       bool // data and under are to be counted again
}

const pageChunks = 128

// page is a run of chunks in a table.
type page struct {
	gen    uint64
	chunks []*chunk // ascending by idx, never empty
}

// table maps chunk indexes to chunks. A snapshot costs nothing; after one,
// changes copy what they touch.
type table struct {
	gen   uint64
	root  uint64 // the generation that owns the slice of pages
	pages []*page
	n     int
}

// snapshot returns the table as it is now. Later changes of t do not show in it.
func (t *table) snapshot() table {
	s := *t
	t.gen++
	return s
}

// find returns the page and the position in it of the first chunk at or after idx.
func (t *table) find(idx int64) (pi, ci int) {
	pi = len(t.pages) - 1
	if pi < 0 {
		return 0, 0
	}
	// Most look-ups are for the last chunk of a growing file.
	if t.pages[pi].chunks[0].idx > idx {
		pi = sort.Search(pi, func(i int) bool { return t.pages[i].chunks[0].idx > idx }) - 1
		if pi < 0 {
			return 0, 0
		}
	}
	c := t.pages[pi].chunks
	if last := len(c) - 1; c[last].idx < idx {
		return pi + 1, 0
	} else if c[last].idx == idx {
		return pi, last
	}
	return pi, sort.Search(len(c), func(i int) bool { return c[i].idx >= idx })
}

// get returns the chunk, to be read only, or nil.
func (t *table) get(idx int64) *chunk {
	pi, ci := t.find(idx)
	if pi < len(t.pages) && t.pages[pi].chunks[ci].idx == idx {
		return t.pages[pi].chunks[ci]
	}
	return nil
}

// from visits the chunks with an index of at least idx in order.
func (t *table) from(idx int64, yield func(*chunk) bool) {
	pi, ci := t.find(idx)
	for ; pi < len(t.pages); pi, ci = pi+1, 0 {
		for _, c := range t.pages[pi].chunks[ci:] {
			if !yield(c) {
				return
			}
		}
	}
}

// own returns page pi, to be changed.
func (t *table) own(pi int) *page {
	if t.root != t.gen {
		t.pages, t.root = slices.Clone(t.pages), t.gen
	}
	p := t.pages[pi]
	if p.gen != t.gen {
		p = &page{gen: t.gen, chunks: slices.Clone(p.chunks)}
		t.pages[pi] = p
	}
	return p
}

// edit returns the chunk, to be changed, making it if it is not there.
func (t *table) edit(idx int64) *chunk {
	pi, ci := t.find(idx)
	if pi < len(t.pages) && t.pages[pi].chunks[ci].idx == idx {
		c := t.pages[pi].chunks[ci]
		if c.gen != t.gen {
			n := *c
			n.gen, n.shared = t.gen, true
			c = &n
			t.own(pi).chunks[ci] = c
		}
		return c
	}
	c := &chunk{idx: idx, gen: t.gen}
	t.insert(pi, ci, c)
	return c
}

// own makes the fragments' memory the chunk's alone, so that they can be changed
// in place.
func (c *chunk) own() {
	if c.shared {
		c.frags = append(make([]frag, 0, len(c.frags)+4), c.frags...)
		c.shared = false
	}
}

// insert puts c before position ci of page pi.
func (t *table) insert(pi, ci int, c *chunk) {
	t.n++
	if ci == 0 && pi > 0 { // the end of the page before will do
		pi, ci = pi-1, len(t.pages[pi-1].chunks)
	}
	if pi == len(t.pages) {
		if t.root != t.gen {
			t.pages, t.root = slices.Clone(t.pages), t.gen
		}
		t.pages = append(t.pages, &page{gen: t.gen, chunks: []*chunk{c}})
		return
	}
	p := t.own(pi)
	if len(p.chunks) < pageChunks {
		p.chunks = slices.Insert(p.chunks, ci, c)
		return
	}
	// A full page is split where the new chunk goes if that is its end, as in
	// a file that grows, else in the middle.
	at := pageChunks / 2
	if ci == pageChunks {
		at = pageChunks
	}
	q := &page{gen: t.gen, chunks: slices.Clone(p.chunks[at:])}
	clear(p.chunks[at:])
	p.chunks = p.chunks[:at]
	if ci <= at && at < pageChunks {
		p.chunks = slices.Insert(p.chunks, ci, c)
	} else {
		q.chunks = slices.Insert(q.chunks, ci-at, c)
	}
	t.pages = slices.Insert(t.pages, pi+1, q)
}

// push adds a chunk after all others.
func (t *table) push(c *chunk) {
	t.insert(len(t.pages), 0, c)
}

// remove takes the chunks in [from, to) out.
func (t *table) remove(from, to int64) {
	pi, _ := t.find(from)
	keep := pi
	if pi > len(t.pages) {
		return
	}
	for ; pi < len(t.pages) && t.pages[pi].chunks[0].idx < to; pi++ {
		p := t.pages[pi]
		a := sort.Search(len(p.chunks), func(i int) bool { return p.chunks[i].idx >= from })
		b := sort.Search(len(p.chunks), func(i int) bool { return p.chunks[i].idx >= to })
		t.n -= b - a
		if b-a == len(p.chunks) {
			continue
		}
		p = t.own(pi)
		p.chunks = slices.Delete(p.chunks, a, b)
		if keep != pi {
			t.pages[keep] = p
		}
		keep++
	}
	if keep < pi {
		if t.root != t.gen {
			t.pages, t.root = slices.Clone(t.pages), t.gen
		}
		t.pages = slices.Delete(t.pages, keep, pi)
	}
}
