package content

import "slices"

// OpenWatched is Open with buffers on the Go heap, which the race detector
// watches, overwritten when they are freed; segments end at segSize bytes.
func OpenWatched(cfg Config, segSize int64) (*Files, error) {
	fs, err := open(cfg, true)
	if err == nil && segSize > 0 {
		fs.staging.segSize = segSize
	}
	return fs, err
}

// Frags counts the fragments of the overlay; MaxVisible bounds visible ranges.
func (f *File) Frags() (n int) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	f.tab.from(0, func(c *chunk) bool {
		n += len(c.frags)
		return true
	})
	return n
}

const (
	MaxVisible = maxVisible
	MaxInline  = maxInline
)

// Check panics when counts of references are not what the overlay shows.
func (f *File) Check() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	refs := make(map[*source]int32)
	bad := ""
	last := int64(-1)
	n := 0
	f.tab.from(0, func(c *chunk) bool {
		if c.idx <= last {
			bad = "chunks out of order"
		}
		last = c.idx
		n++
		end := int32(0)
		for _, g := range c.frags {
			if g.off < end || g.n <= 0 || g.skip < 0 || g.skip+g.n > g.src.n || int64(g.end()) > f.fs.cfg.ChunkSize {
				bad = "fragments overlap or pass their source"
			}
			if g.src.gone || !g.src.hole && g.src.buf == nil && g.src.place == nil && !g.src.block.Defined() {
				bad = "fragment shows nothing"
			}
			end = g.end()
			refs[g.src]++
		}
		return true
	})
	if n != f.tab.n {
		bad = "wrong number of chunks"
	}
	for src, n := range refs {
		if src.refs != n {
			bad = "wrong number of references"
		}
	}
	return bad
}

// Waiting tells how many writers wait for memory.
func (fs *Files) Waiting() int {
	fs.mem.mu.Lock()
	defer fs.mem.mu.Unlock()
	return len(fs.mem.waiters)
}

// Drain waits until no chunk is queued for a worker.
func (fs *Files) Drain() {
	for {
		fs.work.mu.Lock()
		jobs := slices.Concat(fs.work.urgent, fs.work.later, fs.work.busy)
		fs.work.mu.Unlock()
		if len(jobs) == 0 {
			return
		}
		<-jobs[0].done
	}
}
