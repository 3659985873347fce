package store

import (
	"context"
	"iter"
	"log/slog"

	"cafs/shard"
	"cafs/store/disk"

	"github.com/ipfs/go-cid"
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
	// DirectIO writes large blocks around the page cache where it can.
	DirectIO bool
	Logger   *slog.Logger
}

// Dir is the store on disk.
type Dir struct{}

// Open opens the store in the folder fs, which stays the caller's to close
// after Close.
func Open(fs disk.FS, opts Options) (*Dir, error) { return nil, ErrClosed }

// Stats are counters since Open.
type Stats struct {
	Pending, PendingBytes        int64 // put and not yet durable
	Puts, Existing, Gets, Ranges int64
	Barriers                     int64
	BytesWritten, BytesRead      int64
	Blocks, Bytes                int64 // in the store; -1 when not known
}

func (d *Dir) Get(ctx context.Context, c cid.Cid) ([]byte, error) { return nil, ErrClosed }
func (d *Dir) GetRange(ctx context.Context, c cid.Cid, p []byte, off int64) (int, error) {
	return 0, ErrClosed
}
func (d *Dir) Put(ctx context.Context, c cid.Cid, block []byte) error { return ErrClosed }
func (d *Dir) Has(ctx context.Context, c cid.Cid) (bool, error)       { return false, ErrClosed }
func (d *Dir) Size(ctx context.Context, c cid.Cid) (int64, error)     { return 0, ErrClosed }
func (d *Dir) Sync(ctx context.Context) error                         { return ErrClosed }
func (d *Dir) Flush(ctx context.Context, cids []cid.Cid) error        { return ErrClosed }
func (d *Dir) All(ctx context.Context) iter.Seq2[Entry, error]        { return nil }
func (d *Dir) Delete(ctx context.Context, h mh.Multihash) error       { return ErrClosed }
func (d *Dir) Stats() Stats                                           { return Stats{} }
func (d *Dir) Close() error                                           { return nil }
