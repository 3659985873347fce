package unixfs

import (
	"fmt"

	"github.com/ipfs/go-cid"
)

const (
	codecRaw   = cid.Raw
	codecDagPB = cid.DagProtobuf
)

// Leaf encodes one chunk, of at most 2 MiB - 256 bytes, as a leaf block. For
// raw leaves the block's Data is data itself, not a copy. A file of one chunk
// is that leaf; an empty file is the leaf of no bytes.
func (p Profile) Leaf(data []byte) (Block, error) { return p.leaf(data, Stat{}) }

func (p Profile) leaf(data []byte, stat Stat) (b Block, err error) {
	if len(data) > maxChunk {
		return Block{}, fmt.Errorf("unixfs: chunk of %d bytes, more than %d", len(data), maxChunk)
	}
	codec := uint64(codecRaw)
	b.Data = data
	if !p.RawLeaves {
		codec, b.Data = codecDagPB, encodeLeaf(data, stat)
	}
	b.Cid, err = p.cid(codec, b.Data)
	return b, err
}

// LeafRoot is the root that a leaf block of size content bytes is.
func LeafRoot(b Block, size int) Root {
	return Root{Cid: b.Cid, Size: uint64(size), Tsize: uint64(len(b.Data))}
}

// LeafData returns the content of a leaf, whoever made it: of a raw block or of
// a dag-pb node without links. It aliases block. Errors: ErrMalformed, also for
// what is no leaf.
func (p Profile) LeafData(c cid.Cid, block []byte) ([]byte, error) {
	if c.Type() == codecRaw {
		return block, nil
	}
	n, err := DecodeNode(c, block)
	if err != nil {
		return nil, err
	}
	if len(n.Links) > 0 || (n.Type != File && n.Type != Raw) {
		return nil, fmt.Errorf("unixfs: decode %s: %w: not a leaf", c, ErrMalformed)
	}
	return n.Data, nil
}

// Symlink encodes a symbolic link. Unlike every other node, it carries its
// target's length nowhere but in the target.
func (p Profile) Symlink(target string, emit Emit) (Root, error) {
	return p.symlink(target, Stat{}, emit)
}

func (p Profile) symlink(target string, stat Stat, emit Emit) (Root, error) {
	if len(target) > maxChunk {
		return Root{}, fmt.Errorf("unixfs: symlink target of %d bytes, more than %d", len(target), maxChunk)
	}
	msg := appendField(nil, tagType, uint64(Symlink))
	msg = appendStat(appendBytes(msg, tagData, []byte(target)), stat)
	data := encodeNode(nil, msg)
	c, err := p.block(codecDagPB, data, emit)
	return Root{Cid: c, Size: uint64(len(target)), Tsize: uint64(len(data))}, err
}
