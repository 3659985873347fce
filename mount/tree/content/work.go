package content

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"cafs/linksys/unixfs"
)

const workers = 2 // hashing and storing leaves; one keeps up with a disk of 1 GB/s

// job is a chunk to be made a block.
type job struct {
	f    *File
	idx  int64
	done chan struct{} // closed when it is over, well or not
}

// queue holds the jobs that no worker has taken. What somebody waits for goes first.
type queue struct {
	mu     sync.Mutex
	more   *sync.Cond
	urgent []*job
	later  []*job
	busy   []*job // taken by workers
	closed bool
}

func newQueue() *queue {
	q := &queue{}
	q.more = sync.NewCond(&q.mu)
	return q
}

func (q *queue) push(f *File, idx int64) *job {
	j := &job{f: f, idx: idx, done: make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.later = append(q.later, j)
	q.more.Signal()
	return j
}

// hurry moves j to the front.
func (q *queue) hurry(j *job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.later, j); i >= 0 {
		q.later = slices.Delete(q.later, i, i+1)
		q.urgent = append(q.urgent, j)
	}
}

// pop waits for a job; nil when the queue was closed.
func (q *queue) pop() *job {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		l := &q.urgent
		if len(*l) == 0 {
			l = &q.later
		}
		if q.closed {
			return nil
		}
		if len(*l) > 0 {
			j := (*l)[0]
			(*l)[0] = nil
			*l = (*l)[1:]
			q.busy = append(q.busy, j)
			return j
		}
		q.more.Wait()
	}
}

// finish tells all who wait for j that it is over.
func (q *queue) finish(j *job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy = slices.DeleteFunc(q.busy, func(o *job) bool { return o == j })
	close(j.done)
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, j := range append(q.urgent, q.later...) {
		close(j.done)
	}
	q.urgent, q.later = nil, nil
	q.more.Broadcast()
}

// worker makes blocks of chunks until the queue is closed.
func (fs *Files) worker(ctx context.Context) {
	for j := fs.work.pop(); j != nil; j = fs.work.pop() {
		if err := j.f.fold(ctx, j); err != nil && ctx.Err() == nil {
			// The bytes stay where they are and will be staged instead.
			fs.log.Warn("chunk was not stored as a block", "inode", j.f.ino, "chunk", j.idx, "error", err)
		}
		fs.work.finish(j)
		fs.mem.nudge()
	}
}

// composed is the content of a chunk as of a moment. It holds what its bytes
// are in, so that they can be read without the file's mutex.
type composed struct {
	data    []byte // complete after fetch
	pieces  []piece
	held    *buf    // data is in this buffer,
	scratch *[]byte // or in this
	frags   []frag
	seq     uint64
	epoch   uint32
}

// compose begins to put chunk idx of v together. The caller holds f.mu, for
// writing if v is the file's own view.
func (f *File) compose(v *view, idx int64) *composed {
	cs := f.fs.cfg.ChunkSize
	start := idx * cs
	length := min(cs, v.size-start)
	co := &composed{seq: f.seq}
	if c := v.tab.get(idx); c != nil {
		co.frags, co.epoch = slices.Clone(c.frags), c.epoch
	}
	if b := contiguous(co.frags, int32(length)); b != nil {
		at := co.frags[0].src.at + co.frags[0].skip
		co.held, co.data = b.hold(), b.data[at:int64(at)+length]
		return co
	}
	co.scratch = getScratch(int(length))
	co.data = *co.scratch
	co.pieces = f.pieces(nil, v, co.data, start, false)
	return co
}

// contiguous returns the buffer that the fragments show n bytes of in one
// piece, or nil.
func contiguous(frags []frag, n int32) *buf {
	if len(frags) == 0 || frags[0].src.buf == nil {
		return nil
	}
	b, next, off := frags[0].src.buf, frags[0].src.at+frags[0].skip, int32(0)
	for _, g := range frags {
		if g.off != off || g.src.buf != b || g.src.at+g.skip != next {
			return nil
		}
		off, next = off+g.n, next+g.n
	}
	if off != n {
		return nil
	}
	return b
}

func (co *composed) release(m *memory) {
	if co.held != nil {
		m.release(co.held)
		co.held = nil
	}
	if co.scratch != nil {
		putScratch(co.scratch)
		co.scratch = nil
	}
}

// fold makes a block of a chunk and shows that instead of the chunk's
// fragments. What is written meanwhile stays on top.
func (f *File) fold(ctx context.Context, j *job) error {
	f.mu.Lock()
	c := f.tab.get(j.idx)
	if f.dead || c == nil || c.queued != j {
		f.mu.Unlock()
		return nil
	}
	if !f.ripe(c) { // it was punched, truncated or sealed meanwhile
		f.tab.edit(j.idx).queued = nil
		f.mu.Unlock()
		return nil
	}
	for _, g := range c.frags {
		g.src.frozen = true
	}
	co, base := f.compose(&f.view, j.idx), f.base
	f.mu.Unlock()
	defer co.release(f.fs.mem)
	var leaf unixfs.Root
	err := f.fetch(ctx, co.pieces, base)
	if err == nil {
		leaf, err = f.fs.store(ctx, co.data)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	c = f.tab.get(j.idx)
	same := c != nil && c.queued == j // else it was erased, and perhaps made anew
	if err == nil && !f.dead {
		f.seq++
		f.install(j.idx, co, leaf, same)
	}
	if same {
		f.tab.edit(j.idx).queued = nil
	}
	return err
}

// install shows a block made of the composed chunk. A source that was the whole
// chunk is found in the block from now on, whatever shows it.
func (f *File) install(idx int64, co *composed, leaf unixfs.Root, same bool) {
	n := int32(len(co.data))
	if g := co.frags[0]; len(co.frags) == 1 && g.skip == 0 && g.n == n && g.src.n == n {
		if src := g.src; !src.gone {
			src.block, src.tsize, src.whole, src.own = leaf.Cid, leaf.Tsize, true, true
			f.dropMem(src)
			if src.place != nil {
				src.place.seg.unref()
				src.place = nil
			}
			if same {
				f.change(idx)
			}
		}
		return
	}
	c := f.tab.get(idx)
	if !same || c.epoch != co.epoch {
		return
	}
	c = f.change(idx)
	src := &source{seq: co.seq, n: n, refs: 1, frozen: true, block: leaf.Cid, tsize: leaf.Tsize, whole: true, own: true}
	old := c.frags
	c.frags, c.shared = append(make([]frag, 0, 4), frag{n: n, src: src}), false
	for _, g := range old {
		if g.src.seq <= co.seq {
			f.deref(g.src)
			continue
		}
		i := f.carve(c, g.off, g.end())
		c.frags = slices.Insert(c.frags, i, g)
	}
	c.fill = max(c.fill, n)
}

// store encodes one chunk as a leaf and puts it.
func (fs *Files) store(ctx context.Context, data []byte) (unixfs.Root, error) {
	blk, err := fs.cfg.Leaf(data)
	if err != nil {
		return unixfs.Root{}, fmt.Errorf("content: encode leaf: %w", err)
	}
	if err := fs.cfg.Blocks.Put(ctx, blk.Cid, blk.Data); err != nil {
		return unixfs.Root{}, fmt.Errorf("content: put leaf: %w", err)
	}
	fs.space.spent.Add(int64(len(blk.Data)))
	return unixfs.Root{Cid: blk.Cid, Size: uint64(len(data)), Tsize: uint64(len(blk.Data))}, nil
}
