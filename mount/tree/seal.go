package tree

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"

	"github.com/ipfs/go-cid"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/index"
	"cafs/mount/tree/seal"
)

// ErrNoCID: FIFOs, sockets and devices have no content address.
var ErrNoCID = errors.New("only files, directories and symbolic links have a CID")

// Seal returns the content address of what ino is now, with every block of it
// durable. Error: ErrNoCID.
func (t *Tree) Seal(ctx context.Context, ino Ino) (unixfs.Root, error) {
	n, err := t.pin(ino)
	if err != nil {
		return unixfs.Root{}, err
	}
	defer t.unpin(n)
	switch n.kind {
	case index.File:
		roots, err := t.sealFiles(ctx, []Ino{ino})
		if err != nil {
			return unixfs.Root{}, err
		}
		return roots[0], nil
	case index.Dir:
		return t.sealDir(ctx, ino)
	case index.Symlink:
		b := blockSet{t: t, ctx: ctx}
		root, err := t.opts.Profile.Symlink(n.target, b.emit)
		if err == nil {
			err = b.flush()
		}
		return root, err
	}
	return unixfs.Root{}, ErrNoCID
}

// blockSet stores the blocks of a seal and makes them durable in the end.
type blockSet struct {
	t    *Tree
	ctx  context.Context
	mu   sync.Mutex
	cids []cid.Cid
}

func (b *blockSet) emit(blk unixfs.Block) error {
	if err := b.t.opts.Blocks.Put(b.ctx, blk.Cid, blk.Data); err != nil {
		return err
	}
	b.add(blk.Cid)
	return nil
}

func (b *blockSet) add(c cid.Cid) {
	b.mu.Lock()
	b.cids = append(b.cids, c)
	b.mu.Unlock()
}

// flush makes the set's blocks durable, and others with them.
func (b *blockSet) flush(more ...cid.Cid) error {
	return b.t.opts.Blocks.Flush(b.ctx, append(b.cids, more...))
}

// load reads a block for the encoder.
func (t *Tree) load(ctx context.Context, c cid.Cid) ([]byte, error) {
	return t.opts.Blocks.Get(ctx, c)
}

// sealDir gives a directory its content address as of a moment during the call.
func (t *Tree) sealDir(ctx context.Context, dir Ino) (unixfs.Root, error) {
	t.sealing.one.Lock()
	defer t.sealing.one.Unlock()
	defer t.lease()()
	if err := t.publishAll(ctx); err != nil {
		return unixfs.Root{}, err
	}
	cut, err := t.beginCut(false)
	if err != nil {
		return unixfs.Root{}, err
	}
	defer cut.end()
	blocks, files := &blockSet{t: t, ctx: ctx}, &fileSeals{t: t, atCut: true}
	defer files.end()
	root, results, err := t.sealer(cut, blocks, files).Dir(ctx, dir)
	if err != nil {
		return unixfs.Root{}, err
	}
	if err := blocks.flush(files.cids()...); err != nil {
		return unixfs.Root{}, err
	}
	if err := files.enter(ctx); err != nil {
		return unixfs.Root{}, err
	}
	if err := t.commitSeal(results, files.isClean); err != nil {
		return unixfs.Root{}, err
	}
	return root, t.db.Sync(ctx)
}

// sealer builds directories as of a cut.
func (t *Tree) sealer(cut *sealCut, blocks *blockSet, files *fileSeals) *seal.Sealer {
	return &seal.Sealer{Profile: t.opts.Profile, Source: cut.snap, Load: t.load, Emit: blocks.emit, Path: t.Path, Files: files.build}
}

// commitSeal enters the new addresses of directories that did not change since
// the cut, nor anything below them; the others stay as they were and are
// sealed again the next time. It pauses the namespace for a few hundred
// batches at a time. clean tells of a file that nothing newer is in it.
func (t *Tree) commitSeal(results []seal.Result, clean func(Ino) bool) error {
	const pause = 256
	stale := make(map[Ino]struct{})
	for len(results) > 0 {
		k := min(pause, len(results))
		t.ns.Lock()
		for _, r := range results[:k] {
			_, below := stale[r.Ino]
			newer := slices.ContainsFunc(r.Files, func(ino Ino) bool { return !clean(ino) })
			if newer || below || t.sealing.wasTouched(r.Ino) {
				stale[r.Ino], stale[r.Parent] = struct{}{}, struct{}{}
				continue
			}
			if err := t.commitSealedDir(r); err != nil {
				t.ns.Unlock()
				return err
			}
		}
		t.ns.Unlock()
		results = results[k:]
	}
	return nil
}

func (t *Tree) commitSealedDir(r seal.Result) error {
	n, err := t.pin(r.Ino)
	if errors.Is(err, syscall.ESTALE) {
		return nil // removed meanwhile
	} else if err != nil {
		return err
	}
	n.mu.Lock()
	defer t.unlock(n)
	e := t.begin()
	defer e.Close()
	rec := e.rec(n)
	rec.Base, rec.BaseSize, rec.Tsize, rec.Unsealed = r.Root.Cid, int64(r.Root.Size), r.Root.Tsize, false
	if !r.Link {
		e.ClearAllChanged(n.ino)
	}
	return e.commit()
}
