package unixfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"golang.org/x/sync/errgroup"
)

// Builder builds with more than a profile: with several cores, and with mode
// and mtime in the root node. The zero values of Workers and Stat make it do
// what the profile's own methods do.
type Builder struct {
	Profile Profile
	// Workers is how many goroutines hash and emit leaves. With more than one,
	// Emit must be safe for concurrent use; each node is still emitted after
	// all below it. At most Workers+2 chunks are in memory.
	Workers int
	// Stat goes into the root. A raw leaf has no room for it, so that a file
	// gets dag-pb leaves then, as in Kubo.
	Stat Stat
}

// BuildFile builds a file from a stream, in one pass and with memory for one
// chunk and one node per level. Errors of r and emit are passed on wrapped.
func (p Profile) BuildFile(ctx context.Context, r io.Reader, emit Emit) (Root, error) {
	return Builder{Profile: p}.File(ctx, r, emit)
}

// BuildDir builds a directory from its entries, in any order, as one node or as
// a HAMT when it is larger than the profile allows. It holds all entries in
// memory. Errors: ErrName for an invalid or repeated name.
func (p Profile) BuildDir(ctx context.Context, entries iter.Seq2[Entry, error], emit Emit) (Root, error) {
	return Builder{Profile: p}.Dir(ctx, entries, emit)
}

// Symlink builds a symbolic link. See [Profile.Symlink].
func (b Builder) Symlink(target string, emit Emit) (Root, error) {
	return b.Profile.symlink(target, b.Stat, emit)
}

// File builds a file from a stream. See [Profile.BuildFile].
func (b Builder) File(ctx context.Context, r io.Reader, emit Emit) (Root, error) {
	if !b.Stat.isZero() {
		b.Profile.RawLeaves = false
	}
	src, err := b.Profile.chunks(r)
	if err != nil {
		return Root{}, fmt.Errorf("unixfs: %w", err)
	}
	root, err := b.file(ctx, src, emit)
	if err != nil {
		return Root{}, fmt.Errorf("unixfs: build file: %w", err)
	}
	return root, nil
}

func (b Builder) file(ctx context.Context, src chunks, emit Emit) (Root, error) {
	first, err := src.next()
	if err == nil {
		var second []byte
		if second, err = src.next(); err == nil {
			return b.leaves(ctx, &peeked{chunks: src, first: [][]byte{first, second}}, emit)
		}
		src.free(second)
	}
	defer src.free(first)
	if !errors.Is(err, io.EOF) {
		return Root{}, err
	}
	leaf, err := b.Profile.leaf(first, b.Stat) // the whole file
	if err != nil {
		return Root{}, err
	}
	return LeafRoot(leaf, len(first)), emit(leaf)
}

// peeked gives back chunks that were read to see how many there are.
type peeked struct {
	chunks
	first [][]byte
}

func (p *peeked) next() ([]byte, error) {
	if len(p.first) > 0 {
		chunk := p.first[0]
		p.first = p.first[1:]
		return chunk, nil
	}
	return p.chunks.next()
}

// leaves builds a file of several chunks.
func (b Builder) leaves(ctx context.Context, src chunks, emit Emit) (Root, error) {
	t := &tree{p: b.Profile, emit: emit}
	run := b.serial
	if b.Workers > 1 {
		run = b.parallel
	}
	if err := run(ctx, t, src); err != nil {
		return Root{}, err
	}
	return t.finish(b.Stat)
}

// serial does all in the calling goroutine.
func (b Builder) serial(ctx context.Context, t *tree, src chunks) error {
	return eachChunk(src, func(chunk []byte) error {
		leaf, err := t.p.emitLeaf(chunk, t.emit)
		src.free(chunk)
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return t.add(0, leaf)
	})
}

// eachChunk calls f, which then owns the chunk, until the stream ends.
func eachChunk(src chunks, f func(chunk []byte) error) error {
	for {
		chunk, err := src.next()
		if err != nil {
			src.free(chunk)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := f(chunk); err != nil {
			return err
		}
	}
}

// job is a chunk on its way through a worker.
type job struct {
	chunk []byte
	leaf  chan Root // of capacity 1; closed without a value on error
}

// parallel reads in the calling goroutine, hashes and emits leaves in workers,
// and links them, in order, in one more goroutine.
func (b Builder) parallel(ctx context.Context, t *tree, src chunks) error {
	g, ctx := errgroup.WithContext(ctx)
	work := make(chan job)
	order := make(chan job, b.Workers) // bounds the chunks in memory: these, the workers' and the reader's
	for range b.Workers {
		g.Go(func() error { return t.work(work, src) })
	}
	g.Go(func() error { return t.link(ctx, order) })
	err := eachChunk(src, func(chunk []byte) error {
		j := job{chunk: chunk, leaf: make(chan Root, 1)}
		for _, c := range []chan<- job{order, work} {
			select {
			case c <- j:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	close(work)
	close(order)
	if werr := g.Wait(); werr != nil {
		return werr // the cause; err is only its cancellation
	}
	return err
}

// work hashes and emits leaves.
func (t *tree) work(work <-chan job, src chunks) error {
	for j := range work {
		leaf, err := t.p.emitLeaf(j.chunk, t.emit)
		src.free(j.chunk)
		if err != nil {
			close(j.leaf)
			return err
		}
		j.leaf <- leaf
	}
	return nil
}

// link adds leaves to the tree in the order of the stream.
func (t *tree) link(ctx context.Context, order <-chan job) error {
	for j := range order {
		select {
		case leaf, ok := <-j.leaf:
			if !ok {
				return nil // the worker returns the error
			}
			if err := t.add(0, leaf); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// tree grows a balanced file from its leaves, left to right. levels[i] collects
// children of level i, into a node of level i+1. A full node is only linked when
// one more child shows that there is a level above it.
type tree struct {
	p      Profile
	emit   Emit
	levels []*fileNode
}

func (t *tree) add(level int, child Root) error {
	for ; ; level++ {
		if level == len(t.levels) {
			t.levels = append(t.levels, &fileNode{})
		}
		f := t.levels[level]
		if f.n < t.p.MaxLinks {
			f.add(child)
			return nil
		}
		full, err := t.p.node(f, Stat{}, t.emit)
		if err != nil {
			return err
		}
		f.reset()
		f.add(child)
		child = full
	}
}

// finish closes the right edge. Every level has a node there, even one of a
// single child: all leaves are equally deep.
func (t *tree) finish(stat Stat) (Root, error) {
	for level := 0; ; level++ {
		if level == len(t.levels)-1 {
			return t.p.node(t.levels[level], stat, t.emit)
		}
		root, err := t.p.node(t.levels[level], Stat{}, t.emit)
		if err != nil {
			return Root{}, err
		}
		if err := t.add(level+1, root); err != nil {
			return Root{}, err
		}
	}
}
