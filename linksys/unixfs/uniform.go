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
	full []Block // by level-1: full nodes
	root []Root
	edge []edge // of zeros, by level: the shorter nodes last asked for; replaced as a whole
}

// edge is a node shorter than a full one of its level.
type edge struct {
	root Root
	data []byte // nil for a leaf, which is made again
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
	return uniform{leaf: u.leaf, full: slices.Clip(u.full), root: slices.Clip(u.root), edge: u.edge}, err
}

// rememberEdge: whoever edits a sparse file whose size is no multiple of a chunk
// will edit it again, and its right edge takes longer to hash than all else.
func (p Profile) rememberEdge(level int, e edge) {
	zeroTrees.mu.Lock()
	defer zeroTrees.mu.Unlock()
	u := zeroTrees.trees[p.leafKey()]
	if u == nil {
		return
	}
	fresh := make([]edge, max(len(u.edge), level+1))
	copy(fresh, u.edge)
	fresh[level] = e
	u.edge = fresh
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
	switch full := w.p.layout().full(level); {
	case size == full:
		return w.full(level, emit)
	case level > 0:
		return w.shorter(level, size, emit)
	case w.zero:
		return w.cut(size, emit)
	}
	return w.tree.leaf, nil
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

// shorter emits an interior node that is not full, and what is below it.
func (w *uniformWriter) shorter(level int, size uint64, emit Emit) (Root, error) {
	child := w.p.layout().full(level - 1)
	n, rest := size/child, size%child
	var whole, last Root
	var err error
	if n > 0 {
		if whole, err = w.full(level-1, emit); err != nil {
			return Root{}, err
		}
	}
	if rest > 0 {
		if last, err = w.subtree(level-1, rest, emit); err != nil {
			return Root{}, err
		}
	}
	if e := w.edge(level); e.data != nil && e.root.Size == size {
		return e.root, emit(Block{Cid: e.root.Cid, Data: e.data})
	}
	f := newFileNode(int64(n) + 1)
	f.addEqual(whole, n)
	if rest > 0 {
		f.add(last)
	}
	e := edge{}
	e.root, err = w.p.node(f, Stat{}, func(b Block) error {
		e.data = b.Data
		return emit(b)
	})
	if err == nil && w.zero {
		w.p.rememberEdge(level, e)
	}
	return e.root, err
}

// cut emits a zero leaf shorter than a chunk.
func (w *uniformWriter) cut(size uint64, emit Emit) (Root, error) {
	if len(w.tree.edge) == 0 { // it may be the first that is asked for
		var err error
		if w.tree, err = w.p.zeroTree(0); err != nil {
			return Root{}, err
		}
	}
	if e := w.edge(0); e.root.Size == size {
		return e.root, w.p.emitZeros(e.root, emit)
	}
	leaf, err := w.p.emitLeaf(zeroBytes[:size], emit)
	if err == nil {
		w.p.rememberEdge(0, edge{root: leaf})
	}
	return leaf, err
}

func (w *uniformWriter) edge(level int) (e edge) {
	if level < len(w.tree.edge) {
		e = w.tree.edge[level]
	}
	return e
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
