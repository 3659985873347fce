// Package store keeps blocks: immutable bytes named by a multihash.
//
// Roles are one-method interfaces; ask for the least. Keys are CIDs, of which
// only the multihash counts: a raw and a dag-pb CID of the same bytes name the
// same block, so whatever counts blocks goes by multihash. Identity CIDs never
// reach a store.
package store

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// Getter reads blocks. The slice is shared and read-only; it stays valid for
// as long as it is referenced. The bytes were checked against the multihash.
// Errors: ErrNotFound, ErrCorrupt.
type Getter interface {
	Get(ctx context.Context, c cid.Cid) ([]byte, error)
}

// Lender is Get into memory that can be given back. The slice is read-only and
// valid until release is called, by whoever is sure that nobody reads it any
// more; release is nil when there is nothing to give back, and need not be
// called: then the slice stays valid as Get's does. Errors: those of Getter.
type Lender interface {
	Lend(ctx context.Context, c cid.Cid) (block []byte, release func(), err error)
}

// RangeGetter reads len(p) bytes at off of a block, fewer only at its end (then
// with io.EOF). What it returns was checked against the multihash or against
// page checksums taken from bytes so checked.
type RangeGetter interface {
	GetRange(ctx context.Context, c cid.Cid, p []byte, off int64) (int, error)
}

// Putter stores a block whose multihash the caller computed from these very
// bytes; bytes from anywhere else go through [PutVerified]. Idempotent; an
// existing block is not written again. The slice is not kept. The block can be
// read at once and is durable after Sync.
type Putter interface {
	Put(ctx context.Context, c cid.Cid, block []byte) error
}

// Haser tells whether a block is there with the right length, without reading it.
type Haser interface {
	Has(ctx context.Context, c cid.Cid) (bool, error)
}

// Sizer tells a block's length in bytes. Errors: ErrNotFound.
type Sizer interface {
	Size(ctx context.Context, c cid.Cid) (int64, error)
}

// Syncer makes every Put that returned before durable. Concurrent callers share
// one barrier. After a failed write-out every later Put and Sync fails with
// ErrPoisoned until the store is opened again.
type Syncer interface {
	Sync(ctx context.Context) error
}

// Flusher makes the given blocks durable, waiting for no others' bytes.
type Flusher interface {
	Flush(ctx context.Context, cids []cid.Cid) error
}

// Entry is one stored block.
type Entry struct {
	Hash mh.Multihash
	Size int64 // bytes
}

// Enumerator lists blocks in any order; an error ends the sequence.
type Enumerator interface {
	All(ctx context.Context) iter.Seq2[Entry, error]
}

// Deleter removes a block. Only garbage collection may call it.
type Deleter interface {
	Delete(ctx context.Context, h mh.Multihash) error
}

// Store is what cafs needs of a block store.
type Store interface {
	Getter
	Putter
	Haser
	Syncer
	Enumerator
}

var (
	// ErrNotFound: no block of this multihash is here.
	ErrNotFound = errors.New("block not found")
	// ErrCorrupt: the bytes on disk are not those the multihash names.
	ErrCorrupt = errors.New("block corrupt")
	// ErrMismatch: the bytes handed in are not those the CID names.
	ErrMismatch = errors.New("bytes do not match their CID")
	// ErrPoisoned: an earlier write-out failed; the store must be opened again.
	ErrPoisoned = errors.New("block store failed earlier and must be opened again")
	// ErrFull: the capacity limit, or the reserve of space or inodes, is reached.
	ErrFull = errors.New("block store full")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("block store closed")
)

// CorruptError says what a damaged block should have been; errors.Is finds ErrCorrupt.
type CorruptError struct {
	Want, Got mh.Multihash // Got is nil when the length alone was wrong
	Detail    string
}

func (e *CorruptError) Error() string {
	if e.Got == nil {
		return fmt.Sprintf("block %s corrupt: %s", e.Want.B58String(), e.Detail)
	}
	return fmt.Sprintf("block %s corrupt: its bytes hash to %s", e.Want.B58String(), e.Got.B58String())
}

// Is makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }
