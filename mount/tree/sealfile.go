package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"syscall"

	"github.com/ipfs/go-cid"
	"golang.org/x/sync/errgroup"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
)

// fileSeals gives files content addresses as of now, or of the running seal's
// cut. That is three steps for a group of files: build stores the blocks of
// their DAGs, a flush makes them durable, and enter makes the roots their bases
// and empties their overlays up to the cut. Between the last two steps of the
// last group a seal of directories goes on with the roots, so that one flush
// does for all its blocks.
type fileSeals struct {
	t      *Tree
	atCut  bool
	group  []sealingFile
	blocks *blockSet // of the group
	clean  map[Ino]struct{}
}

// sealingFile is one file on its way to a root.
type sealingFile struct {
	ino   Ino
	n     *inode       // nil when the file was removed
	cut   *content.Cut // nil when the file was sealed already
	root  unixfs.Root
	clean bool // nothing newer is in the file
}

// How many files are sealed at a time: in the background what is left over of two
// processors by a busy mount; for a cut, which somebody waits for, more, since
// most of that is waiting for the disk.
const (
	sealersQuiet = 2
	sealersAtCut = 8
)

// sealFiles seals files as of now. The roots are in the order of inos, undefined
// where a file was removed.
func (t *Tree) sealFiles(ctx context.Context, inos []Ino) ([]unixfs.Root, error) {
	defer t.lease()()
	s := fileSeals{t: t}
	defer s.end()
	roots, err := s.build(ctx, inos)
	if err == nil {
		err = s.settle(ctx)
	}
	return roots, err
}

// build finishes the group before, and begins one of inos.
func (s *fileSeals) build(ctx context.Context, inos []Ino) ([]unixfs.Root, error) {
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	s.group, s.blocks = make([]sealingFile, len(inos)), &blockSet{t: s.t, ctx: ctx}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(sealersQuiet)
	if s.atCut {
		g.SetLimit(sealersAtCut)
	}
	for i := range s.group {
		f := &s.group[i]
		f.ino = inos[i]
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return s.t.sealContents(ctx, s.atCut, f, s.blocks)
		})
	}
	err := g.Wait()
	roots := make([]unixfs.Root, len(inos))
	for i := range s.group {
		roots[i] = s.group[i].root
	}
	return roots, err
}

// settle makes the group's blocks durable and enters it.
func (s *fileSeals) settle(ctx context.Context) error {
	if s.blocks == nil {
		return nil
	}
	if err := s.blocks.flush(); err != nil {
		return err
	}
	return s.enter(ctx)
}

// cids are those of the group's blocks.
func (s *fileSeals) cids() []cid.Cid {
	if s.blocks == nil {
		return nil
	}
	return s.blocks.cids
}

// enter enters the group, whose blocks are durable.
func (s *fileSeals) enter(ctx context.Context) error {
	defer s.end()
	for i := range s.group {
		f := &s.group[i]
		if f.cut != nil {
			if err := s.t.rebase(ctx, f); err != nil {
				return err
			}
		}
		if f.clean && s.atCut {
			if s.clean == nil {
				s.clean = make(map[Ino]struct{})
			}
			s.clean[f.ino] = struct{}{}
		}
	}
	return nil
}

// isClean tells whether nothing newer than its root is in a file that was entered.
func (s *fileSeals) isClean(ino Ino) bool {
	_, ok := s.clean[ino]
	return ok
}

// end lets go of the group.
func (s *fileSeals) end() {
	for i := range s.group {
		f := &s.group[i]
		if f.cut != nil {
			f.cut.Abort()
		}
		if f.n != nil {
			s.t.unpin(f.n)
		}
	}
	s.group, s.blocks = nil, nil
}

// sealContents takes a cut of a file and builds its DAG.
func (t *Tree) sealContents(ctx context.Context, atCut bool, f *sealingFile, blocks *blockSet) error {
	n, err := t.pin(f.ino)
	if errors.Is(err, syscall.ESTALE) {
		return nil
	} else if err != nil {
		return err
	}
	f.n = n
	n.mu.Lock()
	if atCut {
		if f.cut, f.root = t.cutOf(n); f.root.Cid.Defined() {
			n.mu.Unlock()
			return nil // and not clean
		}
	}
	if f.cut == nil && !n.rec.Unsealed && !n.dirty.Load() && n.rec.Base.Defined() {
		f.root, f.clean = unixfs.Root{Cid: n.rec.Base, Size: uint64(n.rec.Size), Tsize: n.rec.Tsize}, true
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
	f.root, err = t.buildFile(ctx, f.cut, blocks)
	if err != nil {
		return fmt.Errorf("tree: seal %s: %w", t.Path(f.ino), err)
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
	if !f.cut.Rebase(f.root) {
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
	return t.enterCut(n, cut, func(rec *index.Inode) {
		f.clean = !n.file.Unsealed()
		rec.Tsize, rec.Unsealed = f.root.Tsize, !f.clean
	})
}
