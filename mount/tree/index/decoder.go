package index

import (
	"encoding/binary"
	"math"

	"github.com/ipfs/go-cid"
)

// decoder takes values off the front of b. After a value that is not there, or
// is out of bounds, it is bad and gives zeros. It allocates no more than a
// small multiple of len(b).
type decoder struct {
	b   []byte
	bad bool
}

// end tells whether all of b was taken and all of it was good.
func (d *decoder) end() error {
	if d.bad || len(d.b) != 0 {
		return ErrCorrupt
	}
	return nil
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) bytes4() []byte {
	if b := d.bytes(4); b != nil {
		return b
	}
	return make([]byte, 4)
}

// bytes takes n bytes, aliasing b; nil when there are fewer.
func (d *decoder) bytes(n int) []byte {
	if n < 0 || n > len(d.b) {
		d.bad = true
		return nil
	}
	taken := d.b[:n:n]
	d.b = d.b[n:]
	return taken
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) upTo(limit uint64) uint64 {
	v := d.uvarint()
	if v > limit {
		d.bad = true
		return 0
	}
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) text() []byte {
	return d.bytes(int(d.upTo(math.MaxInt32)))
}

func (d *decoder) time() Timespec {
	return Timespec{Sec: d.varint(), Nsec: uint32(d.upTo(math.MaxUint32))}
}

func (d *decoder) cid() cid.Cid {
	b := d.text()
	if d.bad {
		return cid.Undef
	}
	c, err := cid.Cast(b)
	if err != nil {
		d.bad = true
	}
	return c
}

func (d *decoder) ranges() []Range {
	n := d.upTo(uint64(len(d.b) / 2)) // a range takes two bytes at least
	if d.bad || n == 0 {
		d.bad = true // none would not have been encoded
		return nil
	}
	ranges := make([]Range, n)
	end := int64(0)
	for i := range ranges {
		gap := int64(d.upTo(uint64(math.MaxInt64 - end)))
		length := int64(d.upTo(uint64(math.MaxInt64 - end - gap)))
		if length == 0 {
			d.bad = true
		}
		ranges[i] = Range{Off: end + gap, Len: length}
		end += gap + length
	}
	return ranges
}

func appendUvarint(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }
func appendVarint(b []byte, v int64) []byte   { return binary.AppendVarint(b, v) }
func appendUint64(b []byte, v uint64) []byte  { return binary.BigEndian.AppendUint64(b, v) }
