package unixfs

import (
	"context"
	"iter"

	"github.com/ipfs/go-cid"
)

// Link is a link of a node.
type Link struct {
	Name  string
	Cid   cid.Cid
	Tsize uint64
}

// Entry is a directory entry.
type Entry = Link

// Change of one name of a directory.
type Change struct {
	Name  string
	Set   bool
	Entry Entry
}

func (p Profile) BuildDir(ctx context.Context, entries iter.Seq2[Entry, error], emit Emit) (Root, error) {
	panic("being written")
}

func (p Profile) EditDir(ctx context.Context, load Load, base cid.Cid, changes []Change, emit Emit) (Root, error) {
	panic("being written")
}

// Type of a UnixFS node.
type Type uint8

const (
	Raw Type = iota
	Dir
	File
	Metadata
	Symlink
	HAMT
)

// Node is a decoded UnixFS node.
type Node struct {
	Type       Type
	Data       []byte
	Links      []Link
	BlockSizes []uint64
	FileSize   uint64
	Fanout     int
	Stat       Stat
}

// DecodeNode decodes a block.
func DecodeNode(c cid.Cid, block []byte) (*Node, error) { panic("being written") }

// ValidName tells whether name can be a directory entry.
func ValidName(name string) error { panic("being written") }
