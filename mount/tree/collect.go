package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
	"golang.org/x/sync/errgroup"

	"cafs/mount/tree/gc"
	"cafs/mount/tree/index"
	"cafs/store"
)

// Heap is what a collection needs of the block store beside reading.
type Heap interface {
	Sweep() *store.Sweep
	Spare(ctx context.Context, c cid.Cid) (bool, error)
	All(ctx context.Context) iter.Seq2[store.Entry, error]
	Keys(ctx context.Context) iter.Seq2[mh.Multihash, error]
	Size(ctx context.Context, c cid.Cid) (int64, error)
}

// collector is the state of the collection that runs, if one does.
type collector struct {
	roots sync.RWMutex // see lease; held exclusively while roots are taken
	one   sync.Mutex   // one collection at a time

	mu       sync.Mutex
	heap     Heap
	marker   *gc.Marker // nil when no collection runs
	sweeping bool
}

// CollectOptions say what a collection does.
type CollectOptions struct {
	Heap     Heap
	Pins     func() iter.Seq2[cid.Cid, error]
	DryRun   bool
	Progress func(Collected) // may be nil; called now and then
}

// Collected is what a collection found and did. Bytes are those of blocks.
type Collected struct {
	Phase string `json:"phase"` // mark, sweep or done

	Marked int64 `json:"marked"` // blocks found reachable
	Read   int64 `json:"read"`   // of those, blocks read to find others
	Memory int64 `json:"memory"` // bytes for that

	// By why they are kept; but for history only with DryRun, since it costs a
	// look at each.
	TreeBlocks    int64 `json:"tree_blocks,omitempty"`
	TreeBytes     int64 `json:"tree_bytes,omitempty"`
	PinnedBlocks  int64 `json:"pinned_blocks,omitempty"` // that the tree has not
	PinnedBytes   int64 `json:"pinned_bytes,omitempty"`
	HistoryBlocks int64 `json:"history_blocks,omitempty"` // that only commits have
	HistoryBytes  int64 `json:"history_bytes,omitempty"`

	Garbage      int64 `json:"garbage"` // blocks nothing refers to, deleted unless DryRun
	GarbageBytes int64 `json:"garbage_bytes"`
	Spared       int64 `json:"spared"` // blocks nothing referred to that were put meanwhile

	MarkTime  time.Duration `json:"mark_ns"`
	SweepTime time.Duration `json:"sweep_ns"`
	Pause     time.Duration `json:"pause_ns"` // for which writers had to wait
}

// Collect deletes the blocks that nothing refers to: neither the tree, unlinked
// open files and unsealed extents included, nor kept commits or pins. Writers,
// readers, seals and imports go on meanwhile; what they put or find is spared.
// It may be interrupted at any point. Error: gc.ErrUnreadable, with nothing
// deleted.
func (t *Tree) Collect(ctx context.Context, o CollectOptions) (Collected, error) {
	c := &t.collector
	c.one.Lock()
	defer c.one.Unlock()
	var r Collected
	sweep := o.Heap.Sweep() // from now on every put is noted
	defer sweep.End()
	begin := time.Now()
	m := gc.New(t.load)
	r.Phase = "mark"
	defer c.finish()
	err := t.markRoots(ctx, m, o, &r)
	if err != nil {
		return r, fmt.Errorf("tree: collect: %w", err)
	}
	if err := c.toSweep(ctx, m); err != nil {
		return r, fmt.Errorf("tree: collect: %w", err)
	}
	r.Marked, r.Read, r.Memory, r.MarkTime = m.Marked(), m.Reads(), m.Set.Bytes(), time.Since(begin)
	// What dropped the last references must be durable before blocks go.
	if err := t.db.Sync(ctx); err != nil {
		return r, fmt.Errorf("tree: collect: %w", err)
	}
	begin = time.Now()
	if o.DryRun {
		err = t.survey(ctx, m.Set, o, &r)
	} else {
		err = t.sweepGarbage(ctx, m.Set, sweep, o, &r)
	}
	r.Phase, r.SweepTime = "done", time.Since(begin)
	if err != nil {
		return r, fmt.Errorf("tree: collect: %w", err)
	}
	return r, nil
}

// toSweep finishes the marking of what was added by keep, after which keep has
// to look after blocks itself.
func (c *collector) toSweep(ctx context.Context, m *gc.Marker) error {
	for {
		if err := m.Run(ctx); err != nil {
			return err
		}
		c.mu.Lock()
		if m.Idle() {
			c.sweeping = true
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
	}
}

func (c *collector) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marker, c.heap, c.sweeping = nil, nil, false
}

// markRoots takes the roots and marks from them.
func (t *Tree) markRoots(ctx context.Context, m *gc.Marker, o CollectOptions, r *Collected) error {
	if err := t.publishAll(ctx); err != nil {
		return err
	}
	snap, err := t.takeRoots(ctx, m, o, r)
	if err != nil {
		return err
	}
	defer snap.Close()
	if err := MarkTree(ctx, m, snap); err != nil {
		return err
	}
	if err := m.Run(ctx); err != nil {
		return err
	}
	return markKept(ctx, m, snap, o.Pins)
}

// markKept marks pins, and after them kept commits.
func markKept(ctx context.Context, m *gc.Marker, snap *index.Snapshot, pins func() iter.Seq2[cid.Cid, error]) error {
	if pins != nil {
		for c, err := range pins() {
			if err != nil {
				return err
			}
			m.Add(c, gc.Deep, gc.Pinned)
		}
		if err := m.Run(ctx); err != nil {
			return err
		}
	}
	for k, err := range Commits(snap) {
		if err != nil {
			return err
		}
		m.Add(k.Cid, gc.Deep, gc.History)
	}
	return m.Run(ctx)
}

// takeRoots waits for seals that run, then takes the references in memory, and
// after them those in the index: what leaves memory in between is in the index.
func (t *Tree) takeRoots(ctx context.Context, m *gc.Marker, o CollectOptions, r *Collected) (*index.Snapshot, error) {
	c := &t.collector
	c.roots.Lock()
	defer c.roots.Unlock()
	if err := t.content.Settle(ctx); err != nil {
		return nil, err
	}
	// Every file in memory, not only those with something to publish: bytes that
	// were published before they became a block are in that block too, and a seal
	// takes it from there. Nobody has to wait for this.
	for n := range t.table.all() {
		markMemory(m, n)
	}
	t.record.moment.Lock()
	defer t.record.moment.Unlock()
	begin := time.Now()
	for _, ino := range t.dirtySet.list() { // again, for what one file took over from another
		n, err := t.pin(ino)
		if errors.Is(err, syscall.ESTALE) {
			continue
		} else if err != nil {
			return nil, err
		}
		markMemory(m, n)
		t.unpin(n)
	}
	snap := t.db.Snapshot()
	c.mu.Lock()
	c.marker, c.heap = m, o.Heap
	c.mu.Unlock()
	r.Pause = time.Since(begin)
	return snap, nil
}

// markMemory adds the blocks that a file in memory refers to.
func markMemory(m *gc.Marker, n *inode) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.file != nil {
		n.file.Refs(func(c cid.Cid) bool { m.Add(c, gc.Deep, gc.Tree); return true })
	}
}

// inodesStep and keysStep are how many inodes and names of blocks are looked at
// before others may run.
const (
	inodesStep = 32
	keysStep   = 128
)

// MarkTree adds what the index refers to for the tree's sake to the marker.
func MarkTree(ctx context.Context, m *gc.Marker, snap *index.Snapshot) error {
	seen := 0
	for in, err := range snap.Inodes(0) {
		if err != nil {
			return err
		}
		if seen++; seen%inodesStep == 0 {
			runtime.Gosched()
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if err := markInode(m, snap, in.Ino, &in.Inode); err != nil {
			return err
		}
	}
	return markLinks(m, snap)
}

// markInode marks what an inode refers to.
func markInode(m *gc.Marker, snap *index.Snapshot, ino Ino, in *index.Inode) error {
	if in.Kind == index.Dir && !in.Lazy {
		// Its entries are inodes of their own, newer than what Base links.
		m.Add(in.Base, gc.Shards, gc.Tree)
		m.Add(in.Record, gc.Record, gc.Tree)
		return nil
	}
	m.Add(in.Base, gc.Deep, gc.Tree)
	m.Add(in.Record, gc.Deep, gc.Tree)
	if in.Kind != index.File || !in.Unsealed {
		return nil
	}
	for e, err := range snap.Extents(ino) {
		if err != nil {
			return err
		}
		if e.Kind == index.Block {
			m.Add(e.Block, gc.Deep, gc.Tree)
		}
	}
	return nil
}

// markLinks marks the map of link ids.
func markLinks(m *gc.Marker, snap *index.Snapshot) error {
	val, err := snap.Ref(refLinks)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	links, err := cid.Cast(val)
	if err != nil {
		return fmt.Errorf("ref %s: %w", refLinks, index.ErrCorrupt)
	}
	m.Add(links, gc.Record, gc.Tree)
	return nil
}

const (
	sweepers   = 16 // deletions at a time: they wait for the disk
	sweepBatch = 64
)

// progressEvery is how many blocks are looked at between two reports.
const progressEvery = 4096

// sweepGarbage deletes what is not marked.
func (t *Tree) sweepGarbage(ctx context.Context, set *gc.Set, sweep *store.Sweep, o CollectOptions, r *Collected) error {
	r.Phase = "sweep"
	var mu sync.Mutex // guards r
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sweepers)
	remove := func(batch []mh.Multihash) error {
		for _, h := range batch {
			size, deleted, err := sweep.Delete(ctx, h)
			if err != nil {
				return err
			}
			if deleted && t.opts.Deleted != nil {
				t.opts.Deleted(h, size)
			}
			mu.Lock()
			if deleted {
				r.Garbage++
				r.GarbageBytes += size
			} else {
				r.Spared++
			}
			mu.Unlock()
		}
		return ctx.Err()
	}
	var batch []mh.Multihash
	var listing error
	seen := 0
	for h, err := range o.Heap.Keys(ctx) {
		if err != nil {
			listing = err
			break
		}
		if seen++; seen%keysStep == 0 {
			runtime.Gosched()
		}
		if seen%progressEvery == 0 && o.Progress != nil {
			mu.Lock()
			now := *r
			mu.Unlock()
			o.Progress(now)
		}
		if class, ok := set.Class(h); ok {
			if class == gc.History {
				size, err := o.Heap.Size(ctx, cid.NewCidV1(cid.Raw, h))
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					listing = err
					break
				}
				mu.Lock()
				r.HistoryBlocks++
				r.HistoryBytes += size
				mu.Unlock()
			}
			continue
		}
		if batch = append(batch, h); len(batch) == sweepBatch {
			full := batch
			g.Go(func() error { return remove(full) })
			batch = nil
		}
	}
	g.Go(func() error { return remove(batch) })
	if err := g.Wait(); err != nil {
		return err
	}
	return listing
}

// survey counts what is kept, for whom, and what would go.
func (t *Tree) survey(ctx context.Context, set *gc.Set, o CollectOptions, r *Collected) error {
	for e, err := range o.Heap.All(ctx) {
		if err != nil {
			return err
		}
		class, ok := set.Class(e.Hash)
		switch {
		case !ok:
			r.Garbage++
			r.GarbageBytes += e.Size
		case class == gc.Tree:
			r.TreeBlocks++
			r.TreeBytes += e.Size
		case class == gc.Pinned:
			r.PinnedBlocks++
			r.PinnedBytes += e.Size
		default:
			r.HistoryBlocks++
			r.HistoryBytes += e.Size
		}
	}
	return nil
}

// keep protects a DAG, which the index is about to refer to, from the collection
// that runs. The caller has a lease, so that none takes its roots meanwhile.
func (t *Tree) keep(ctx context.Context, root cid.Cid) error {
	c := &t.collector
	c.mu.Lock()
	m, heap, sweeping := c.marker, c.heap, c.sweeping
	if m != nil && !sweeping {
		m.AddMaybe(root, gc.Tree)
	}
	c.mu.Unlock()
	if m == nil || !sweeping {
		return nil
	}
	// Too late to be marked: note every block that is not.
	return gc.Walk(ctx, t.load, root, gc.Deep, func(k cid.Cid) (bool, error) {
		if m.Kept(k) {
			return false, nil
		}
		ok, err := heap.Spare(ctx, k)
		if err == nil && !ok {
			err = fmt.Errorf("tree: keep %s: block %s: %w", root, k, store.ErrNotFound)
		}
		return true, err
	})
}
