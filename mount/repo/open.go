package repo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/mount/tree"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/shard"
	"cafs/store"
	"cafs/store/disk"
)

// Options of Open. The zero value opens an existing repository.
type Options struct {
	Holder Holder  // what the lock file says meanwhile; PID and Since are filled in
	Wait   Wait    // for a holder that will soon be done
	Create *Config // makes a missing repository, with these settings
	Logger *slog.Logger

	freshIndex bool // an empty index is as it should be, although there are commits

	IndexCache int64 // bytes; 0: the index's default
	LinkCache  int64 // bytes; 0: linksys's default
}

// Repo is an open repository. Its parts may be used concurrently; Close must
// not be called while they are.
type Repo struct {
	Path    string // absolute, symlinks resolved
	Config  Config
	Profile unixfs.Profile
	// Unclean: the last process that had it open, Lock.Last, did not close it.
	Unclean bool

	Lock  *Lock
	DB    *index.DB
	Store *store.Dir
	Sys   *linksys.System

	log     *slog.Logger
	staging disk.FS
	ballast *content.Ballast
	closers []closer // what to close, last first
}

type closer struct {
	name  string
	close func() error
}

// Open opens the repository at path for this process alone.
// Errors: ErrNotRepo, ErrLocked, ErrVersion, ErrDamaged, those of the parts.
func Open(ctx context.Context, path string, o Options) (*Repo, error) {
	path, err := Resolve(path)
	if err != nil {
		return nil, err
	}
	cfg, err := ReadConfig(path)
	if errors.Is(err, ErrNotRepo) && o.Create != nil {
		if err := Init(path, *o.Create); err != nil {
			return nil, err
		}
		cfg, err = ReadConfig(path)
	}
	if err != nil {
		return nil, err
	}
	r := &Repo{Path: path, Config: cfg, log: o.Logger}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.Profile, err = unixfs.ParseProfile(cfg.Profile); err != nil {
		return nil, restoreConfig(fmt.Errorf("repo: %s: %w: %w", filepath.Join(path, ConfigName), ErrDamaged, err))
	}
	if r.Lock, err = Acquire(ctx, path, o.Holder, o.Wait); err != nil {
		return nil, err
	}
	r.Unclean = r.Lock.Unclean
	if err := r.open(o); err != nil {
		// An index that was not opened has nothing to lose: what the lock said
		// before stays true.
		return nil, errors.Join(err, r.closeAll(), r.Lock.Release(!r.Unclean))
	}
	return r, nil
}

// open opens the parts that every command needs.
func (r *Repo) open(o Options) error {
	fsys, err := r.folder(StagingName)
	if err != nil {
		return err
	}
	r.staging = fsys
	if r.ballast, err = content.OpenBallast(fsys, r.log); err != nil {
		return fmt.Errorf("repo: %s: %w", filepath.Join(r.Path, StagingName), err)
	}
	if fsys, err = r.folder(IndexName); err != nil {
		return err
	}
	if !o.freshIndex && r.emptied(fsys) {
		return damagedIndex(filepath.Join(r.Path, IndexName), errors.New("the folder is empty, although there are commits"))
	}
	if r.DB, err = index.Open(fsys, index.Options{CacheBytes: o.IndexCache, NoRoom: r.ballast.Release, Logger: r.log}); err != nil {
		return damagedIndex(filepath.Join(r.Path, IndexName), err)
	}
	r.closing("index", r.DB.Close)

	if fsys, err = r.folder(BlocksName); err != nil {
		return err
	}
	opts := store.Options{CreateIfMissing: true, Pages: r.DB, Capacity: r.Config.Capacity, Logger: r.log}
	if ents, err := fsys.ReadDir("."); err == nil && len(ents) == 0 {
		if opts.Shard, err = shard.Parse(r.Config.Shard); err != nil {
			return err
		}
	}
	if r.Store, err = store.Open(fsys, opts); err != nil {
		return r.damagedStore(filepath.Join(r.Path, BlocksName), err)
	}
	r.closing("store", r.Store.Close)

	r.Sys = linksys.New(r.Store, linksys.Options{CacheBytes: o.LinkCache, Logger: r.log})
	r.closing("links", r.Sys.Close)
	return nil
}

// folder opens one of the repository's folders until Close.
func (r *Repo) folder(name string) (disk.FS, error) {
	path := filepath.Join(r.Path, name)
	fsys, err := disk.OS(path)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("repo: folder %s is missing: %w", path, ErrDamaged)
		return nil, Hint(err, "put the folder back from a copy of the repository")
	} else if err != nil {
		return nil, fmt.Errorf("repo: %s: %w", path, err)
	}
	r.closing(name, fsys.Close)
	return fsys, nil
}

func (r *Repo) closing(name string, f func() error) {
	r.closers = append(r.closers, closer{name, f})
}

// TreeOptions configure OpenTree. Zero values are the defaults of the parts.
type TreeOptions struct {
	DirtyLimit     int64 // bytes of memory for unsaved contents
	StagingLimit   int64 // bytes
	CommitInterval time.Duration
	Owner          tree.Cred // owns the root of a new tree
	Changed        func(tree.Ino)
}

// OpenTree opens the working tree, which Close closes, making everything durable.
func (r *Repo) OpenTree(ctx context.Context, o TreeOptions) (*tree.Tree, *content.Files, error) {
	var segments []index.Segment
	for s, err := range r.DB.Segments() {
		if err != nil {
			return nil, nil, fmt.Errorf("repo: segments: %w", err)
		}
		segments = append(segments, s)
	}
	files, err := content.Open(content.Config{
		Staging:      r.staging,
		Ballast:      r.ballast,
		Blocks:       r.Store,
		OpenBase:     r.openBase,
		Leaf:         r.Profile.Leaf,
		LeafData:     r.leafData,
		ChunkSize:    r.Profile.ChunkSize,
		DirtyLimit:   o.DirtyLimit,
		StagingLimit: o.StagingLimit,
		Capacity:     r.Store.Capacity,
		Failed:       r.DB.Err,
		Segments:     segments,
		Logger:       r.log,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("repo: %s: %w", filepath.Join(r.Path, StagingName), err)
	}
	r.closing("contents", files.Close)
	t, err := tree.Open(ctx, tree.Options{
		DB:             r.DB,
		Content:        files,
		Sys:            r.Sys,
		Blocks:         r.Store,
		Profile:        r.Profile,
		CommitInterval: o.CommitInterval,
		Logger:         r.log,
		Owner:          o.Owner,
		Changed:        o.Changed,
		Committed:      r.appendCommit,
		Deleted: func(h mh.Multihash, size int64) {
			if size < store.PagedBlock {
				return // most are: this is what a sweep's rate hangs on
			}
			if err := r.DB.DeletePages(h); err != nil {
				r.log.Warn("page checksums of a deleted block stay", "err", err)
			}
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("repo: tree: %w", err)
	}
	r.closing("tree", func() error { return t.Close(context.Background()) })
	return t, files, nil
}

// openBase opens the immutable file that a file's newer bytes lie over.
func (r *Repo) openBase(ctx context.Context, c cid.Cid) (content.Base, error) {
	return r.Sys.OpenFile(ctx, c)
}

// leafData is the content of one leaf.
func (r *Repo) leafData(ctx context.Context, c cid.Cid) ([]byte, error) {
	block, err := r.Store.Get(ctx, c)
	if err != nil {
		return nil, err
	}
	return r.Profile.LeafData(c, block)
}

// Close makes everything durable and gives the repository up. When a part
// cannot, the others are closed all the same, and the next Open finds Unclean.
func (r *Repo) Close() error {
	err := r.closeAll()
	if e := r.Lock.Release(err == nil); err == nil {
		err = e
	}
	return err
}

func (r *Repo) closeAll() error {
	var all error
	for i := len(r.closers) - 1; i >= 0; i-- {
		if err := r.closers[i].close(); err != nil {
			all = errors.Join(all, fmt.Errorf("repo: close %s: %w", r.closers[i].name, err))
		}
	}
	r.closers = nil
	return all
}
