package unixfs

import (
	"fmt"
	"math/bits"

	"github.com/ipfs/go-cid"
)

// Type is the kind of a UnixFS node.
type Type uint8

// The types of the specification, by their numbers.
const (
	Raw      Type = 0 // a leaf of a file: a raw block, or a dag-pb node of the old type Raw
	Dir      Type = 1
	File     Type = 2 // a file, a part of one, or a leaf
	Metadata Type = 3 // a MIME type around a file; never used in earnest
	Symlink  Type = 4
	HAMT     Type = 5 // a node of a sharded directory
)

func (t Type) String() string {
	if names := [...]string{"raw", "directory", "file", "metadata", "symlink", "hamt"}; int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Link is a link of a node. In a HAMT node the name begins with the slot, in
// upper-case hexadecimal digits as many as the last slot needs; a name of
// nothing else leads to a child node.
type Link struct {
	Name  string
	Cid   cid.Cid
	Tsize uint64 // block bytes of the DAG below, as its maker claims
}

// Node is a decoded UnixFS node that does not contradict itself.
type Node struct {
	Type  Type
	Data  []byte // File, Raw: content before that of the links; Symlink: target; HAMT: bitfield. Aliases the block
	Links []Link
	// BlockSizes has, for a File, the content bytes below each link.
	BlockSizes []uint64
	// FileSize is, for a File or Raw, len(Data) plus all BlockSizes.
	FileSize uint64
	Fanout   int // HAMT: slots
	Stat     Stat
}

// DecodeNode decodes a block whose bytes were checked against c. A raw block is
// a node of type Raw. Time and memory are bounded by a small multiple of the
// block's length, whatever it holds. Names of entries are not judged here (see
// [Node.Entries]). Errors: ErrMalformed.
func DecodeNode(c cid.Cid, block []byte) (*Node, error) {
	n, err := decodeNode(c, block)
	if err != nil {
		return nil, fmt.Errorf("unixfs: decode %s: %w", c, err)
	}
	return n, nil
}

func decodeNode(c cid.Cid, block []byte) (*Node, error) {
	switch c.Type() {
	case codecRaw:
		return &Node{Type: Raw, Data: block, FileSize: uint64(len(block))}, nil
	case codecDagPB:
	default:
		return nil, malformed("codec 0x%x", c.Type())
	}
	n := &Node{}
	// Shortest link: 8 bytes. Most are around 50; growing covers the rest.
	data, err := scanNode(block, func(l rawLink) error {
		if n.Links == nil {
			n.Links = make([]Link, 0, min(len(block)/max(len(l.all), 32)+1, 1024))
		}
		link, err := l.decode()
		n.Links = append(n.Links, link)
		return err
	})
	if err != nil {
		return nil, err
	}
	m, err := scanMessage(data)
	if err != nil {
		return nil, err
	}
	n.Type, n.Data, n.Stat = m.typ, m.data, m.stat
	switch n.Type {
	case File, Raw:
		return n, n.checkFile(&m)
	case HAMT:
		return n, n.checkShard(&m)
	case Symlink:
		n.FileSize = uint64(len(n.Data))
	}
	return n, nil
}

// checkFile fills in the sizes: one per link, and all of them together with the
// inline data must be the file's size.
func (n *Node) checkFile(m *message) error {
	n.FileSize = uint64(len(n.Data))
	if len(n.Links) > 0 {
		n.BlockSizes = make([]uint64, len(n.Links))
	}
	for i := range n.BlockSizes {
		size, err := m.nextBlockSize()
		if err != nil {
			return malformed("%d links, %d block sizes", len(n.Links), i)
		}
		total, carry := bits.Add64(n.FileSize, size, 0)
		if carry != 0 {
			return malformed("file size overflows")
		}
		n.BlockSizes[i], n.FileSize = size, total
	}
	if len(m.blockSizes) > 0 {
		return malformed("more block sizes than links")
	}
	if m.hasSize && m.size != n.FileSize {
		return malformed("file size %d, but parts of %d bytes", m.size, n.FileSize)
	}
	return nil
}

// checkShard verifies a HAMT node: fan-out, hash function, and that the links
// stand in the slots which the bitfield names.
func (n *Node) checkShard(m *message) error {
	if err := m.checkShard(); err != nil {
		return err
	}
	n.Fanout = int(m.fanout)
	slots, err := newSlots(n.Data, n.Fanout)
	if err != nil {
		return err
	}
	for _, l := range n.Links {
		if err := slots.check(l.Name); err != nil {
			return err
		}
	}
	return slots.end()
}
