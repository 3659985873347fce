package content

import (
	"cmp"
	"context"
	"slices"
)

// spillBatch is how many bytes are written to staging at a time.
const spillBatch = 4 << 20

// candidate is bytes that are nowhere but in memory.
type candidate struct {
	f    *File
	src  *source
	off  int64 // in the file
	n    int64 // bytes
	used uint64
}

// list notes a file with bytes in memory.
func (fs *Files) list(f *File) {
	fs.dirtyMu.Lock()
	fs.dirty[f] = struct{}{}
	fs.dirtyMu.Unlock()
}

func (fs *Files) unlist(f *File) {
	fs.dirtyMu.Lock()
	delete(fs.dirty, f)
	fs.dirtyMu.Unlock()
}

// press wakes the spiller.
func (fs *Files) press() {
	select {
	case fs.pressed <- struct{}{}:
	default:
	}
}

// spiller moves the bytes that were not written to for longest from memory to
// staging while too much memory is in use. It takes file mutexes only for
// moments and waits for nobody who waits for memory.
func (fs *Files) spiller(ctx context.Context) {
	for {
		select {
		case <-fs.pressed:
		case <-ctx.Done():
			return
		}
		for fs.spill(ctx) {
		}
	}
}

// spill frees what is in excess and tells whether to look again.
func (fs *Files) spill(ctx context.Context) bool {
	n, waiting, freed := fs.mem.excess()
	if n <= 0 || ctx.Err() != nil {
		return false
	}
	found := fs.candidates(n)
	if len(found) > 0 {
		if err := fs.spillAll(found); err != nil {
			fs.log.Error("memory could not be written to staging", "error", err)
			fs.mem.fail(err)
			return false
		}
		return true
	}
	if !waiting {
		return false
	}
	// All of it is being hashed, staged or filled at this moment, and comes
	// back without our help.
	select {
	case <-freed:
		return true
	case <-ctx.Done():
		return false
	}
}

// candidates returns about n bytes to spill, the coldest first.
func (fs *Files) candidates(n int64) []candidate {
	fs.dirtyMu.Lock()
	files := make([]*File, 0, len(fs.dirty))
	for f := range fs.dirty {
		files = append(files, f)
	}
	fs.dirtyMu.Unlock()
	slices.SortFunc(files, func(a, b *File) int { return cmp.Compare(a.touched.Load(), b.touched.Load()) })
	var found []candidate
	var total int64
	for _, f := range files {
		var size int64
		found, size = f.candidates(found)
		if total += size; total >= n {
			break
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.used, b.used) })
	for i, c := range found {
		if n -= c.n; n <= 0 {
			return found[:i+1]
		}
	}
	return found
}

// candidates appends what f could spill, and takes f off the list if it has
// nothing in memory at all.
func (f *File) candidates(to []candidate) ([]candidate, int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cs := f.fs.cfg.ChunkSize
	var size int64
	empty := true
	add := func(src *source, off int64, used uint64) {
		if src.buf == nil {
			return
		}
		empty = false
		if src.place != nil || src.block.Defined() {
			if src.frozen || src.seq <= f.cutSeq {
				f.dropMem(src) // it is somewhere else as well
			}
			return
		}
		if !src.spills {
			to = append(to, candidate{f: f, src: src, off: off, n: int64(src.n), used: used})
			size += int64(src.n)
		}
	}
	f.tab.from(0, func(c *chunk) bool {
		for _, g := range c.frags {
			if c.queued == nil {
				add(g.src, c.idx*cs+int64(g.off), c.used)
			} else if g.src.buf != nil {
				empty = false
			}
		}
		return true
	})
	for _, src := range f.grave {
		add(src, 0, 0)
	}
	if empty {
		f.listed = false
		f.fs.unlist(f)
	}
	return to, size
}

// spillAll writes the candidates to staging and gives their memory back.
func (fs *Files) spillAll(found []candidate) error {
	for len(found) > 0 {
		var recs []record
		var from []candidate
		var bufs []*buf
		total := 0
		for len(found) > 0 && total < spillBatch {
			c := found[0]
			found = found[1:]
			c.f.mu.Lock()
			if src := c.src; src.onlyMem() && !src.gone && !src.spills {
				src.frozen, src.spills = true, true
				recs = append(recs, record{ino: uint64(c.f.ino), off: c.off, data: src.mem()})
				bufs, from = append(bufs, src.buf.hold()), append(from, c)
				total += int(src.n)
			}
			c.f.mu.Unlock()
		}
		err := fs.staging.append(bulk, recs)
		for i, c := range from {
			c.f.mu.Lock()
			c.src.spills = false
			if err == nil {
				c.f.spilled(c.src, recs[i].place)
			}
			c.f.mu.Unlock()
			fs.mem.release(bufs[i])
		}
		if err != nil {
			return err
		}
		fs.space.spent.Add(int64(total))
	}
	return nil
}

// spilled notes that src is in staging and frees its memory.
func (f *File) spilled(src *source, p *place) {
	if src.gone || src.place != nil || src.block.Defined() {
		p.seg.unref() // somebody was faster
		if !src.gone && src.buf != nil {
			f.dropMem(src)
		}
		return
	}
	src.place = p
	f.dropMem(src)
}
