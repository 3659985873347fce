package tree

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"cafs/mount/tree/index"
)

// maxQuiet is the longest that a file changed again and again waits to be
// sealed.
const maxQuiet = 10 * time.Minute

// quiet keeps the files that wait to be sealed until nobody changes them.
type quiet struct {
	mu    sync.Mutex
	files map[Ino]quietFile
}

type quietFile struct {
	touched time.Time     // when the contents were last changed; zero: sealed since
	sealed  time.Time     // when it was last sealed
	wait    time.Duration // how long it must be quiet
}

// touch notes that a change was published. Being changed again soon after it was sealed doubles
// the quiet time that the file must show.
func (q *quiet) touch(ino Ino, at time.Time, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f, known := q.files[ino]
	switch {
	case !known:
		f.wait = wait
	case f.touched.IsZero():
		f.wait = min(2*f.wait, maxQuiet)
	}
	f.touched = at
	q.files[ino] = f
}

// found puts a file on the list, if it is not there, as last changed at a time.
func (q *quiet) found(ino Ino, at time.Time, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.files[ino]; !known {
		q.files[ino] = quietFile{touched: at, wait: wait}
	}
}

// due takes up to n files that have been quiet for long enough, or with all set
// those quiet for the longest, the longest first.
func (q *quiet) due(now time.Time, n int, all bool) []Ino {
	type aged struct {
		ino Ino
		at  time.Time
	}
	var list []aged
	q.mu.Lock()
	defer q.mu.Unlock()
	for ino, f := range q.files {
		switch {
		case f.touched.IsZero():
			if now.Sub(f.sealed) > maxQuiet {
				delete(q.files, ino)
			}
		case all || now.Sub(f.touched) >= f.wait:
			list = append(list, aged{ino, f.touched})
		}
	}
	slices.SortFunc(list, func(a, b aged) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.ino, b.ino)) })
	var inos []Ino
	for _, a := range list[:min(n, len(list))] {
		f := q.files[a.ino]
		f.touched, f.sealed = time.Time{}, now
		q.files[a.ino] = f
		inos = append(inos, a.ino)
	}
	return inos
}

func (q *quiet) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, f := range q.files {
		if !f.touched.IsZero() {
			n++
		}
	}
	return n
}

// commitLoop publishes contents every commit interval (DESIGN 5a, O3), and makes
// them and the namespace durable: it bounds what a power cut can take from those
// who never call fsync.
func (t *Tree) commitLoop(ctx context.Context) {
	tick := time.NewTicker(t.opts.CommitInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.db.Failed():
			t.log.Error("the index cannot be written; the tree is read-only now", "error", t.db.Err())
			return
		case <-tick.C:
		}
		if err := t.publishAll(ctx); err != nil && ctx.Err() == nil {
			t.log.Error("publishing contents", "error", err)
		}
		if !t.db.Unsynced() {
			continue
		}
		if err := t.db.Sync(ctx); err != nil && ctx.Err() == nil && t.db.Err() == nil {
			t.log.Error("making the tree durable", "error", err)
		}
	}
}

// sealLoop turns what is quiet into blocks, and gives staging space back.
func (t *Tree) sealLoop(ctx context.Context) {
	if err := t.sweepOrphans(); err != nil {
		t.log.Error("removing files that were open at an unclean end", "error", err)
	}
	begin, found := time.Now(), false
	tick := time.NewTicker(max(t.opts.SealAfter/4, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.db.Failed():
			return
		case <-tick.C:
		}
		if err := t.emptyGrave(ctx); err != nil && ctx.Err() == nil {
			t.log.Error("removing what was replaced", "error", err)
		}
		if !found && time.Since(begin) >= t.opts.SealAfter {
			t.findUnsealed(ctx, begin)
			found = true
		}
		if err := t.sealQuiet(ctx); err != nil && ctx.Err() == nil {
			t.log.Error("sealing in the background", "error", err)
		}
		if err := t.reclaim(ctx); err != nil && ctx.Err() == nil {
			t.log.Error("giving staging space back", "error", err)
		}
	}
}

// findUnsealed puts files that an earlier run left unsealed on the list, as quiet
// since the tree was opened. It is done when they are due, not at once: it looks
// at every inode, and whoever opens a tree is about to use it.
func (t *Tree) findUnsealed(ctx context.Context, opened time.Time) {
	seen := 0
	for rec, err := range t.db.Inodes(0) {
		if err != nil {
			t.log.Error("looking for unsealed files", "error", err)
			return
		}
		if seen++; seen%inodesStep == 0 {
			runtime.Gosched()
			if ctx.Err() != nil {
				return
			}
		}
		if rec.Kind == index.File && rec.Unsealed && rec.Nlink > 0 {
			t.quiet.found(rec.Ino, opened, t.opts.SealAfter)
		}
	}
}

// sealQuiet seals files that have been quiet for long enough, and the coldest
// ones too while staging is over its limit.
func (t *Tree) sealQuiet(ctx context.Context) error {
	const group = 512
	for ctx.Err() == nil {
		inos := t.quiet.due(time.Now(), group, t.content.Stats().OverStaged)
		if len(inos) == 0 {
			return nil
		}
		slices.Sort(inos)
		if _, err := t.sealFiles(ctx, inos); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// reclaim removes staging segments that nothing refers to, and empties those of
// which little is left.
func (t *Tree) reclaim(ctx context.Context) error {
	for _, seg := range t.content.Sparse() {
		inos, err := t.content.SegmentInodes(ctx, seg)
		if err != nil {
			return err
		}
		for _, ino := range inos {
			if err := t.evacuate(ctx, ino, seg); err != nil {
				return err
			}
		}
	}
	return t.content.FreeSegments(ctx, t.db)
}

// evacuate moves what a file has in a staging segment elsewhere.
func (t *Tree) evacuate(ctx context.Context, ino Ino, seg uint64) error {
	n, err := t.pin(ino)
	if err != nil {
		return nil // removed since: nothing to move
	}
	defer t.unpin(n)
	if n.kind != index.File {
		return nil
	}
	f, err := t.rlockContents(n)
	if err != nil {
		return err
	}
	err = f.Evacuate(ctx, seg)
	n.mu.RUnlock()
	if err != nil {
		return err
	}
	if f.Dirty() {
		t.dirtySet.add(n)
	}
	return t.publish(ctx, inlineTick, n)
}
