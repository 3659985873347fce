package index

import (
	"encoding/binary"
	"math"

	"github.com/ipfs/go-cid"
)

// Which optional parts an inode record has. The values are on disk.
const (
	hasUnsealed = 1 << iota
	hasBase
	hasSize
	hasNext
	hasTarget
	hasLinkID
	hasRdev
	hasTsize
	hasBaseSize // when it differs from Size
	hasVisible
	hasAtime // this and the next when they differ from Mtime
	hasCtime
	hasBtime
	hasBaseData
	hasAlloc
	hasXattrs
	hasRecord
	hasLazy
	hasAll = 1<<iota - 1
)

// appendInode encodes an inode: kind, parts, the fixed fields, then the parts
// in the order of their bits.
func appendInode(b []byte, in *Inode) []byte {
	parts := inodeParts(in)
	b = append(b, byte(in.Kind))
	b = binary.AppendUvarint(b, parts)
	b = binary.AppendUvarint(b, uint64(in.Perm))
	b = binary.AppendUvarint(b, uint64(in.Uid))
	b = binary.AppendUvarint(b, uint64(in.Gid))
	b = binary.AppendUvarint(b, uint64(in.Nlink))
	b = binary.AppendUvarint(b, uint64(in.Parent))
	b = binary.AppendUvarint(b, in.Cookie)
	b = appendTime(b, in.Mtime)
	if parts&hasBase != 0 {
		b = appendCid(b, in.Base)
	}
	if parts&hasSize != 0 {
		b = binary.AppendVarint(b, in.Size)
	}
	if parts&hasNext != 0 {
		b = binary.AppendUvarint(b, in.Next)
	}
	if parts&hasTarget != 0 {
		b = appendText(b, in.Target)
	}
	if parts&hasLinkID != 0 {
		b = append(b, in.LinkID[:]...)
	}
	if parts&hasRdev != 0 {
		b = binary.AppendUvarint(b, uint64(in.Rdev))
	}
	if parts&hasTsize != 0 {
		b = binary.AppendUvarint(b, in.Tsize)
	}
	if parts&hasBaseSize != 0 {
		b = binary.AppendVarint(b, in.BaseSize)
	}
	if parts&hasVisible != 0 {
		b = appendRanges(b, in.Visible)
	}
	if parts&hasAtime != 0 {
		b = appendTime(b, in.Atime)
	}
	if parts&hasCtime != 0 {
		b = appendTime(b, in.Ctime)
	}
	if parts&hasBtime != 0 {
		b = appendTime(b, in.Btime)
	}
	if parts&hasBaseData != 0 {
		b = binary.AppendVarint(b, in.BaseData)
	}
	if parts&hasAlloc != 0 {
		b = binary.AppendVarint(b, in.Alloc)
	}
	if parts&hasXattrs != 0 {
		b = binary.AppendUvarint(b, uint64(in.Xattrs))
	}
	if parts&hasRecord != 0 {
		b = appendCid(b, in.Record)
	}
	return b
}

func inodeParts(in *Inode) uint64 {
	var parts uint64
	set := func(on bool, part uint64) {
		if on {
			parts |= part
		}
	}
	set(in.Unsealed, hasUnsealed)
	set(in.Base.Defined(), hasBase)
	set(in.Size != 0, hasSize)
	set(in.Next != 0, hasNext)
	set(in.Target != "", hasTarget)
	set(in.LinkID != [16]byte{}, hasLinkID)
	set(in.Rdev != 0, hasRdev)
	set(in.Tsize != 0, hasTsize)
	set(in.BaseSize != in.Size, hasBaseSize)
	set(len(in.Visible) > 0, hasVisible)
	set(in.Atime != in.Mtime, hasAtime)
	set(in.Ctime != in.Mtime, hasCtime)
	set(in.Btime != in.Mtime, hasBtime)
	set(in.BaseData != 0, hasBaseData)
	set(in.Alloc != 0, hasAlloc)
	set(in.Xattrs != 0, hasXattrs)
	set(in.Record.Defined(), hasRecord)
	set(in.Lazy, hasLazy)
	return parts
}

func decodeInode(b []byte) (Inode, error) {
	d := decoder{b: b}
	in := Inode{Kind: Kind(d.byte())}
	parts := d.uvarint()
	in.Perm = uint16(d.upTo(math.MaxUint16))
	in.Uid = uint32(d.upTo(math.MaxUint32))
	in.Gid = uint32(d.upTo(math.MaxUint32))
	in.Nlink = uint32(d.upTo(math.MaxUint32))
	in.Parent = Ino(d.uvarint())
	in.Cookie = d.uvarint()
	in.Mtime = d.time()
	in.Unsealed = parts&hasUnsealed != 0
	if parts&hasBase != 0 {
		in.Base = d.cid()
	}
	if parts&hasSize != 0 {
		in.Size = d.varint()
	}
	if parts&hasNext != 0 {
		in.Next = d.uvarint()
	}
	if parts&hasTarget != 0 {
		in.Target = string(d.text())
	}
	if parts&hasLinkID != 0 {
		copy(in.LinkID[:], d.bytes(len(in.LinkID)))
	}
	if parts&hasRdev != 0 {
		in.Rdev = uint32(d.upTo(math.MaxUint32))
	}
	if parts&hasTsize != 0 {
		in.Tsize = d.uvarint()
	}
	in.BaseSize = in.Size
	if parts&hasBaseSize != 0 {
		in.BaseSize = d.varint()
	}
	if parts&hasVisible != 0 {
		in.Visible = d.ranges()
	}
	in.Atime, in.Ctime, in.Btime = in.Mtime, in.Mtime, in.Mtime
	if parts&hasAtime != 0 {
		in.Atime = d.time()
	}
	if parts&hasCtime != 0 {
		in.Ctime = d.time()
	}
	if parts&hasBtime != 0 {
		in.Btime = d.time()
	}
	if parts&hasBaseData != 0 {
		in.BaseData = d.varint()
	}
	if parts&hasAlloc != 0 {
		in.Alloc = d.varint()
	}
	if parts&hasXattrs != 0 {
		in.Xattrs = uint32(d.upTo(math.MaxUint32))
	}
	if parts&hasRecord != 0 {
		in.Record = d.cid()
	}
	in.Lazy = parts&hasLazy != 0
	if parts > hasAll || in.Kind < File || in.Kind > BlockDev {
		d.bad = true
	}
	return in, d.end()
}

// appendEntry encodes the value of a directory entry under its name (number is
// the cookie) and starts the one under its cookie.
func appendEntry(b []byte, ino Ino, kind Kind) []byte {
	return append(binary.AppendUvarint(b, uint64(ino)), byte(kind))
}

func decodeDirent(name string, b []byte) (Dirent, error) {
	d := decoder{b: b}
	e := Dirent{Name: name, Ino: Ino(d.uvarint()), Kind: Kind(d.byte()), Cookie: d.uvarint()}
	return e, d.end()
}

func decodeCookie(cookie uint64, b []byte) (Dirent, error) {
	d := decoder{b: b}
	e := Dirent{Ino: Ino(d.uvarint()), Kind: Kind(d.byte()), Cookie: cookie}
	e.Name = string(d.bytes(len(d.b)))
	if e.Name == "" {
		d.bad = true
	}
	return e, d.end()
}

// appendExtent encodes all of an extent but its offset, which is in the key.
func appendExtent(b []byte, e *Extent) []byte {
	b = append(b, byte(e.Kind))
	if e.Kind == Inline {
		return append(b, e.Data...)
	}
	b = binary.AppendUvarint(b, uint64(e.Len))
	switch e.Kind {
	case Staged:
		b = binary.AppendUvarint(b, e.Seg)
		b = binary.AppendUvarint(b, uint64(e.Pos))
		b = binary.LittleEndian.AppendUint32(b, e.CRC)
		b = binary.AppendUvarint(b, uint64(e.Skip))
	case Block:
		b = appendCid(b, e.Block)
		b = binary.AppendUvarint(b, uint64(e.Skip))
	}
	return b
}

func decodeExtent(off int64, b []byte) (Extent, error) {
	d := decoder{b: b}
	e := Extent{Off: off, Kind: ExtentKind(d.byte())}
	if e.Kind == Inline {
		e.Data = append([]byte(nil), d.bytes(len(d.b))...)
		e.Len = int64(len(e.Data))
	} else {
		e.Len = int64(d.upTo(math.MaxInt64))
	}
	switch e.Kind {
	case Inline, Hole:
	case Staged:
		e.Seg = d.uvarint()
		e.Pos = int64(d.upTo(math.MaxInt64))
		e.CRC = binary.LittleEndian.Uint32(d.bytes4())
		e.Skip = int64(d.upTo(math.MaxInt64))
	case Block:
		e.Block = d.cid()
		e.Skip = int64(d.upTo(math.MaxInt64))
	default:
		d.bad = true
	}
	if off < 0 || e.Len <= 0 || e.Len > math.MaxInt64-off {
		d.bad = true
	}
	return e, d.end()
}

func appendPages(b []byte, sums []uint32) []byte {
	for _, s := range sums {
		b = binary.LittleEndian.AppendUint32(b, s)
	}
	return b
}

func decodePages(b []byte) ([]uint32, error) {
	if len(b)%4 != 0 {
		return nil, ErrCorrupt
	}
	sums := make([]uint32, len(b)/4)
	for i := range sums {
		sums[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return sums, nil
}

func decodeNumber(b []byte) (uint64, error) {
	d := decoder{b: b}
	n := d.uvarint()
	return n, d.end()
}

func decodeSigned(b []byte) (int64, error) {
	d := decoder{b: b}
	n := d.varint()
	return n, d.end()
}

func appendTime(b []byte, t Timespec) []byte {
	return binary.AppendUvarint(binary.AppendVarint(b, t.Sec), uint64(t.Nsec))
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendCid(b []byte, c cid.Cid) []byte { return appendText(b, c.KeyString()) }

// appendRanges encodes ascending, disjoint ranges as gaps and lengths.
func appendRanges(b []byte, ranges []Range) []byte {
	b = binary.AppendUvarint(b, uint64(len(ranges)))
	end := int64(0)
	for _, r := range ranges {
		b = binary.AppendUvarint(b, uint64(r.Off-end))
		b = binary.AppendUvarint(b, uint64(r.Len))
		end = r.Off + r.Len
	}
	return b
}
