package linksys

import (
	"context"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// A reader that goes through a file is recognised by where its reads begin, not
// by their order: the kernel keeps several in flight. Up to maxStreams readers
// of one file are told apart.
const (
	maxStreams = 4
	minSlack   = 128 << 10 // bytes
	maxSlack   = 4 << 20   // bytes
	minWindow  = 2 << 20   // bytes
	maxWindow  = 16 << 20  // bytes
	// maxLeaf: a child that holds more is no leaf, since no block is larger.
	maxLeaf = 2 << 20 // bytes
)

// stream is one reader going through a file.
type stream struct {
	next    int64  // end of the furthest read
	ahead   int64  // end of what was asked for ahead of it
	window  int64  // how far ahead to fetch; 0 until a second read follows the first
	used    uint64 // File.clock at the last read; 0 when unused
	running bool   // a goroutine is fetching for this stream, or one it replaced
}

// touch notes a read of n bytes at off and tells whether it belongs to a
// sequential reader, for whom it starts fetching what comes next.
func (f *File) touch(off, n int64) bool {
	if f.root == nil || f.root.isLeaf() || n <= 0 {
		return off > 0 // a second read of a file of one leaf
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock++
	st := f.follow(off, n)
	if st == nil {
		st = f.begin(off, n)
	}
	st.used = f.clock
	st.next = max(st.next, off+n)
	if st.window > 0 && !st.running && st.ahead < f.size && st.ahead-st.next < st.window/2 {
		st.running = f.s.background(func(ctx context.Context) { f.runAhead(ctx, st) })
	}
	return st.window > 0
}

// follow returns the stream a read continues, with a wider window, or nil. The
// caller holds mu.
func (f *File) follow(off, n int64) *stream {
	slack := min(max(4*n, minSlack), maxSlack)
	for i := range f.streams {
		st := &f.streams[i]
		if st.used != 0 && off <= st.next+slack && off+n >= st.next-slack {
			st.window = min(max(2*st.window, minWindow, 4*n), maxWindow, f.s.cache.parts[classLeaf].limit/3)
			st.ahead = max(st.ahead, off)
			return st
		}
	}
	return nil
}

// begin starts a stream in the place of the one used least recently. The caller
// holds mu.
func (f *File) begin(off, n int64) *stream {
	st := &f.streams[0]
	for i := range f.streams {
		if f.streams[i].used < st.used {
			st = &f.streams[i]
		}
	}
	*st = stream{next: off + n, ahead: off, running: st.running}
	if n > maxLeaf {
		st.window = n // one read over many leaves gains from fetching them together
	}
	return st
}

// runAhead fetches a stream's window, then ends. Errors are left to the reader,
// who meets them when it gets there.
func (f *File) runAhead(ctx context.Context, st *stream) {
	for {
		f.mu.Lock()
		off := st.ahead
		if off >= min(st.next+st.window, f.size) {
			st.running = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		c, end, err := f.upcoming(ctx, off)
		if err == nil {
			err = f.s.fetchAhead(ctx, c)
		}
		f.mu.Lock()
		if err != nil {
			st.running = false
			f.mu.Unlock()
			return
		}
		if st.ahead == off { // not restarted elsewhere meanwhile
			st.ahead = end
		}
		f.mu.Unlock()
	}
}

// upcoming returns the block to fetch for the byte at off and the offset after
// it. It descends through nodes that are here and fetches those that cannot be
// leaves; a dag-pb block of a leaf's size is taken for one.
func (f *File) upcoming(ctx context.Context, off int64) (cid.Cid, int64, error) {
	it, base := f.root, int64(0)
	for range maxDepth {
		if off-base < int64(len(it.leaf)) {
			return cid.Undef, base + int64(len(it.leaf)), nil
		}
		t := it.file
		i := t.child(off - base)
		at := leafRef{c: t.cids[i], start: base + t.start(i), t: t, i: i}
		at.length = base + t.ends[i] - at.start
		if f.s.isZeroLeaf(at.c, at.length) || at.c.Prefix().MhType == mh.IDENTITY {
			return cid.Undef, at.end(), nil
		}
		next := f.s.cache.peekNode(at.c)
		if next == nil && at.length > maxLeaf {
			var err error
			if next, err = f.s.cache.get(ctx, at.c); err != nil {
				return cid.Undef, 0, err
			}
		}
		if next == nil {
			return at.c, at.end(), nil
		}
		if next.isLeaf() || next.file == nil || next.size() != at.length {
			return cid.Undef, at.end(), nil
		}
		it, base = next, at.start
	}
	return cid.Undef, 0, ErrBudget
}

// fetchAhead starts fetching a block into the cache, after waiting until fewer
// than Options.Prefetch blocks are on their way.
func (s *System) fetchAhead(ctx context.Context, c cid.Cid) error {
	if !c.Defined() || s.cache.known(c) {
		return nil
	}
	select {
	case s.tokens <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !s.spawn(c) {
		return context.Canceled
	}
	return nil
}

// Ahead starts fetching a block that will probably be read soon, after waiting
// until fewer than Options.Prefetch blocks are on their way. Whoever reads the
// block meets the error when it cannot be had. Error: ctx has ended, or Close
// was called.
func (s *System) Ahead(ctx context.Context, c cid.Cid) error { return s.fetchAhead(ctx, c) }

// tryAhead is fetchAhead that gives up instead of waiting.
func (s *System) tryAhead(c cid.Cid) {
	if s.cache.known(c) {
		return
	}
	select {
	case s.tokens <- struct{}{}:
	default:
		return
	}
	s.spawn(c)
}

// spawn fetches a block in the background with a token it gives back.
func (s *System) spawn(c cid.Cid) bool {
	ok := s.background(func(ctx context.Context) {
		defer func() { <-s.tokens }()
		_ = s.cache.warm(ctx, c) // whoever needs the block meets the error
	})
	if !ok {
		<-s.tokens
	}
	return ok
}

// background runs fn in a goroutine that Close waits for, with a context that
// Close ends. It returns false, without running fn, once Close was called.
func (s *System) background(fn func(context.Context)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return false
	}
	s.busy.Go(func() { fn(s.life) })
	return true
}
