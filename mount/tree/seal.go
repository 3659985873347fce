package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"syscall"

	"github.com/ipfs/go-cid"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/content"
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
	defer t.unpin(n, 1)
	switch n.kind {
	case index.File:
		done, err := t.sealFiles(ctx, []Ino{ino}, false)
		if err != nil {
			return unixfs.Root{}, err
		}
		return done[0].Root, nil
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

func (b *blockSet) flush() error { return b.t.opts.Blocks.Flush(b.ctx, b.cids) }

// load reads a block for the encoder.
func (t *Tree) load(ctx context.Context, c cid.Cid) ([]byte, error) {
	return t.opts.Blocks.Get(ctx, c)
}

// sealingFile is one file on its way to a root.
type sealingFile struct {
	n    *inode
	cut  *content.Cut // nil when the file was sealed already
	done seal.File
}

// sealFiles gives files content addresses as of now, or with atCut as of the
// running seal's cut: with their chunks stored, their blocks made durable by one
// flush, and their overlays emptied up to then.
func (t *Tree) sealFiles(ctx context.Context, inos []Ino, atCut bool) ([]seal.File, error) {
	if !atCut { // else the seal has one
		defer t.lease()()
	}
	files := make([]sealingFile, len(inos))
	defer func() {
		for i := range files {
			if files[i].n != nil {
				t.unpin(files[i].n, 1)
			}
		}
	}()
	blocks := &blockSet{t: t, ctx: ctx}
	err := eachOf(files, func(i int, f *sealingFile) error { return t.sealContents(ctx, inos[i], atCut, f, blocks) })
	if err == nil {
		err = blocks.flush()
	}
	out := make([]seal.File, len(inos))
	for i := range files {
		f := &files[i]
		if f.cut == nil {
			out[i] = f.done
			continue
		}
		if err == nil {
			err = t.rebase(ctx, f)
		}
		f.cut.Abort()
		out[i] = f.done
	}
	return out, err
}

// eachOf runs do for every element with two workers: what is left over of two
// processors by a busy mount.
func eachOf[T any](all []T, do func(int, *T) error) error {
	if len(all) == 1 {
		return do(0, &all[0])
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		next  int
		first error
	)
	for range min(2, len(all)) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := first != nil || i >= len(all)
				mu.Unlock()
				if stop {
					return
				}
				if err := do(i, &all[i]); err != nil {
					mu.Lock()
					first = errors.Join(first, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return first
}

// sealContents takes a cut of a file and builds its DAG.
func (t *Tree) sealContents(ctx context.Context, ino Ino, atCut bool, f *sealingFile, blocks *blockSet) error {
	n, err := t.pin(ino)
	if errors.Is(err, syscall.ESTALE) {
		f.done = seal.File{Gone: true}
		return nil
	} else if err != nil {
		return err
	}
	f.n = n
	n.mu.Lock()
	if atCut {
		if f.cut, f.done.Root = t.cutOf(n); f.done.Root.Cid.Defined() {
			n.mu.Unlock()
			return nil // and not clean
		}
	}
	if f.cut == nil && !n.rec.Unsealed && !n.dirty.Load() && n.rec.Base.Defined() {
		f.done = seal.File{Root: unixfs.Root{Cid: n.rec.Base, Size: uint64(n.rec.Size), Tsize: n.rec.Tsize}, Clean: true}
		n.mu.Unlock()
		return nil
	}
	if f.cut == nil {
		file, err := t.contents(n)
		if err != nil {
			n.mu.Unlock()
			return err
		}
		f.cut = file.Cut()
	}
	n.mu.Unlock()
	f.done.Root, err = t.buildFile(ctx, f.cut, blocks)
	if err != nil {
		return fmt.Errorf("tree: seal %s: %w", t.Path(ino), err)
	}
	return nil
}

// buildFile builds the DAG of a cut: from its base and the chunks that differ,
// or from its bytes when the base has another profile's layout.
func (t *Tree) buildFile(ctx context.Context, cut *content.Cut, blocks *blockSet) (unixfs.Root, error) {
	c := cut.Content()
	leaves := func(yield func(unixfs.Run, error) bool) {
		for run, err := range cut.Leaves(ctx) {
			if err == nil {
				blocks.add(run.Leaf.Cid)
			}
			if !yield(run, err) {
				return
			}
		}
	}
	var changed iter.Seq2[unixfs.Run, error] = leaves
	root, err := t.opts.Profile.EditFile(ctx, t.load, c.Base, uint64(c.Size), changed, blocks.emit)
	if errors.Is(err, unixfs.ErrForeign) {
		root, err = t.opts.Profile.BuildFile(ctx, &cutReader{ctx: ctx, cut: cut}, blocks.emit)
	}
	return root, err
}

// cutReader reads a cut from its start.
type cutReader struct {
	ctx context.Context
	cut *content.Cut
	off int64
}

func (r *cutReader) Read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), r.cut.Content().Size-r.off)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	n, err := r.cut.ReadAt(r.ctx, p, r.off)
	r.off += int64(n)
	if errors.Is(err, io.EOF) && n > 0 {
		err = nil
	}
	return n, err
}

// rebase makes the new root the base of the file and publishes that.
func (t *Tree) rebase(ctx context.Context, f *sealingFile) error {
	n := f.n
	n.publish.Lock()
	defer n.publish.Unlock()
	n.mu.Lock()
	if !f.cut.Rebase(f.done.Root) {
		n.mu.Unlock()
		return nil // sealed by somebody else since; the address is right all the same
	}
	cut := n.file.Cut()
	mark := t.markContents
	if n.dirty.Load() { // the cut has what was never published, and so never noted
		mark = t.mark
	}
	n.mu.Unlock()
	if err := t.content.Stage(ctx, inlineTick, cut); err != nil {
		cut.Abort()
		return err
	}
	// Directories whose address has the file's old one must know, and must not
	// be taken for sealed in between.
	t.ns.RLock()
	defer t.ns.RUnlock()
	if err := mark(n); err != nil {
		cut.Abort()
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return t.commitSealed(n, cut, f)
}

// commitSealed enters a file's new base. Only this clears a file's mark.
func (t *Tree) commitSealed(n *inode, cut *content.Cut, f *sealingFile) error {
	e := t.begin()
	defer e.Close()
	rec := e.rec(n)
	cut.Fill(e.Batch)
	rec.Content = cut.Content()
	rec.Alloc = n.file.Blocks() * 512
	rec.Tsize = f.done.Root.Tsize
	f.done.Clean = !n.file.Unsealed()
	rec.Unsealed = !f.done.Clean
	if err := e.commit(); err != nil {
		cut.Abort()
		return err
	}
	cut.Commit()
	if !n.file.Dirty() {
		t.dirtySet.remove(n)
	}
	return nil
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
	blocks := &blockSet{t: t, ctx: ctx}
	root, results, err := t.sealer(cut, blocks).Dir(ctx, dir)
	if err != nil {
		return unixfs.Root{}, err
	}
	if err := blocks.flush(); err != nil {
		return unixfs.Root{}, err
	}
	if err := t.commitSeal(results); err != nil {
		return unixfs.Root{}, err
	}
	return root, t.db.Sync(ctx)
}

// sealer builds directories as of a cut.
func (t *Tree) sealer(cut *sealCut, blocks *blockSet) *seal.Sealer {
	return &seal.Sealer{Profile: t.opts.Profile, Source: cut.snap, Load: t.load, Emit: blocks.emit, Path: t.Path,
		Files: func(ctx context.Context, inos []Ino) ([]seal.File, error) { return t.sealFiles(ctx, inos, true) }}
}

// commitSeal enters the new addresses of directories that did not change since
// the cut, nor anything below them; the others stay as they were and are
// sealed again the next time. It pauses the namespace for a few hundred
// batches at a time.
func (t *Tree) commitSeal(results []seal.Result) error {
	const pause = 256
	stale := make(map[Ino]struct{})
	for len(results) > 0 {
		k := min(pause, len(results))
		t.ns.Lock()
		for _, r := range results[:k] {
			_, below := stale[r.Ino]
			if !r.Clean || below || t.sealing.wasTouched(r.Ino) {
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
