package unixfs

import "encoding/binary"

// message is UnixFS's Data, decoded but not judged. data aliases the block.
type message struct {
	typ        Type
	data       []byte
	hasSize    bool
	size       uint64
	blockSizes []byte // encoded varints with their tags, or packed
	packed     bool
	hashType   uint64
	fanout     uint64
	stat       Stat
}

// scanMessage parses UnixFS's Data message. Unknown fields are skipped, for the
// format may grow; a known field twice is refused, because decoders differ in
// which one they take.
func scanMessage(b []byte) (m message, err error) {
	w := wire{b}
	var seen uint64
	for len(w.b) > 0 {
		start := w.b
		field, kind, err := w.tag()
		if err != nil {
			return m, err
		}
		if field < 64 && field != 4 {
			if seen>>field&1 != 0 && field <= 8 {
				return m, malformed("UnixFS field %d twice", field)
			}
			seen |= 1 << field
		}
		want := byte(0) // the wire type
		if field == 2 || field == 8 {
			want = 2
		}
		switch {
		case field > 8:
			err = w.skip(kind)
		case field == 4 && kind == 2 && m.blockSizes == nil:
			m.blockSizes, err = w.bytes()
			m.packed = true
		case kind != want:
			err = malformed("UnixFS field %d of wire type %d", field, kind)
		default:
			err = m.field(&w, field, start)
		}
		if err != nil {
			return m, err
		}
	}
	if seen&(1<<1) == 0 {
		return m, malformed("UnixFS node without a type")
	}
	return m, nil
}

// field reads the value of a known field. start is where its tag began.
func (m *message) field(w *wire, field uint64, start []byte) error {
	if field == 2 || field == 8 {
		v, err := w.bytes()
		if err != nil || field == 2 {
			m.data = v
			return err
		}
		return m.mtime(v)
	}
	v, err := w.varint()
	if err != nil {
		return err
	}
	switch field {
	case 1:
		if v > uint64(HAMT) {
			return malformed("UnixFS type %d", v)
		}
		m.typ = Type(v)
	case 3:
		m.size, m.hasSize = v, true
	case 4:
		for len(w.b) > 0 && w.b[0] == tagBlockSize { // those that follow at once
			_, n := binary.Uvarint(w.b[1:])
			if n <= 0 {
				return malformed("varint")
			}
			w.b = w.b[1+n:]
		}
		return m.blockSize(start, len(start)-len(w.b))
	case 5:
		m.hashType = v
	case 6:
		m.fanout = v
	case 7:
		m.stat.Mode = uint32(v)
	}
	return nil
}

// blockSize extends the run of encoded block sizes, which must stand together,
// so that they need no slice of their own.
func (m *message) blockSize(start []byte, n int) error {
	if m.packed {
		return malformed("block sizes packed and unpacked")
	}
	if m.blockSizes == nil {
		m.blockSizes = start[:n]
		return nil
	}
	if old := len(m.blockSizes); cap(m.blockSizes)-old == cap(start) {
		m.blockSizes = m.blockSizes[:old+n]
		return nil
	}
	return malformed("block sizes in several places")
}

// nextBlockSize takes the next block size off the front.
func (m *message) nextBlockSize() (uint64, error) {
	w := wire{m.blockSizes}
	if !m.packed {
		if _, err := w.varint(); err != nil {
			return 0, err
		}
	}
	v, err := w.varint()
	m.blockSizes = w.b
	return v, err
}
