package index

import (
	"context"
	"iter"
	"log/slog"

	"cafs/store/disk"

	mh "github.com/multiformats/go-multihash"
)

type Options struct {
	Logger     *slog.Logger
	CacheBytes int64
}

type DB struct{ reader }
type Snapshot struct{ reader }
type Batch struct{}
type reader struct{}

func Open(fsys disk.FS, o Options) (*DB, error) { return nil, ErrClosed }
func (db *DB) Close() error                     { return nil }
func (db *DB) NewBatch() *Batch                 { return nil }
func (db *DB) Snapshot() *Snapshot              { return nil }
func (s *Snapshot) Close() error                { return nil }

// Sync returns when every Commit that returned before is durable; cancelling ctx abandons the wait only.
func (db *DB) Sync(ctx context.Context) error { return ErrClosed }

// Failed is closed at the first failed index write.
func (db *DB) Failed() <-chan struct{}                          { return nil }
func (db *DB) Err() error                                       { return nil }
func (db *DB) ReserveInos(n int) (Ino, error)                   { return 0, ErrClosed }
func (db *DB) LoadPages(h mh.Multihash) ([]uint32, bool, error) { return nil, false, ErrClosed }
func (db *DB) SavePages(h mh.Multihash, sums []uint32) error    { return ErrClosed }
func (db *DB) DeletePages(h mh.Multihash) error                 { return ErrClosed }

func (b *Batch) SetInode(ino Ino, in *Inode)                  {}
func (b *Batch) DeleteInode(ino Ino)                          {}
func (b *Batch) SetDirent(dir Ino, d Dirent)                  {}
func (b *Batch) DeleteDirent(dir Ino, d Dirent)               {}
func (b *Batch) SetBackref(ino, parent Ino, cookie uint64)    {}
func (b *Batch) DeleteBackref(ino, parent Ino, cookie uint64) {}
func (b *Batch) DeleteBackrefs(ino Ino)                       {}
func (b *Batch) SetExtent(ino Ino, e Extent)                  {}
func (b *Batch) DeleteExtent(ino Ino, off int64)              {}
func (b *Batch) DeleteExtents(ino Ino)                        {}
func (b *Batch) SetChanged(dir Ino, name string)              {}
func (b *Batch) ClearChanged(dir Ino, names ...string)        {}
func (b *Batch) ClearAllChanged(dir Ino)                      {}
func (b *Batch) SetXattr(ino Ino, name string, value []byte)  {}
func (b *Batch) DeleteXattr(ino Ino, name string)             {}
func (b *Batch) DeleteXattrs(ino Ino)                         {}
func (b *Batch) AddOrphan(ino Ino)                            {}
func (b *Batch) DeleteOrphan(ino Ino)                         {}
func (b *Batch) AddSegment(seg uint64, delta int64)           {}
func (b *Batch) DeleteSegment(seg uint64)                     {}
func (b *Batch) SetRef(name string, value []byte)             {}
func (b *Batch) DeleteRef(name string)                        {}
func (b *Batch) Len() int                                     { return 0 }
func (b *Batch) Commit() error                                { return ErrClosed }
func (b *Batch) CommitSync(ctx context.Context) error         { return ErrClosed }
func (b *Batch) Reset()                                       {}
func (b *Batch) Close()                                       {}

func (r *reader) Inode(ino Ino) (Inode, error)                           { return Inode{}, ErrClosed }
func (r *reader) Dirent(dir Ino, name string) (Dirent, error)            { return Dirent{}, ErrClosed }
func (r *reader) DirentAt(dir Ino, cookie uint64) (Dirent, error)        { return Dirent{}, ErrClosed }
func (r *reader) Dirents(dir Ino, after uint64) iter.Seq2[Dirent, error] { return nil }
func (r *reader) Extents(ino Ino) iter.Seq2[Extent, error]               { return nil }
func (r *reader) Backrefs(ino Ino) iter.Seq2[Backref, error]             { return nil }
func (r *reader) Changed(dir Ino) iter.Seq2[string, error]               { return nil }
func (r *reader) Xattr(ino Ino, name string) ([]byte, error)             { return nil, ErrClosed }
func (r *reader) Xattrs(ino Ino) iter.Seq2[Xattr, error]                 { return nil }
func (r *reader) Orphans() iter.Seq2[Ino, error]                         { return nil }
func (r *reader) Segments() iter.Seq2[Segment, error]                    { return nil }
func (r *reader) Ref(name string) ([]byte, error)                        { return nil, ErrClosed }
func (r *reader) Refs(prefix string) iter.Seq2[Ref, error]               { return nil }
func (r *reader) Inodes(after Ino) iter.Seq2[InodeAt, error]             { return nil }

// InodeAt is an inode with its number.
type InodeAt struct {
	Ino Ino
	Inode
}
