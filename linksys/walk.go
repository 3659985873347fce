package linksys

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/ipfs/go-cid"
	dagpb "github.com/ipld/go-codec-dagpb"
	"github.com/ipld/go-ipld-prime/datamodel"
	"github.com/ipld/go-ipld-prime/linking"
	cidlink "github.com/ipld/go-ipld-prime/linking/cid"
	"github.com/ipld/go-ipld-prime/traversal"
	"github.com/ipld/go-ipld-prime/traversal/selector"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys/unixfs"
)

// Limits of one walk. Bytes need none: what a walk reads is never kept.
const (
	maxWalkNodes = int64(1) << 40
	maxWalkLinks = int64(1) << 36
	// maxWalkPath bounds the segments of a path, three for each dag-pb link: the
	// traversal recurses, and copies the path at each step.
	maxWalkPath = 3 << 10
	// maxKept bounds the nodes, and the leaves, that a view given to a traversal
	// made elsewhere keeps, in bytes.
	maxKept = 4 << 20
)

// walk is one selector traversal. Its LinkSystem sees every block the
// traversal needs, those inside files and sharded directories too, each time it
// needs it and in that order.
type walk struct {
	s    *System
	ctx  context.Context
	note func(c cid.Cid, block []byte) error          // hears of every block; may be nil
	skip func(lc linking.LinkContext, c cid.Cid) bool // ask before each load; may be nil
	pre  *preloader
	via  *linking.LinkSystem // loads for a traversal made elsewhere, which sees them that way
	kept *cache              // what via has loaded last, so that it sees each load about once

	noDir bool  // the last node interpreted as UnixFS has no entries
	err   error // the first failure a traversal may have lost
}

func (w *walk) fail(err error) {
	if w.err == nil && !errors.Is(err, fs.ErrNotExist) {
		w.err = err
	}
}

func (w *walk) linkSystem() linking.LinkSystem {
	ls := w.s.LinkSystem()
	takeBlocks(&ls)
	ls.StorageReadOpener = w.open
	reify := w.reify
	ls.KnownReifiers = map[string]linking.NodeReifier{"unixfs": reify, "unixfs-preload": reify}
	return ls
}

// open is the walk's StorageReadOpener.
func (w *walk) open(lc linking.LinkContext, l datamodel.Link) (io.Reader, error) {
	c, err := linkCid(l)
	if err != nil {
		return nil, err
	}
	if w.skip != nil && w.skip(lc, c) {
		return nil, traversal.SkipMe{}
	}
	if lc.LinkPath.Len() > maxWalkPath {
		return nil, fmt.Errorf("linksys: path of %d segments: %w", lc.LinkPath.Len(), ErrBudget)
	}
	block, err := w.block(w.ctx, c)
	if err != nil {
		w.fail(err)
		return nil, err
	}
	return &blockReader{data: block}, nil
}

// block returns a block's bytes and notes it.
func (w *walk) block(ctx context.Context, c cid.Cid) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if w.pre != nil {
		w.pre.reached(c)
	}
	var block []byte
	it, err := w.s.cache.get(ctx, c)
	if err == nil {
		block = it.block
	} else if errors.Is(err, ErrNotUnixFS) || errors.Is(err, unixfs.ErrMalformed) {
		block, err = w.s.get(ctx, c) // the bytes are right; what they mean is for others to say
	}
	if err != nil {
		return nil, err
	}
	if w.note != nil {
		err = w.note(c, block)
	}
	return block, err
}

// item is the walk's loader: the cache's, noting the block.
func (w *walk) item(ctx context.Context, c cid.Cid) (*item, error) {
	if w.via != nil {
		return w.kept.get(ctx, c)
	}
	it, err := w.s.cache.get(ctx, c)
	if err == nil && w.note != nil {
		err = w.note(c, it.block)
	}
	if err != nil {
		w.fail(err)
		return nil, err
	}
	return it, nil
}

func (w *walk) itemVia(ctx context.Context, c cid.Cid) (*item, error) {
	r, err := w.via.StorageReadOpener(linking.LinkContext{Ctx: ctx}, link(c))
	if err != nil {
		return nil, err
	}
	if cl, ok := r.(io.Closer); ok {
		defer cl.Close()
	}
	block, err := io.ReadAll(io.LimitReader(r, unixfs.MaxBlock+1))
	if err != nil {
		return nil, fmt.Errorf("linksys: block %s: %w", c, err)
	}
	return decodeItem(c, block)
}

// reify is the walk's "unixfs": directories become maps of names, files become
// bytes, everything else stays what it is.
func (w *walk) reify(lc linking.LinkContext, n datamodel.Node, _ *linking.LinkSystem) (datamodel.Node, error) {
	var it *item
	var err error
	w.noDir = n.Kind() != datamodel.Kind_Map && n.Kind() != datamodel.Kind_List
	switch n := n.(type) {
	case *blockNode:
		if it = w.s.cache.peek(n.c); it == nil {
			it, err = decodeItem(n.c, n.block)
		}
	case dagpb.PBNode: // a node that did not come through this walk
		var block []byte
		if block, err = dagpb.AppendEncode(nil, n); err == nil {
			it, err = decodeItem(anonymous(block), block)
		}
	default:
		return n, nil
	}
	if err != nil {
		if n, ok := n.(*blockNode); ok && !unixfsLike(n) {
			return n, nil // dag-pb without UnixFS data
		}
		w.fail(err)
		return nil, err
	}
	w.noDir = !it.isDir()
	switch {
	case it.isDir():
		return &dirNode{Node: n, s: w.s, ctx: w.ctx, it: it, load: w.item, fail: w.fail}, nil
	case it.file != nil:
		f := &File{s: w.s, load: w.item, tracked: w.note != nil || w.via != nil, c: it.c, root: it, size: it.size()}
		return &fileNode{ctx: w.ctx, f: f}, nil
	}
	return n, nil
}

// anonymous names a block whose CID is not known.
func anonymous(block []byte) cid.Cid {
	c, err := cid.V1Builder{Codec: cid.DagProtobuf, MhType: mh.SHA2_256}.Sum(block)
	if err != nil {
		panic(err) // sha2-256 is always there
	}
	return c
}

// unixfsLike tells a broken UnixFS node from a dag-pb node that is none: those
// have no data, and are looked into as they are.
func unixfsLike(n *blockNode) bool {
	_, err := n.LookupByString("Data")
	var none datamodel.ErrNotExists
	return n.err != nil || !errors.As(err, &none)
}

// reify is the "unixfs" of System.LinkSystem, for traversals made elsewhere.
func (s *System) reify(lc linking.LinkContext, n datamodel.Node, ls *linking.LinkSystem) (datamodel.Node, error) {
	w := &walk{s: s, ctx: contextOf(lc), via: ls}
	w.kept = newCache(maxKept, maxKept, w.itemVia)
	return w.reify(lc, n, ls)
}

// run traverses from root and calls match for each node the selector matches.
func (w *walk) run(root cid.Cid, sel selector.Selector, match func(traversal.Progress, datamodel.Node) error) error {
	ls := w.linkSystem()
	l := cidlink.Link{Cid: root}
	lc := linking.LinkContext{Ctx: w.ctx}
	proto, err := walkChooser(l, lc)
	if err != nil {
		return err
	}
	n, err := ls.Load(lc, l, proto)
	if err != nil {
		return fmt.Errorf("linksys: walk %s: %w", root, err)
	}
	cfg := &traversal.Config{
		Ctx: w.ctx, LinkSystem: ls, LinkTargetNodePrototypeChooser: walkChooser,
	}
	if w.pre != nil {
		cfg.Preloader = w.pre.hint
	}
	p := traversal.Progress{Cfg: cfg, Budget: &traversal.Budget{NodeBudget: maxWalkNodes, LinkBudget: maxWalkLinks}}
	p.LastBlock.Link = l
	err = p.WalkMatching(n, sel, match)
	if w.err != nil {
		return fmt.Errorf("linksys: walk %s: %w", root, w.err)
	}
	if errors.Is(err, &traversal.ErrBudgetExceeded{}) {
		return fmt.Errorf("linksys: walk %s: %w: %v", root, ErrBudget, err)
	}
	if err != nil {
		return fmt.Errorf("linksys: walk %s: %w", root, err)
	}
	return nil
}

func walkChooser(l datamodel.Link, lc linking.LinkContext) (datamodel.NodePrototype, error) {
	if cl, ok := l.(cidlink.Link); ok && cl.Cid.Prefix().Codec == cid.DagProtobuf {
		return pbProto{cl.Cid}, nil
	}
	return chooser(l, lc)
}
