package add

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"cafs/linksys/cidset"
	"cafs/linksys/unixfs"
	"cafs/store"
)

// Options say how content becomes DAGs.
type Options struct {
	Profile unixfs.Profile // [unixfs.V1_2025] when zero

	Hidden        bool // add names that begin with a dot too
	NoEmptyDirs   bool // leave out directories without entries; as in Kubo, what they were all of stays
	PreserveMode  bool // store permission bits in the nodes
	PreserveMtime bool // store modification times in the nodes

	// Workers is how many files, or chunks of one large file, are hashed and
	// put at a time; 0 means two for each processor, so that one can write
	// while another hashes.
	Workers int
	// Stats counts unique and stored bytes, which costs a look-up for each
	// block and 50 bytes of memory for each unique one.
	Stats bool
	// NoSync makes Finish return before the blocks are durable.
	NoSync bool
	// Progress hears of bytes read, from several goroutines; may be nil.
	Progress func(n int64)
	// Enter is asked before a directory of a tree is read, by its path below the
	// tree; an error ends the import. May be nil.
	Enter func(path string, dir *os.File) error
	// Skipped hears of what is no file, directory or symbolic link (and is left
	// out), by its path below the tree; may be nil.
	Skipped func(path string)
}

// Stats counts what was added. Unique and Stored are 0 without
// Options.Stats.
type Stats struct {
	Files, Dirs, Symlinks int64
	Logical               int64 // bytes of file content read
	Blocks                int64 // blocks made, repeated ones too
	Unique                int64 // bytes of blocks, each counted once
	Stored                int64 // bytes of blocks the store did not have
}

// Importer adds files and trees. Its memory is bounded by Workers chunks and
// the entries of the directories being read. Methods may be called
// concurrently. Nothing is durable before Finish returns.
type Importer struct {
	blocks store.Putter
	o      Options
	has    store.Haser // nil when not counted
	stats  counters
}

type counters struct {
	files, dirs, symlinks, logical, blocks, unique, stored atomic.Int64

	seen cidset.Set
}

// New returns an Importer into a store. When the store also is a [store.Haser] or
// a [store.Syncer], those roles are used: for Options.Stats, and by Finish.
func New(s store.Putter, o Options) *Importer {
	if o.Profile == (unixfs.Profile{}) {
		o.Profile = unixfs.V1_2025
	}
	if o.Workers <= 0 {
		o.Workers = 2 * runtime.GOMAXPROCS(0)
	}
	im := &Importer{blocks: s, o: o}
	if o.Stats {
		im.has, _ = s.(store.Haser)
	}
	return im
}

// AddFile adds what r yields as one file. When mode or mtime are preserved and r
// is an *os.File, they are taken from it. It does not close r.
func (im *Importer) AddFile(ctx context.Context, r io.Reader) (unixfs.Root, error) {
	if f, ok := r.(*os.File); ok && (im.o.PreserveMode || im.o.PreserveMtime) {
		info, err := f.Stat() // not by number, which would make a pipe block
		if err != nil {
			return unixfs.Root{}, fmt.Errorf("add: %w", err)
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			return im.file(ctx, r, im.stat(st.Mode, time.Unix(st.Mtim.Unix())), im.o.Workers)
		}
	}
	return im.file(ctx, r, unixfs.Stat{}, im.o.Workers)
}

func (im *Importer) file(ctx context.Context, r io.Reader, stat unixfs.Stat, workers int) (unixfs.Root, error) {
	b := unixfs.Builder{Profile: im.o.Profile, Workers: workers, Stat: stat}
	root, err := b.File(ctx, &countingReader{r: r, im: im}, im.emit(ctx))
	if err != nil {
		return unixfs.Root{}, fmt.Errorf("add: %w", err)
	}
	im.stats.files.Add(1)
	return root, nil
}

// stat is what of mode and mtime is stored in nodes.
func (im *Importer) stat(mode uint32, mtime time.Time) (s unixfs.Stat) {
	if im.o.PreserveMode {
		s.Mode = mode & 0o7777
	}
	if im.o.PreserveMtime {
		s.Mtime = mtime
	}
	return s
}

// AddDir adds a directory of entries added before.
func (im *Importer) AddDir(ctx context.Context, entries []unixfs.Entry) (unixfs.Root, error) {
	return im.dir(ctx, entries, unixfs.Stat{})
}

func (im *Importer) dir(ctx context.Context, entries []unixfs.Entry, stat unixfs.Stat) (unixfs.Root, error) {
	b := unixfs.Builder{Profile: im.o.Profile, Stat: stat}
	root, err := b.Dir(ctx, func(yield func(unixfs.Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}, im.emit(ctx))
	if err != nil {
		return unixfs.Root{}, fmt.Errorf("add: %w", err)
	}
	im.stats.dirs.Add(1)
	return root, nil
}

func (im *Importer) symlink(ctx context.Context, target string, stat unixfs.Stat) (unixfs.Root, error) {
	b := unixfs.Builder{Profile: im.o.Profile, Stat: stat}
	root, err := b.Symlink(target, im.emit(ctx))
	if err != nil {
		return unixfs.Root{}, fmt.Errorf("add: %w", err)
	}
	im.stats.symlinks.Add(1)
	return root, nil
}

// Finish makes everything added so far durable, unless NoSync, and returns the counts.
func (im *Importer) Finish(ctx context.Context) (Stats, error) {
	if y, ok := im.blocks.(store.Syncer); ok && !im.o.NoSync {
		if err := y.Sync(ctx); err != nil {
			return im.Stats(), fmt.Errorf("add: %w", err)
		}
	}
	return im.Stats(), nil
}

// Stats returns the counts so far.
func (im *Importer) Stats() Stats {
	c := &im.stats
	return Stats{
		Files: c.files.Load(), Dirs: c.dirs.Load(), Symlinks: c.symlinks.Load(),
		Logical: c.logical.Load(), Blocks: c.blocks.Load(), Unique: c.unique.Load(), Stored: c.stored.Load(),
	}
}

func (im *Importer) emit(ctx context.Context) unixfs.Emit {
	return func(b unixfs.Block) error {
		im.stats.blocks.Add(1)
		if im.o.Stats {
			if err := im.count(ctx, b); err != nil {
				return err
			}
		}
		return im.blocks.Put(ctx, b.Cid, b.Data)
	}
}

// count adds a block to the unique and stored bytes the first time it is made.
func (im *Importer) count(ctx context.Context, b unixfs.Block) error {
	c := &im.stats
	if !c.seen.Add(b.Cid) {
		return nil
	}
	c.unique.Add(int64(len(b.Data)))
	if im.has == nil {
		return nil
	}
	old, err := im.has.Has(ctx, b.Cid)
	if err == nil && !old {
		c.stored.Add(int64(len(b.Data)))
	}
	return err
}

// countingReader tells an importer what was read.
type countingReader struct {
	r  io.Reader
	im *Importer
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n > 0 {
		c.im.stats.logical.Add(int64(n))
		if c.im.o.Progress != nil {
			c.im.o.Progress(int64(n))
		}
	}
	return n, err
}
