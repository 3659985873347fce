// Package content keeps the contents of files that are newer than their
// content addresses: bytes in memory, in staging segments and in leaf blocks,
// as an overlay over an immutable base. It is the write path of the tree.
//
// It promises that no byte is lost or replaced by zeros without an error, that
// memory for unsaved bytes stays within a limit, and that what [Cut.Fill] puts
// into an index batch refers to durable bytes only. It decides nothing about
// names, attributes or the moment of publishing: the tree does.
//
// Life of a change: WriteAt puts bytes into memory. [File.Cut] takes the state
// of a moment; [Files.Stage] makes its bytes durable; [Cut.Fill] puts the
// extents that differ from the published ones into a batch; once that batch is
// committed, [Cut.Commit] notes it and gives memory back. [Cut.Leaves] and
// [Cut.Rebase] turn the overlay into a new base.
//
// # Locks
//
// In this order; none is held during I/O, and none while waiting for memory:
//
//	File.mu               of one file at a time
//	Files.dirtyMu, queue.mu, memory.mu
//	staging lane, segment.mu, staging.mu
//
// The tree may call any method under its own locks: nothing here calls back.
package content

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/index"
	"cafs/store/disk"

	"github.com/ipfs/go-cid"
)

// Base reads the content of an immutable file. Methods may be called
// concurrently.
type Base interface {
	Size() int64
	// ReadAt reads len(p) bytes at off; fewer only at the end of the file.
	ReadAt(ctx context.Context, p []byte, off int64) (int, error)
	// NextData and NextHole return the first offset at or after off that is
	// data or a hole; Size when there is none.
	NextData(ctx context.Context, off int64) (int64, error)
	NextHole(ctx context.Context, off int64) (int64, error)
	// Leaf returns the leaf that holds off, and the range it covers.
	Leaf(ctx context.Context, off int64) (c cid.Cid, start, length int64, err error)
}

// Blocks keeps leaf blocks; see package store for the contracts.
type Blocks interface {
	Get(ctx context.Context, c cid.Cid) ([]byte, error)
	Put(ctx context.Context, c cid.Cid, block []byte) error
	Flush(ctx context.Context, cids []cid.Cid) error
}

// Config says where contents live. Staging, Blocks, OpenBase, Leaf, LeafData
// and ChunkSize are required.
type Config struct {
	Staging      disk.FS // folder of the segments; stays the caller's to close
	Blocks       Blocks
	OpenBase     func(ctx context.Context, c cid.Cid) (Base, error)
	Leaf         func(data []byte) (unixfs.Block, error)
	LeafData     func(ctx context.Context, c cid.Cid) ([]byte, error)
	ChunkSize    int64    // bytes of content in a leaf
	DirtyLimit   int64    // bytes of memory for unsaved contents; default 256 MiB
	StagingLimit int64    // staged bytes above which Stats.OverStaged is set; default 1 GiB
	Ballast      *Ballast // may be nil
	SpaceReserve int64    // free bytes on the staging volume that writes leave alone; default 16 MiB
	// Capacity tells how many bytes of blocks there may be, and how many more: what
	// is written becomes blocks in the end. Nil or 0: no limit but the disk.
	Capacity func() (total, left int64)
	// Failed tells why nothing can be changed any more, or nil: that comes before a
	// want of room. May be nil.
	Failed      func() error
	SegmentSize int64 // bytes; a staging segment ends with the record that passes it; default 64 MiB
	Segments    []index.Segment
	Logger      *slog.Logger
}

// Stats are gauges, in bytes.
type Stats struct {
	Dirty      int64 // memory taken by contents
	DirtyLimit int64
	Staged     int64 // staged bytes that published extents refer to
	Segments   int64 // size of all segment files
	OverStaged bool  // sealing should bring Staged down
}

var (
	// ErrDamaged: bytes are missing or do not match their checksum.
	ErrDamaged = errors.New("staged content damaged")
	// ErrLost: an earlier write-out of this file's bytes failed. It stays so
	// until the file is loaded anew.
	ErrLost = errors.New("earlier write-out of this file failed")
	// ErrEnded: the cut was committed, aborted or rebased before.
	ErrEnded = errors.New("cut has ended")
	// ErrClosed: the contents were closed.
	ErrClosed = errors.New("contents closed")
)

// Files are the contents of a tree's files. Methods may be called concurrently.
type Files struct {
	cfg     Config
	log     *slog.Logger
	ranges  rangeGetter // Config.Blocks, if it can check parts of blocks
	sizes   sizer       // Config.Blocks, if it tells the lengths of blocks
	raw     cid.Prefix  // of leaves that are nothing but their content; zero if the profile has others
	mem     *memory
	staging *staging
	work    *queue
	space   space
	clock   atomic.Uint64
	zero    zeroLeaf

	dirtyMu sync.Mutex
	dirty   map[*File]struct{} // files that may have bytes in memory

	pressed chan struct{}
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// Open starts the background workers. Nothing is read from staging but its list
// of files.
func Open(cfg Config) (*Files, error) {
	return open(cfg, false)
}

// open is Open; heap keeps buffers where the race detector sees them, and makes
// late uses of them visible.
func open(cfg Config, heap bool) (*Files, error) {
	if cfg.ChunkSize <= 0 || cfg.ChunkSize > maxRecord/2 {
		return nil, fmt.Errorf("content: chunk size %d is out of range", cfg.ChunkSize)
	}
	if cfg.DirtyLimit <= 0 {
		cfg.DirtyLimit = 256 << 20
	}
	if cfg.StagingLimit <= 0 {
		cfg.StagingLimit = 1 << 30
	}
	if cfg.SpaceReserve <= 0 {
		cfg.SpaceReserve = 16 << 20
	}
	st, err := openStaging(cfg.Staging, cfg.Segments)
	if err != nil {
		return nil, err
	}
	if cfg.SegmentSize > 0 {
		st.segSize = cfg.SegmentSize
	}
	fs := &Files{
		cfg: cfg, log: cfg.Logger, staging: st, work: newQueue(), dirty: make(map[*File]struct{}),
		pressed: make(chan struct{}, 1), space: space{fs: cfg.Staging, reserve: cfg.SpaceReserve, ballast: cfg.Ballast, capacity: cfg.Capacity},
	}
	if fs.log == nil {
		fs.log = slog.New(slog.DiscardHandler)
	}
	fs.ranges, _ = cfg.Blocks.(rangeGetter)
	fs.space.blocks, _ = cfg.Blocks.(backlog)
	fs.sizes, _ = cfg.Blocks.(sizer)
	sample, err := cfg.Leaf([]byte{0})
	if err != nil {
		return nil, fmt.Errorf("content: encode leaf: %w", err)
	}
	if p := sample.Cid.Prefix(); p.Codec == cid.Raw {
		fs.raw = p
	}
	fs.mem = newMemory(cfg.DirtyLimit, cfg.ChunkSize, fs.press)
	fs.mem.heap, fs.mem.poison = heap, heap
	ctx, cancel := context.WithCancel(context.Background())
	fs.cancel = cancel
	for range workers {
		fs.running.Go(func() { fs.worker(ctx) })
	}
	fs.running.Go(func() { fs.spiller(ctx) })
	return fs, nil
}

// Close stops the workers. Unpublished bytes are lost: cut, stage and publish
// them before. No other method may run or be called any more.
func (fs *Files) Close() error {
	fs.cancel()
	fs.work.close()
	fs.running.Wait()
	fs.mem.close()
	return fs.staging.close()
}

// Settle returns when every leaf block that was put before is entered into its
// file, so that File.Refs shows it. Garbage collection calls it after it began
// to note puts and before it reads Refs.
func (fs *Files) Settle(ctx context.Context) error {
	fs.work.mu.Lock()
	busy := slices.Clone(fs.work.busy)
	fs.work.mu.Unlock()
	for _, j := range busy {
		select {
		case <-j.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Stats returns the gauges.
func (fs *Files) Stats() Stats {
	s := Stats{Dirty: fs.mem.inUse(), DirtyLimit: fs.cfg.DirtyLimit}
	for _, g := range fs.staging.list() {
		g.mu.Lock()
		s.Segments += g.size
		g.mu.Unlock()
		s.Staged += g.live.Load()
	}
	s.OverStaged = s.Staged > fs.cfg.StagingLimit
	return s
}
