package tree

import (
	"context"
	"errors"
	"fmt"

	"cafs/mount/tree/gc"
	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
)

// Account is what a part of the tree consists of, and what it takes.
type Account struct {
	Files    int64 `json:"files"` // inodes of each kind
	Dirs     int64 `json:"dirs"`
	Symlinks int64 `json:"symlinks"`
	Others   int64 `json:"others"` // FIFOs, sockets, devices

	Logical  int64   `json:"logical_bytes"` // sizes of the files, each inode counted once
	Data     int64   `json:"data_bytes"`    // of those, what is not holes
	Unique   int64   `json:"unique_bytes"`  // of distinct blocks, and of contents not in blocks yet
	Unsealed int64   `json:"unsealed_bytes"`
	Stored   int64   `json:"stored_bytes"` // what Unique takes on disk
	Ratio    float64 `json:"dedup_ratio"`  // Data to Unique; 0 when there is nothing

	Blocks     int64 `json:"blocks"`
	OnlyBlocks int64 `json:"only_here_blocks"`
	Only       int64 `json:"only_here_bytes"` // of Unique, what nothing else refers to
	// History is what of Unique only kept commits refer to besides.
	History int64 `json:"only_here_and_history_bytes"`
}

// diskPage is what a block's file is rounded up to on disk.
const diskPage = 4096

// Account counts what is at a path of the tree, as of a moment during the call;
// of the options Heap and Pins matter. It looks at all blocks of the repository, and keeps collections from running
// meanwhile. Errors: fs.ErrNotExist, ENOTDIR, gc.ErrUnreadable.
func (t *Tree) Account(ctx context.Context, path string, o CollectOptions) (Account, error) {
	t.collector.one.Lock()
	defer t.collector.one.Unlock()
	a := accounting{t: t, ctx: ctx, here: gc.New(t.load), inside: make(map[Ino]uint32)}
	err := a.run(path, o)
	if err != nil {
		err = fmt.Errorf("tree: stats of %q: %w", path, err)
	}
	return a.Account, err
}

// accounting is one Account on its way.
type accounting struct {
	Account
	t      *Tree
	ctx    context.Context
	snap   *index.Snapshot
	here   *gc.Marker     // marks what the path refers to
	inside map[Ino]uint32 // inodes below the path, with how many of their names are
}

func (a *accounting) run(path string, o CollectOptions) error {
	t := a.t
	if err := t.publishAll(a.ctx); err != nil {
		return err
	}
	n, err := t.walk(splitPath(path))
	if err != nil {
		return err
	}
	t.unpin(n)
	a.snap = t.db.Snapshot()
	defer a.snap.Close()
	top, err := a.snap.Inode(n.ino)
	if err != nil {
		return err
	}
	if err := a.inode(n.ino, &top); err != nil {
		return err
	}
	if err := a.here.Run(a.ctx); err != nil {
		return err
	}
	rest, err := a.rest(n.ino == RootIno, o)
	if err != nil {
		return err
	}
	return a.blocks(o.Heap, a.here.Set, rest)
}

// inode counts an inode by one of its names, with all that is below it.
func (a *accounting) inode(ino Ino, rec *index.Inode) error {
	a.inside[ino]++
	if a.inside[ino] > 1 {
		return nil
	}
	a.count(rec.Kind, rec.Size, rec.Alloc)
	if err := markInode(a.here, a.snap, ino, rec); err != nil {
		return err
	}
	if rec.Kind == index.File && rec.Unsealed {
		for e, err := range a.snap.Extents(ino) {
			if err != nil {
				return err
			}
			if e.Kind == index.Inline || e.Kind == index.Staged {
				a.Unsealed += e.Len
			}
		}
	}
	if rec.Kind != index.Dir {
		return nil
	}
	if rec.Lazy {
		dir := entryOf(rec)
		return a.below(&dir)
	}
	if err := a.ctx.Err(); err != nil {
		return err
	}
	for d, err := range a.snap.Dirents(ino, 0) {
		if err != nil {
			return err
		}
		child, err := a.snap.Inode(d.Ino)
		if err == nil {
			err = a.inode(d.Ino, &child)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// below counts what is below a lazy directory, where nothing has several names.
func (a *accounting) below(dir *history.Entry) error {
	for e, err := range a.t.reader().List(a.ctx, dir) {
		if err != nil {
			return err
		}
		a.count(e.Kind, e.Size, e.Data)
		if e.Kind == index.Dir {
			if err := a.below(&e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *accounting) count(kind Kind, size, data int64) {
	switch kind {
	case index.File:
		a.Files++
		a.Logical += size
		a.Data += min(data, size)
	case index.Dir:
		a.Dirs++
	case index.Symlink:
		a.Symlinks++
	default:
		a.Others++
	}
}

// only tells whether all names of an inode are below the path.
func (a *accounting) only(ino Ino, kind Kind, nlink uint32) bool {
	names, ok := a.inside[ino]
	return ok && (kind == index.Dir || nlink <= names)
}

// rest marks what anything but the path refers to.
func (a *accounting) rest(whole bool, o CollectOptions) (*gc.Set, error) {
	m := gc.New(a.t.load)
	seen := 0
	for in, err := range a.snap.Inodes(0) {
		if err != nil {
			return nil, err
		}
		if seen++; seen%progressEvery == 0 && a.ctx.Err() != nil {
			return nil, a.ctx.Err()
		}
		if a.only(in.Ino, in.Kind, in.Nlink) {
			continue
		}
		if err := markInode(m, a.snap, in.Ino, &in.Inode); err != nil {
			return nil, err
		}
	}
	for n := range a.t.table.all() {
		if a.only(n.ino, n.kind, n.nlink()) {
			markMemory(a.here, n)
		} else {
			markMemory(m, n)
		}
	}
	links := m
	if whole {
		links = a.here
	}
	if err := markLinks(links, a.snap); err != nil {
		return nil, err
	}
	if err := errors.Join(a.here.Run(a.ctx), m.Run(a.ctx)); err != nil {
		return nil, err
	}
	return m.Set, markKept(a.ctx, m, a.snap, o.Pins)
}

// blocks adds up what of all blocks is marked.
func (a *accounting) blocks(heap Heap, here, rest *gc.Set) error {
	for e, err := range heap.All(a.ctx) {
		if err != nil {
			return err
		}
		if _, ok := here.Class(e.Hash); !ok {
			continue
		}
		a.Blocks++
		a.Unique += e.Size
		a.Stored += (e.Size + diskPage - 1) / diskPage * diskPage
		switch class, held := rest.Class(e.Hash); {
		case !held:
			a.OnlyBlocks++
			a.Only += e.Size
		case class == gc.History:
			a.History += e.Size
		}
	}
	a.Unique += a.Unsealed
	a.Stored += a.Unsealed
	a.Only += a.Unsealed
	if a.Unique > 0 {
		a.Ratio = float64(a.Data) / float64(a.Unique)
	}
	return nil
}
