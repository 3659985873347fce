package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store/disk"
)

// Blocks is where sealing reads and writes blocks; see package store.
type Blocks interface {
	Get(ctx context.Context, c cid.Cid) ([]byte, error)
	Put(ctx context.Context, c cid.Cid, block []byte) error
	Flush(ctx context.Context, cids []cid.Cid) error
}

// Tree is an open working tree. Methods may be called concurrently.
type Tree struct {
	opts    Options
	db      *index.DB
	content *content.Files
	log     *slog.Logger

	ns        sync.RWMutex // see the package comment
	table     table
	inos      inos
	dirtySet  dirtySet
	record    recording
	sealing   sealState
	grave     grave
	collector collector
	quiet     quiet
	ahead     ahead
	released  atomic.Uint64 // see Released

	life context.Context // of background work, and of what no request waits for
	stop context.CancelFunc
	busy sync.WaitGroup // background work
}

// Open opens the tree in opts.DB, making its root when there is none, and
// starts publishing and sealing in the background. It takes as long for a large
// tree as for a small one.
func Open(ctx context.Context, opts Options) (*Tree, error) {
	if opts.CommitInterval <= 0 {
		opts.CommitInterval = 5 * time.Second
	}
	if opts.SealAfter <= 0 {
		opts.SealAfter = 10 * time.Second
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	t := &Tree{opts: opts, db: opts.DB, content: opts.Content, log: opts.Logger}
	t.table.init(opts.Inodes)
	t.dirtySet.files = make(map[Ino]*inode)
	t.quiet.files = make(map[Ino]quietFile)
	t.record.gen = 1
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	t.life, t.stop = life, stop
	if err := t.ensureRoot(ctx); err != nil {
		return nil, err
	}
	if err := t.openGrave(); err != nil {
		return nil, err
	}
	t.busy.Go(func() { t.commitLoop(life) })
	t.busy.Go(func() { t.sealLoop(life) })
	return t, nil
}

// ensureRoot makes the root directory of a new tree, durably.
func (t *Tree) ensureRoot(ctx context.Context) error {
	_, err := t.db.Inode(RootIno)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	stamp := now()
	owner := t.opts.Owner
	root := index.Inode{Kind: index.Dir, Perm: 0o755, Uid: owner.Uid, Gid: owner.Gid, Nlink: 2, Parent: RootIno,
		Atime: stamp, Mtime: stamp, Ctime: stamp, Btime: stamp, Unsealed: true}
	b := t.db.NewBatch()
	defer b.Close()
	b.SetInode(RootIno, &root)
	if err := b.CommitSync(ctx); err != nil {
		return fmt.Errorf("tree: make the root: %w", err)
	}
	return nil
}

// Close publishes everything, waits until it is durable, and stops. The index
// and the contents stay the caller's to close.
func (t *Tree) Close(ctx context.Context) error {
	t.stop()
	t.ahead.stop()
	t.busy.Wait()
	return t.Sync(ctx)
}

// Stats are gauges.
type Stats struct {
	Inodes  int64 // inodes in memory
	Dirty   int   // files with unpublished contents
	Quiet   int   // files waiting to be sealed
	Content content.Stats
}

// Stats returns the gauges.
func (t *Tree) Stats() Stats {
	t.dirtySet.mu.Lock()
	dirty := len(t.dirtySet.files)
	t.dirtySet.mu.Unlock()
	return Stats{Inodes: t.table.count.Load(), Dirty: dirty, Quiet: t.quiet.waiting(), Content: t.content.Stats()}
}

// Released counts what may have left blocks that nothing refers to: while it stays
// the same, a collection has nothing new to find, but for what sealing replaced.
func (t *Tree) Released() uint64 { return t.released.Load() }

// Statfs tells the room that is left for the tree.
func (t *Tree) Statfs() (disk.Usage, error) { return t.content.Usage() }
