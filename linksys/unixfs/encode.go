package unixfs

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// A dag-pb block is a protobuf message PBNode. Its canonical form has the links
// (field 2) before the data (field 1), against protobuf's habit. The data is a
// second message, UnixFS's Data. Both are so small that they are written by
// hand: encoding is on the path of every seal.
const (
	varint = 0 // the wire type of numbers

	tagNodeData  = 1<<3 | 2
	tagNodeLinks = 2<<3 | 2

	tagLinkHash  = 1<<3 | 2
	tagLinkName  = 2<<3 | 2
	tagLinkTsize = 3<<3 | varint

	tagType      = 1<<3 | varint
	tagData      = 2<<3 | 2
	tagFileSize  = 3<<3 | varint
	tagBlockSize = 4<<3 | varint
	tagHashType  = 5<<3 | varint
	tagFanout    = 6<<3 | varint
	tagMode      = 7<<3 | varint
	tagMtime     = 8<<3 | 2

	tagSeconds = 1<<3 | varint
	tagNanos   = 2<<3 | 5
)

func varintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// clampTsize: dag-pb's Tsize is a signed integer in the IPLD data model, and
// Kubo writes 0 for what does not fit (a sparse file of 8 EiB).
func clampTsize(n uint64) uint64 {
	if n > math.MaxInt64 {
		return 0
	}
	return n
}

// linkLen is the length of one encoded link, framing included.
func linkLen(cidLen, nameLen int, tsize uint64) int {
	n := linkBodyLen(cidLen, nameLen, tsize)
	return 1 + varintLen(uint64(n)) + n
}

func linkBodyLen(cidLen, nameLen int, tsize uint64) int {
	return 1 + varintLen(uint64(cidLen)) + cidLen +
		1 + varintLen(uint64(nameLen)) + nameLen +
		1 + varintLen(clampTsize(tsize))
}

// appendLink appends a link; the name is prefix followed by name. The name
// field is written even when empty, as Kubo does.
func appendLink(b []byte, l Link, prefix string) []byte {
	c := l.Cid.KeyString()
	nameLen := len(prefix) + len(l.Name)
	b = append(b, tagNodeLinks)
	b = binary.AppendUvarint(b, uint64(linkBodyLen(len(c), nameLen, l.Tsize)))
	b = append(b, tagLinkHash)
	b = binary.AppendUvarint(b, uint64(len(c)))
	b = append(b, c...)
	b = append(b, tagLinkName)
	b = binary.AppendUvarint(b, uint64(nameLen))
	b = append(b, prefix...)
	b = append(b, l.Name...)
	b = append(b, tagLinkTsize)
	return binary.AppendUvarint(b, clampTsize(l.Tsize))
}

// appendNodeData appends the frame of a node's data field of n bytes; the data follows.
func appendNodeData(b []byte, n int) []byte {
	return binary.AppendUvarint(append(b, tagNodeData), uint64(n))
}

func appendField(b []byte, tag byte, v uint64) []byte {
	return binary.AppendUvarint(append(b, tag), v)
}

func appendBytes(b []byte, tag byte, v []byte) []byte {
	return append(binary.AppendUvarint(append(b, tag), uint64(len(v))), v...)
}

// appendStat appends the mode and mtime fields. Nanoseconds are left out when
// zero, and a mode of 0 is no mode: both as in Kubo.
func appendStat(b []byte, s Stat) []byte {
	if s.Mode != 0 {
		b = appendField(b, tagMode, uint64(s.Mode))
	}
	if s.Mtime.IsZero() {
		return b
	}
	var t []byte
	t = appendField(t, tagSeconds, uint64(s.Mtime.Unix()))
	if ns := s.Mtime.Nanosecond(); ns > 0 {
		t = binary.LittleEndian.AppendUint32(append(t, tagNanos), uint32(ns))
	}
	return appendBytes(b, tagMtime, t)
}

// encodeNode is the block with these encoded links and this UnixFS message.
func encodeNode(links, message []byte) []byte {
	b := make([]byte, 0, len(links)+1+varintLen(uint64(len(message)))+len(message))
	b = append(b, links...)
	b = appendNodeData(b, len(message))
	return append(b, message...)
}

// encodeLeaf is a dag-pb leaf: content inside a File message, which Kubo uses
// although the type Raw was meant for it.
func encodeLeaf(data []byte, stat Stat) []byte {
	size := uint64(len(data))
	tail := appendStat(appendField(nil, tagFileSize, size), stat)
	n := 2 + len(tail)
	if size > 0 {
		n += 1 + varintLen(size) + len(data)
	}
	b := make([]byte, 0, 1+varintLen(uint64(n))+n)
	b = appendNodeData(b, n)
	b = appendField(b, tagType, uint64(File))
	if size > 0 {
		b = appendBytes(b, tagData, data)
	}
	return append(b, tail...)
}

// fileNode collects the children of an interior node of a file, in order.
type fileNode struct {
	links []byte // encoded
	sizes []byte // encoded
	n     int    // children
	size  uint64 // content bytes below
	tsize uint64 // block bytes below
}

// newFileNode has room for n children: a link with a CIDv1 of 32 bytes takes 48
// bytes or a few more, a block size 4 or 5.
func newFileNode(n int64) *fileNode {
	return &fileNode{links: make([]byte, 0, 52*n), sizes: make([]byte, 0, 6*n)}
}

func (f *fileNode) reset() { *f = fileNode{links: f.links[:0], sizes: f.sizes[:0]} }

func (f *fileNode) add(child Root) {
	f.links = appendLink(f.links, Link{Cid: child.Cid, Tsize: child.Tsize}, "")
	f.count(child.Size, child.Tsize)
}

// addEqual adds the same child n times, encoded once.
func (f *fileNode) addEqual(child Root, n uint64) {
	if n == 0 {
		return
	}
	link, size := len(f.links), len(f.sizes)
	f.add(child)
	linkEnd, sizeEnd := len(f.links), len(f.sizes)
	for range n - 1 {
		f.links = append(f.links, f.links[link:linkEnd]...)
		f.sizes = append(f.sizes, f.sizes[size:sizeEnd]...)
	}
	f.n += int(n - 1)
	f.size += child.Size * (n - 1)
	f.tsize += clampTsize(child.Tsize) * (n - 1)
}

func (f *fileNode) count(size, tsize uint64) {
	f.sizes = appendField(f.sizes, tagBlockSize, size)
	f.n++
	f.size += size
	f.tsize += clampTsize(tsize)
}

func (f *fileNode) encode(stat Stat) []byte {
	msg := make([]byte, 0, len(f.sizes)+48)
	msg = appendField(msg, tagType, uint64(File))
	msg = appendField(msg, tagFileSize, f.size)
	msg = append(msg, f.sizes...)
	return encodeNode(f.links, appendStat(msg, stat))
}

// node encodes and emits the collected children as one node.
func (p Profile) node(f *fileNode, stat Stat, emit Emit) (Root, error) {
	data := f.encode(stat)
	c, err := p.block(codecDagPB, data, emit)
	return Root{Cid: c, Size: f.size, Tsize: f.tsize + uint64(len(data))}, err
}
