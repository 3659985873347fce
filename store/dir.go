package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"

	"cafs/shard"
	"cafs/store/disk"

	mh "github.com/multiformats/go-multihash"
)

// PageSums keeps page checksums between runs. They are a cache: what is lost
// is computed again. Implementations must be safe for concurrent use.
type PageSums interface {
	LoadPages(h mh.Multihash) (sums []uint32, ok bool, err error)
	SavePages(h mh.Multihash, sums []uint32) error
}

// Options of a [Dir]. The zero value opens an existing store as it is.
type Options struct {
	// Shard is the sharding function of a store that is made; an existing one
	// must have it. Zero: what SHARDING says, or [shard.Default].
	Shard shard.Func
	// CreateIfMissing makes the store when the folder is empty.
	CreateIfMissing bool
	// Pages keeps page checksums; nil keeps them in memory only.
	Pages PageSums
	// Capacity is the number of bytes of blocks the store may hold; 0 is no limit.
	Capacity int64
	// ReserveBytes and ReserveInodes are left free on the file system: puts
	// fail with ErrFull before they are touched. Zero: 16 MiB and 1024, or 1/64
	// of the file system where that is less.
	ReserveBytes, ReserveInodes int64
	// Buffered writes large blocks through the page cache. Otherwise those whose
	// memory and length are whole pages go around it where the file system can:
	// less work, since what was just written is seldom read from here.
	Buffered bool
	Logger   *slog.Logger
}

// Dir is the store on disk, in flatfs layout.
//
// A put writes aside: small blocks stay in memory, large ones go to a file in
// the staging folder and towards the device at once. A barrier makes a batch of
// them durable: it writes what is still in memory, flushes, renames every file
// to its final name and flushes the names. Until the end of that the block is in
// the pending table, from which it is read and in which a second put finds it.
// Small blocks of several who wait go to a log before (log.go), and are durable
// there. So a final name is there only with its bytes, and what is not in the table is
// either durable or absent.
//
// Lock order: life, a stripe of the pending table, the queue, an entry.
type Dir struct {
	root    disk.FS
	opts    Options
	log     *slog.Logger
	shard   shard.Func
	folders folders
	staging staging
	logs    logs

	// life is held shared by every call and exclusively by Close.
	life   sync.RWMutex
	closed bool

	table  table
	queue  queue
	whole  group // one SyncFS for all who wait
	room   room
	pages  pageCache
	files  fileCache
	sweeps sweeps

	failed   atomic.Pointer[error]
	noDirect atomic.Bool // the file system refused to go around the page cache
	stats    counters
	stop     context.CancelFunc // ends background counting
	work     sync.WaitGroup     // background goroutines
}

// Open opens the store in the folder root, which stays the caller's to close
// after Close. One process may have a store open at a time; the caller keeps
// that so. Errors: ErrNotStore, ErrLayout, ErrResharding.
//
// It costs the same for a large store as for a small one. After an unclean end
// it flushes the file system once, since a name seen now may not be durable
// yet, takes blocks from logs, and removes what interrupted writes left.
func Open(root disk.FS, opts Options) (*Dir, error) {
	fn, created, err := readLayout(root, opts)
	if err != nil {
		return nil, fmt.Errorf("store: open: %w", err)
	}
	d := &Dir{root: root, opts: opts, log: opts.Logger, shard: fn}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	clean, logs, err := d.staging.open(root)
	if err != nil {
		stop()
		d.staging.close()
		return nil, fmt.Errorf("store: open: %w", err)
	}
	d.folders.init(root)
	d.whole.sync, d.whole.few = root.SyncFS, fewFlushes
	d.queue.init(d)
	d.table.init()
	d.pages.init(opts.Pages)
	d.logs.init(root, d.staging.dir, logs)
	if err = d.replay(logs); err == nil {
		err = d.openRoom(ctx, created, clean)
	}
	if err != nil {
		stop()
		d.queue.wait()
		d.release()
		return nil, fmt.Errorf("store: open: %w", err)
	}
	return d, nil
}

// release closes all handles.
func (d *Dir) release() {
	d.files.close()
	d.folders.close()
	d.logs.close()
	d.staging.close()
}

// enter begins a call; leave ends it.
func (d *Dir) enter() error {
	d.life.RLock()
	if d.closed {
		d.life.RUnlock()
		return ErrClosed
	}
	return nil
}

func (d *Dir) leave() { d.life.RUnlock() }

// Shard is the store's sharding function.
func (d *Dir) Shard() shard.Func { return d.shard }

// Close makes every put durable and closes the store. When it fails the store
// counts as unclean at the next Open.
func (d *Dir) Close() error {
	syncErr := d.Sync(context.Background())
	if errors.Is(syncErr, ErrClosed) {
		return nil
	}
	d.life.Lock()
	if d.closed {
		d.life.Unlock()
		return nil
	}
	d.closed = true
	d.life.Unlock()
	d.stop()
	d.queue.wait()
	if syncErr == nil {
		syncErr = d.settle(context.Background())
		d.queue.wait()
	}
	d.work.Wait()
	d.table.each(func(e *entry) {
		if e.written && !e.renamed && e.temp.file != nil {
			d.staging.remove(e.temp) // it has no name and is lost, as Sync said
		}
		e.drop()
	})
	err := syncErr
	if err == nil {
		err = d.writeUsage()
	}
	d.release()
	if err != nil {
		return err
	}
	return d.staging.end(d.root)
}

// poison makes every later put and barrier fail, and returns the error they get.
func (d *Dir) poison(cause error) error {
	err := fmt.Errorf("store: %w (%w)", ErrPoisoned, cause)
	if d.failed.CompareAndSwap(nil, &err) {
		d.log.Error("block store failed: nothing is written until it is opened again", "cause", cause)
	}
	return *d.failed.Load()
}

func (d *Dir) poisoned() error {
	if p := d.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// Stats are counters since Open, and what is known of the store's size.
type Stats struct {
	Pending, PendingBytes   int64 // put and not yet durable
	Puts, Existing          int64 // puts of new blocks, and of existing ones
	Gets, Ranges            int64
	Barriers                int64
	BytesWritten, BytesRead int64
	Bytes                   int64 // of all blocks; -1 until it is known
}

type counters struct {
	puts, existing, gets, ranges, barriers, written, read atomic.Int64
}

// Stats returns the counters; it costs nothing.
func (d *Dir) Stats() Stats {
	n, bytes := d.queue.pending()
	s := &d.stats
	return Stats{
		Pending: n, PendingBytes: bytes,
		Puts: s.puts.Load(), Existing: s.existing.Load(),
		Gets: s.gets.Load(), Ranges: s.ranges.Load(),
		Barriers:     s.barriers.Load(),
		BytesWritten: s.written.Load(), BytesRead: s.read.Load(),
		Bytes: d.room.used(),
	}
}

func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
