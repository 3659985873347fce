package unixfs

import (
	"context"
	"io"
	"iter"

	"github.com/ipfs/go-cid"
)

// Run is Count chunks in a row that all are the same leaf.
type Run struct {
	First, Count int64 // chunk indexes
	Leaf         Root
}

func (p Profile) EditFile(ctx context.Context, load Load, base cid.Cid, size uint64, changed iter.Seq2[Run, error], emit Emit) (Root, error) {
	panic("being written")
}

func (p Profile) BuildFile(ctx context.Context, r io.Reader, emit Emit) (Root, error) {
	panic("being written")
}

// Leaf encodes one chunk as a leaf block.
func (p Profile) Leaf(data []byte) (Block, error) { panic("being written") }

// LeafData returns the content of a leaf.
func (p Profile) LeafData(c cid.Cid, block []byte) ([]byte, error) { panic("being written") }

// Symlink builds a symbolic link.
func (p Profile) Symlink(target string, emit Emit) (Root, error) { panic("being written") }
func checkChunker(s string) error                                 { return nil }

const minFanout, maxFanout = 8, 1024
