package index

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cafs/store/disk"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	mh "github.com/multiformats/go-multihash"
)

// formatVersion is the version of the keys and values in this package. Another
// one on disk is refused.
const formatVersion = 1

// engineFormat is the newest engine format with something we want: since
// WALSyncChunks the engine can tell damage from an unsynced tail of the log,
// since TableFormatV6 a table's footer has a checksum. Newer ones are about
// storing large values apart, which the index does not have.
const engineFormat = pebble.FormatTableFormatV6

const (
	defaultCache = 32 << 20
	memTable     = 32 << 20
)

// Options says how to open an index. The zero value is good.
type Options struct {
	Logger     *slog.Logger  // nil: slog.Default()
	CacheBytes int64         // of table blocks kept in memory; 0: 32 MiB
	RoomWait   time.Duration // how long to wait for room on a full disk; 0: 10 s
	NoRoom     func()        // called when the disk is found full: gives room back, if it can; may be nil
	MemTable   uint64        // bytes of changes kept in memory before they become a table; 0: 32 MiB
}

// DB is an open index. All methods but Close may be called concurrently.
type DB struct {
	reader
	p      *pebble.DB
	log    *slog.Logger
	guard  *guard
	stall  *stall
	syncer syncer
	closed atomic.Bool
	// snapshots are those that are being closed.
	snapshots sync.WaitGroup

	commits atomic.Uint64 // batches applied
	synced  atomic.Uint64 // of which so many are surely durable
	absent  absent        // names

	reserveMu sync.Mutex // guards the number under keyNextIno
}

// Open opens the index in the folder fs, and makes one there if the folder is
// empty. The folder must be locked against other processes by the caller, who
// also closes it, after the DB. Error: ErrVersion.
func Open(fs disk.FS, o Options) (*DB, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.CacheBytes <= 0 {
		o.CacheBytes = defaultCache
	}
	if o.RoomWait <= 0 {
		o.RoomWait = defaultRoomWait
	}
	if o.MemTable == 0 {
		o.MemTable = memTable
	}
	if err := checkEngine(fs); err != nil {
		return nil, fmt.Errorf("index: open: %w", err)
	}
	g := newGuard(fs, o)
	db := &DB{log: o.Logger, guard: g, stall: newStall()}
	db.absent.seed = maphash.MakeSeed()
	eo := engineOptions(g, db.stall, o)
	merges := newCompactions()
	eo.Experimental.CompactionScheduler = merges
	err := g.run(func() (err error) {
		db.p, err = pebble.Open(".", eo)
		return err
	})
	if db.p == nil {
		return nil, fmt.Errorf("index: open: %w", err)
	}
	merges.start()
	db.reader = reader{db: db, p: db.p, newest: true}
	db.stall.start(db.p)
	if err == nil {
		err = db.checkVersion()
	}
	if err != nil {
		return nil, fmt.Errorf("index: open: %w", errors.Join(err, db.Close()))
	}
	return db, nil
}

func engineOptions(g *guard, s *stall, opts Options) *pebble.Options {
	o := &pebble.Options{
		FS:                 files{g},
		Logger:             g,
		FormatMajorVersion: engineFormat,
		Merger:             sumMerger(),
		CacheSize:          opts.CacheBytes + 2*int64(opts.MemTable), // the engine takes memtables off it
		MemTableSize:       opts.MemTable,
		MaxOpenFiles:       256,
		// The file layer's adapter hands written bytes out by itself.
		BytesPerSync:        1 << 40,
		MaxManifestFileSize: 4 << 20,
		// The engine's own stalls cannot be left when the index fails: stall
		// comes long before them. Also bounds the logs kept for reuse.
		MemTableStopWritesThreshold: 8,
		L0StopWritesThreshold:       128,
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { g.log.Warn("index: background work", "err", err) },
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				g.fail("read", info.Path, fmt.Errorf("%w: %w", ErrCorrupt, info.Details))
			},
			WALCreated:    func(pebble.WALCreateInfo) { s.look() },
			FlushEnd:      func(pebble.FlushInfo) { s.look() },
			CompactionEnd: func(pebble.CompactionInfo) { s.look() },
		},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].IndexBlockSize = 256 << 10 // one level of index block to a table
	}
	return o
}

// checkEngine refuses an engine format above ours, which the engine might
// know: it is kept as the last part of the name of a marker file.
func checkEngine(fs disk.FS) error {
	entries, err := fs.ReadDir(".")
	if err != nil {
		return err
	}
	for _, e := range entries {
		marker, ok := strings.CutPrefix(e.Name, "marker.format-version.")
		_, version, _ := strings.Cut(marker, ".")
		if v, err := strconv.ParseUint(version, 10, 64); ok && err == nil && v > uint64(engineFormat) {
			return fmt.Errorf("engine format %d, this program knows %d: %w", v, engineFormat, ErrVersion)
		}
	}
	return nil
}

// checkVersion refuses an index of another version and marks a new one.
func (db *DB) checkVersion() error {
	v, err := db.number(keyVersion)
	switch {
	case err != nil:
		return err
	case v == formatVersion:
		return nil
	case v != 0:
		return fmt.Errorf("version %d, this program knows %d: %w", v, formatVersion, ErrVersion)
	}
	keys, err := db.keys(nil, nil, 1)
	if err != nil {
		return err
	}
	if len(keys) > 0 {
		return fmt.Errorf("records without a version: %w", ErrCorrupt)
	}
	if err := db.p.Set([]byte{keyVersion}, appendUvarint(nil, formatVersion), pebble.NoSync); err != nil {
		return err
	}
	// A new database's first log is of an old format; this begins another one.
	if err := db.guard.run(db.p.Flush); err != nil {
		return err
	}
	return db.Sync(context.Background())
}

// Close makes everything committed durable and closes the index. No other call
// may be running or follow, and snapshots must be closed. The error wraps
// ErrReadOnly when the index had failed before or failed now; it is closed all
// the same.
func (db *DB) Close() error {
	if db.closed.Swap(true) {
		return ErrClosed
	}
	db.syncer.wait()
	err := db.guard.run(func() error {
		db.flushTables()
		db.stall.stop()     // looking at the engine waits for the manifest,
		db.snapshots.Wait() // and so does this
		return db.p.Close()
	})
	if err != nil {
		return fmt.Errorf("index: close: %w", err)
	}
	return nil
}

// flushTables writes what is in memory into tables before a close, so that the
// next open has no log to replay. What is in the log is safe without it: on a
// full or failing disk it is given up.
func (db *DB) flushTables() {
	const patience = 5 * time.Second
	if db.guard.err() != nil {
		return
	}
	done, err := db.p.AsyncFlush()
	if err != nil {
		return
	}
	select {
	case <-done:
	case <-db.guard.failed:
	case <-time.After(patience):
	}
}

// Failed is closed when a write of the index has failed: from then on nothing
// can be changed until the index is opened again.
func (db *DB) Failed() <-chan struct{} { return db.guard.failed }

// Err returns nil until Failed is closed, then an error that wraps ErrReadOnly
// and has the cause.
func (db *DB) Err() error { return db.guard.err() }

// usable returns why nothing can be committed.
func (db *DB) usable() error {
	if db.closed.Load() {
		return ErrClosed
	}
	return db.guard.err()
}

// apply commits a batch without waiting for the disk. The state is looked at
// again afterwards, since the engine is told of no failure.
func (db *DB) apply(b *pebble.Batch) error {
	if err := db.usable(); err != nil {
		return err
	}
	if err := db.stall.wait(db.guard.failed); err != nil {
		return db.guard.err()
	}
	if err := db.p.Apply(b, pebble.NoSync); err != nil {
		return fmt.Errorf("index: commit: %w", err)
	}
	db.commits.Add(1)
	return db.guard.err()
}

// Unsynced tells whether a batch was committed that no Sync has covered.
func (db *DB) Unsynced() bool { return db.synced.Load() != db.commits.Load() }

// ReserveInos returns the first of n inode numbers that were never returned
// before and never will be, not even after a crash. It waits for the disk, so
// ask for many.
func (db *DB) ReserveInos(n int) (Ino, error) {
	db.reserveMu.Lock()
	defer db.reserveMu.Unlock()
	next, err := db.number(keyNextIno)
	if err != nil {
		return 0, fmt.Errorf("index: reserve inodes: %w", err)
	}
	next = max(next, uint64(Root)+1)
	if n <= 0 || uint64(n) > uint64(maxIno)-next {
		return 0, fmt.Errorf("index: reserve %d inodes: out of range", n)
	}
	b := db.NewBatch()
	defer b.Close()
	b.key = append(b.key[:0], keyNextIno)
	b.val = appendUvarint(b.val[:0], next+uint64(n))
	b.set()
	if err := b.CommitSync(context.Background()); err != nil {
		return 0, fmt.Errorf("index: reserve inodes: %w", err)
	}
	return Ino(next), nil
}

// LoadPages returns the page checksums of a block, and whether there are any.
func (db *DB) LoadPages(h mh.Multihash) ([]uint32, bool, error) {
	k := newKey()
	k.b = append(append(k.b[:0], keyPages), h...)
	v, c, err := db.get(k)
	if errors.Is(err, errAbsent) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	sums, err := decodePages(v)
	if err != nil {
		err = fmt.Errorf("index: page checksums of %s: %w", h.B58String(), err)
	}
	if err := closeAfter(c, err); err != nil {
		return nil, false, err
	}
	return sums, true, nil
}

// SavePages records the page checksums of a block; durable with a later Sync.
func (db *DB) SavePages(h mh.Multihash, sums []uint32) error {
	b := db.NewBatch()
	defer b.Close()
	b.key = append(append(b.key[:0], keyPages), h...)
	b.val = appendPages(b.val[:0], sums)
	b.set()
	return b.Commit()
}

// DeletePages forgets the page checksums of a block.
func (db *DB) DeletePages(h mh.Multihash) error {
	b := db.NewBatch()
	defer b.Close()
	b.key = append(append(b.key[:0], keyPages), h...)
	b.delete()
	return b.Commit()
}
