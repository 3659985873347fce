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
package content

import (
	"context"
	"errors"
	"iter"
	"log/slog"

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
	ChunkSize    int64 // bytes of content in a leaf
	DirtyLimit   int64 // bytes of memory for unsaved contents; default 256 MiB
	StagingLimit int64 // staged bytes above which Stats.OverStaged is set; default 1 GiB
	SpaceReserve int64 // free bytes on the staging volume that writes leave alone; default 16 MiB
	Segments     []index.Segment
	Logger       *slog.Logger
}

// Stats are gauges, in bytes.
type Stats struct {
	Dirty      int64 // memory taken by contents
	DirtyLimit int64
	Staged     int64 // staged bytes that published or newer extents refer to
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
type Files struct{ cfg Config }

// Open starts the background workers. Nothing is read from staging.
func Open(cfg Config) (*Files, error) { panic("being written") }

// Close stops the workers. Unpublished bytes are lost; cut and stage them before.
func (fs *Files) Close() error { panic("being written") }

// Stats returns the gauges.
func (fs *Files) Stats() Stats { panic("being written") }

// New returns an empty file that is not in the index.
func (fs *Files) New(ino index.Ino) *File { panic("being written") }

// Load returns the file that the index describes.
func (fs *Files) Load(ino index.Ino, c index.Content, extents iter.Seq2[index.Extent, error]) (*File, error) {
	panic("being written")
}

// Stage makes all bytes that the cuts refer to durable, so that Fill may be
// called: with one sync of staging and one flush of blocks. Cuts with at most
// inlineLimit bytes in memory leave them to be written into the batch. The
// error joins those of the cuts; a cut whose Err is nil may be filled all the same.
func (fs *Files) Stage(ctx context.Context, inlineLimit int, cuts ...*Cut) error {
	panic("being written")
}

// FreeSegments removes the segments that nothing refers to, durably so.
func (fs *Files) FreeSegments(ctx context.Context, db *index.DB) error { panic("being written") }

// Sparse returns the segments less than half of which is live, for compaction:
// for each inode of SegmentInodes the tree calls Evacuate and publishes.
func (fs *Files) Sparse() []uint64 { panic("being written") }

// SegmentInodes lists the inodes that a segment holds bytes of, live or not.
func (fs *Files) SegmentInodes(ctx context.Context, seg uint64) ([]index.Ino, error) {
	panic("being written")
}

// File is the content of one file. Methods may be called concurrently.
type File struct{ fs *Files }

// ReadAt reads len(p) bytes at off; fewer, with io.EOF, only at the end of the file.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) { panic("being written") }

// WriteAt writes p at off, extending the file. It waits while too much memory
// is dirty; ctx ends the wait. Errors: ENOSPC, EFBIG. On an error nothing, or a
// prefix of p, was written. p is not kept.
func (f *File) WriteAt(ctx context.Context, p []byte, off int64) error { panic("being written") }

// Truncate sets the size; what is added reads as zeros.
func (f *File) Truncate(ctx context.Context, size int64) error { panic("being written") }

// Punch makes n bytes at off a hole. The size does not change.
func (f *File) Punch(ctx context.Context, off, n int64) error { panic("being written") }

// Allocate checks that there is room for n bytes at off, and extends the file
// to off+n unless keep. Contents do not change.
func (f *File) Allocate(ctx context.Context, off, n int64, keep bool) error { panic("being written") }

// NextData returns the first offset at or after off that is data, or Size.
func (f *File) NextData(ctx context.Context, off int64) (int64, error) { panic("being written") }

// NextHole returns the first offset at or after off that is a hole; the end of the file is one.
func (f *File) NextHole(ctx context.Context, off int64) (int64, error) { panic("being written") }

// Size is the length in bytes.
func (f *File) Size() int64 { panic("being written") }

// Blocks is the number of 512-byte units that hold data.
func (f *File) Blocks() int64 { panic("being written") }

// CopyFrom copies n bytes at srcOff of src to off. Leaf blocks are shared, other bytes copied.
// The ranges must not overlap when src is f. What lies beyond the end of src is not copied;
// the number of copied bytes is returned.
func (f *File) CopyFrom(ctx context.Context, src *File, srcOff, off, n int64) (int64, error) {
	panic("being written")
}

// Dirty tells whether the content differs from what was published.
func (f *File) Dirty() bool { panic("being written") }

// Unsealed tells whether the content is more than its base, or never had one.
func (f *File) Unsealed() bool { panic("being written") }

// Published is the content as of the last committed cut (or Load): what
// attribute batches carry.
func (f *File) Published() index.Content { panic("being written") }

// Refs calls yield with every leaf block the overlay refers to: roots for garbage collection.
func (f *File) Refs(yield func(cid.Cid) bool) { panic("being written") }

// Evacuate moves bytes in the segment elsewhere; the next cut publishes that.
func (f *File) Evacuate(ctx context.Context, seg uint64) error { panic("being written") }

// Release gives back the memory of a file that is about to be forgotten by the
// tree. It must not be dirty, and not used afterwards.
func (f *File) Release() { panic("being written") }

// Drop gives back everything of a deleted file and puts the removal of its
// published extents into b. The file must not be used afterwards.
func (f *File) Drop(b *index.Batch) { panic("being written") }

// Cut takes the state of this moment, in memory. At most one cut of a file may
// be between Stage and Commit at a time, and cuts are committed in the order in
// which they were taken; cuts that are only sealed do not count.
func (f *File) Cut() *Cut { panic("being written") }

// Cut is the state of a file at a moment. It must be ended: by Commit, Abort or
// Rebase. Writes after the cut do not change it.
type Cut struct{ f *File }

// Retain keeps the cut usable for Leaves, ReadAt and Rebase after Commit; then Rebase
// or Abort must end it.
func (c *Cut) Retain() { panic("being written") }

// Content is the cut's record for the inode.
func (c *Cut) Content() index.Content { panic("being written") }

// Err is why Stage failed for this cut, or nil.
func (c *Cut) Err() error { panic("being written") }

// Fill puts the extents that differ from the published ones into b. Stage must
// have succeeded for this cut.
func (c *Cut) Fill(b *index.Batch) { panic("being written") }

// Commit notes that the filled batch was committed.
func (c *Cut) Commit() { panic("being written") }

// Abort ends the cut; nothing of it counts as published. After Commit it only
// ends what Retain kept. Aborting an ended cut does nothing.
func (c *Cut) Abort() { panic("being written") }

// ReadAt reads the content as of the cut, like [File.ReadAt].
func (c *Cut) ReadAt(ctx context.Context, p []byte, off int64) (int, error) { panic("being written") }

// Leaves stores every chunk that differs from the base as a leaf block and
// yields them in ascending order, whole runs of zeros as one Run. The blocks
// are not flushed: flush what was yielded before the new root is published.
func (c *Cut) Leaves(ctx context.Context) iter.Seq2[unixfs.Run, error] { panic("being written") }

// Rebase makes root, built from the base and Leaves, the base of the file:
// what is newer than the cut stays on top. Every block of root must be durable.
// The next cut publishes it. It ends the cut. False: the base changed since the cut
// and nothing was done.
func (c *Cut) Rebase(root unixfs.Root) bool { panic("being written") }
