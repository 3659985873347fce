package content_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
	"cafs/store/disk"

	"github.com/ipfs/go-cid"
)

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0: by the clock")

func seeded(t testing.TB) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d (repeat with -seed)", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

const chunkSize = 16 << 10

// small is a profile whose files become deep early.
func small() unixfs.Profile {
	p := unixfs.V1_2025
	p.ChunkSize, p.MaxLinks = chunkSize, 4
	return p
}

// blockStore is what a repository needs of a store.
type blockStore interface {
	content.Blocks
	Close() error
}

// repo is index, staging and blocks on a disk.
type repo struct {
	t       testing.TB
	disk    disk.FS
	profile unixfs.Profile
	blocks  blockStore
	sys     *linksys.System
	db      *index.DB
	files   *content.Files
	limit   int64
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// newRepo opens a repository on a disk, with what is there. blocks may be nil:
// then they are on the disk.
func newRepo(t testing.TB, d disk.FS, blocks blockStore, p unixfs.Profile, limit int64) (*repo, error) {
	r := &repo{t: t, disk: d, profile: p, blocks: blocks, limit: limit}
	for _, name := range []string{"index", "staging", "blocks"} {
		if err := d.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	if err := d.SyncDir(); err != nil {
		return nil, err
	}
	var err error
	if r.blocks == nil {
		if r.blocks, err = store.Open(r.sub("blocks"), store.Options{CreateIfMissing: true, Logger: discard()}); err != nil {
			return nil, err
		}
	}
	r.sys = linksys.New(r.blocks, linksys.Options{})
	if r.db, err = index.Open(r.sub("index"), index.Options{Logger: discard()}); err != nil {
		return nil, err
	}
	return r, r.open()
}

func (r *repo) sub(name string) disk.FS {
	s, err := r.disk.Sub(name)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// open opens the contents as the index has them.
func (r *repo) open() error {
	var segs []index.Segment
	for s, err := range r.db.Segments() {
		if err != nil {
			return err
		}
		segs = append(segs, s)
	}
	cfg := content.Config{
		Staging: r.sub("staging"), Blocks: r.blocks, Leaf: r.profile.Leaf, ChunkSize: r.profile.ChunkSize,
		DirtyLimit: r.limit, SpaceReserve: 1, Segments: segs, Logger: discard(),
		OpenBase: func(ctx context.Context, c cid.Cid) (content.Base, error) { return r.sys.OpenFile(ctx, c) },
		LeafData: func(ctx context.Context, c cid.Cid) ([]byte, error) {
			b, err := r.blocks.Get(ctx, c)
			if err != nil {
				return nil, err
			}
			return r.profile.LeafData(c, b)
		},
	}
	var err error
	if r.limit == 0 { // as in production
		r.files, err = content.Open(cfg)
	} else {
		r.files, err = content.OpenWatched(cfg, 96<<10)
	}
	return err
}

func (r *repo) close() {
	r.t.Helper()
	if err := errors.Join(r.files.Close(), r.db.Close(), r.sys.Close(), r.blocks.Close()); err != nil {
		r.t.Error(err)
	}
}

// load returns a file as the index has it.
func (r *repo) load(ino index.Ino) *content.File {
	r.t.Helper()
	in, err := r.db.Inode(ino)
	if errors.Is(err, fs.ErrNotExist) {
		return r.files.New(ino)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	f, err := r.files.Load(ino, in.Content, r.db.Extents(ino))
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// commit publishes a staged cut.
func (r *repo) commit(ino index.Ino, c *content.Cut) error {
	b := r.db.NewBatch()
	defer b.Close()
	c.Fill(b)
	b.SetInode(ino, &index.Inode{Kind: index.File, Nlink: 1, Content: c.Content()})
	if err := b.Commit(); err != nil {
		c.Abort()
		return err
	}
	c.Commit()
	return nil
}

// publish cuts, stages and commits.
func (r *repo) publish(ctx context.Context, ino index.Ino, f *content.File, inline int) error {
	c := f.Cut()
	if err := r.files.Stage(ctx, inline, c); err != nil {
		c.Abort()
		return err
	}
	return r.commit(ino, c)
}

// seal builds the DAG of a cut.
func (r *repo) seal(ctx context.Context, c *content.Cut) (unixfs.Root, error) {
	var put []cid.Cid
	emit := func(b unixfs.Block) error {
		put = append(put, b.Cid)
		return r.blocks.Put(ctx, b.Cid, b.Data)
	}
	leaves := func(yield func(unixfs.Run, error) bool) {
		for run, err := range c.Leaves(ctx) {
			put = append(put, run.Leaf.Cid)
			if !yield(run, err) {
				return
			}
		}
	}
	root, err := r.profile.EditFile(ctx, r.blocks.Get, c.Content().Base, uint64(c.Content().Size), leaves, emit)
	if err == nil {
		err = r.blocks.Flush(ctx, put)
	}
	return root, err
}

// build is the oracle of seal: the CID of the bytes.
func (r *repo) build(p []byte) cid.Cid {
	r.t.Helper()
	root, err := r.profile.BuildFile(context.Background(), bytes.NewReader(p), func(unixfs.Block) error { return nil })
	if err != nil {
		r.t.Fatal(err)
	}
	return root.Cid
}

// all reads a file whole.
func (r *repo) all(f *content.File) []byte {
	r.t.Helper()
	p := make([]byte, f.Size())
	n, err := f.ReadAt(context.Background(), p, 0)
	if n != len(p) || (err != nil && !errors.Is(err, io.EOF)) {
		r.t.Fatalf("read %d of %d bytes: %v", n, len(p), err)
	}
	return p
}

// differ returns the first offset at which a and b differ, or -1.
func differ(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}
