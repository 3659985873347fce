package unixfs

import (
	"fmt"
	"slices"
	"sync"
)

// uniform is a file all of whose chunks are one leaf. A full node of each level
// is encoded once, however often it occurs, so that a file of 8 EiB of zeros
// takes one node per level and the few on its right edge.
type uniform struct {
	leaf Root
	tail Root    // of zeros: the last shorter leaf asked for
	full []Block // by level-1: full nodes
	root []Root
}

// grow encodes the full nodes up to a level.
func (u *uniform) grow(p Profile, level int) error {
	for len(u.root) < level {
		child := u.leaf
		if n := len(u.root); n > 0 {
			child = u.root[n-1]
		}
		f := newFileNode(int64(p.MaxLinks))
		f.addEqual(child, uint64(p.MaxLinks))
		keep := func(b Block) error { u.full = append(u.full, b); return nil }
		root, err := p.node(f, Stat{}, keep)
		if err != nil {
			return err
		}
		u.root = append(u.root, root)
	}
	return nil
}

// zeroBytes is the content of every zero chunk. Never written, it costs no memory
// until read.
var zeroBytes [maxChunk]byte

// zeroTrees remembers, per profile, the tree of zeros as far as it was needed:
// hashing the zero leaf takes longer than an edit of a small file.
var zeroTrees struct {
	mu    sync.Mutex
	trees map[Profile]*uniform
}

// zeroTree returns a copy of the profile's zero tree grown to a level.
func (p Profile) zeroTree(level int) (uniform, error) {
	key := p.leafKey()
	z := &zeroTrees
	z.mu.Lock()
	defer z.mu.Unlock()
	u, ok := z.trees[key]
	if !ok {
		leaf, err := p.Leaf(zeroBytes[:p.ChunkSize])
		if err != nil {
			return uniform{}, err
		}
		u = &uniform{leaf: LeafRoot(leaf, int(p.ChunkSize))}
		if z.trees == nil || len(z.trees) >= 64 { // settings come from users; keep the memo small
			z.trees = make(map[Profile]*uniform)
		}
		z.trees[key] = u
	}
	err := u.grow(p, level)
	return uniform{leaf: u.leaf, tail: u.tail, full: slices.Clip(u.full), root: slices.Clip(u.root)}, err
}

// leafKey is the profile without what has no influence on files.
func (p Profile) leafKey() Profile {
	return Profile{CidVersion: p.CidVersion, Hash: p.Hash, RawLeaves: p.RawLeaves, ChunkSize: p.ChunkSize, MaxLinks: p.MaxLinks}
}

// ZeroLeaf returns the leaf of a whole chunk of zeros, by CID and sizes.
func (p Profile) ZeroLeaf() (Root, error) {
	u, err := p.zeroTree(0)
	return u.leaf, err
}

// uniformWriter emits what of a uniform tree is used, each block once.
type uniformWriter struct {
	p       Profile
	tree    uniform
	zero    bool // the leaf is ours to emit, and may be cut
	emitted int  // levels below this are out
}

// subtree returns the node of a level that covers size bytes.
func (w *uniformWriter) subtree(level int, size uint64, emit Emit) (Root, error) {
	lay := w.p.layout()
	if size == lay.full(level) {
		return w.full(level, emit)
	}
	if level == 0 {
		if !w.zero {
			return w.tree.leaf, nil
		}
		return w.cut(size, emit)
	}
	child := lay.full(level - 1)
	n, rest := size/child, size%child
	f := newFileNode(int64(n) + 1)
	if n > 0 {
		kid, err := w.full(level-1, emit)
		if err != nil {
			return Root{}, err
		}
		f.addEqual(kid, n)
	}
	if rest > 0 {
		kid, err := w.subtree(level-1, rest, emit)
		if err != nil {
			return Root{}, err
		}
		f.add(kid)
	}
	return w.p.node(f, Stat{}, emit)
}

func (w *uniformWriter) full(level int, emit Emit) (root Root, err error) {
	if !w.zero {
		err = w.tree.grow(w.p, level)
	} else if w.emitted == 0 || len(w.tree.root) < level {
		w.tree, err = w.p.zeroTree(level)
	}
	if err != nil {
		return Root{}, err
	}
	for ; w.emitted <= level; w.emitted++ {
		switch {
		case w.emitted > 0:
			err = emit(w.tree.full[w.emitted-1])
		case w.zero:
			err = w.p.emitZeros(w.tree.leaf, emit)
		}
		if err != nil {
			return Root{}, err
		}
	}
	if level == 0 {
		return w.tree.leaf, nil
	}
	return w.tree.root[level-1], nil
}

// cut emits a zero leaf shorter than a chunk.
func (w *uniformWriter) cut(size uint64, emit Emit) (Root, error) {
	tree, err := w.p.zeroTree(0)
	if err != nil {
		return Root{}, err
	}
	if tree.tail.Size == size {
		return tree.tail, w.p.emitZeros(tree.tail, emit)
	}
	leaf, err := w.p.emitLeaf(zeroBytes[:size], emit)
	if err == nil {
		w.p.rememberTail(leaf)
	}
	return leaf, err
}

// rememberTail: whoever edits a sparse file whose size is no multiple of a chunk
// will edit it again.
func (p Profile) rememberTail(leaf Root) {
	zeroTrees.mu.Lock()
	defer zeroTrees.mu.Unlock()
	if u := zeroTrees.trees[p.leafKey()]; u != nil {
		u.tail = leaf
	}
}

// emitZeros emits a zero leaf whose hash is known.
func (p Profile) emitZeros(leaf Root, emit Emit) error {
	data := zeroBytes[:leaf.Size]
	if !p.RawLeaves {
		data = encodeLeaf(data, Stat{})
	}
	return emit(Block{Cid: leaf.Cid, Data: data})
}

func (p Profile) emitLeaf(data []byte, emit Emit) (Root, error) {
	b, err := p.Leaf(data)
	if err != nil {
		return Root{}, err
	}
	if err := emit(b); err != nil {
		return Root{}, fmt.Errorf("unixfs: leaf: %w", err)
	}
	return LeafRoot(b, len(data)), nil
}
