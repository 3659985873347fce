package unixfs

import (
	"encoding/binary"
	"fmt"

	"github.com/ipfs/go-cid"
)

// wire reads protobuf fields off the front of b. Varints need not be minimal
// (protobuf allows it) but must fit in 64 bits.
type wire struct{ b []byte }

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

func (w *wire) varint() (uint64, error) {
	if len(w.b) > 0 && w.b[0] < 0x80 { // most are one byte
		v := w.b[0]
		w.b = w.b[1:]
		return uint64(v), nil
	}
	return w.longVarint()
}

func (w *wire) longVarint() (uint64, error) {
	v, n := binary.Uvarint(w.b)
	if n <= 0 {
		return 0, malformed("varint")
	}
	w.b = w.b[n:]
	return v, nil
}

// tag returns a field's number and wire type.
func (w *wire) tag() (field uint64, kind byte, err error) {
	v, err := w.varint()
	if err == nil && v>>3 == 0 {
		err = malformed("field number 0")
	}
	return v >> 3, byte(v & 7), err
}

func (w *wire) bytes() ([]byte, error) {
	n, err := w.varint()
	if err != nil {
		return nil, err
	}
	return w.take(n)
}

func (w *wire) take(n uint64) ([]byte, error) {
	if n > uint64(len(w.b)) {
		return nil, malformed("field of %d bytes, %d left", n, len(w.b))
	}
	v := w.b[:n:n]
	w.b = w.b[n:]
	return v, nil
}

// skip passes over the value of an unknown field.
func (w *wire) skip(kind byte) (err error) {
	switch kind {
	case 0:
		_, err = w.varint()
	case 1:
		_, err = w.take(8)
	case 2:
		_, err = w.bytes()
	case 5:
		_, err = w.take(4)
	default:
		err = malformed("wire type %d", kind)
	}
	return err
}

// rawLink is a link as it stands in a block, which its slices alias.
type rawLink struct {
	all   []byte // the whole field: tag, length, body
	cid   []byte
	name  []byte
	tsize uint64
}

func (l rawLink) decode() (Link, error) {
	c, err := cid.Cast(l.cid)
	if err != nil {
		return Link{}, malformed("link: %v", err)
	}
	return Link{Name: string(l.name), Cid: c, Tsize: l.tsize}, nil
}

// validCid tells whether b is a binary CID and nothing more; the common forms
// without parsing.
func validCid(b []byte) bool {
	const v0, v1Raw, v1DagPB = "\x12\x20", "\x01\x55\x12\x20", "\x01\x70\x12\x20"
	switch {
	case len(b) == 36 && (string(b[:4]) == v1Raw || string(b[:4]) == v1DagPB), len(b) == 34 && string(b[:2]) == v0:
		return true
	}
	_, err := cid.Cast(b)
	return err == nil
}

// scanNode parses a dag-pb block, calling link for each link in order, and
// returns the data field. The rules are those of the dag-pb specification: no
// unknown field, nothing twice, all links together, before or after the data.
func scanNode(block []byte, link func(rawLink) error) (data []byte, err error) {
	if len(block) > MaxBlock {
		return nil, malformed("block of %d bytes", len(block))
	}
	return scanFields(block, link)
}

// scanFields is scanNode for any length.
func scanFields(block []byte, link func(rawLink) error) (data []byte, err error) {
	w := wire{block}
	var hasData, hasLinks, linksEnded bool
	for len(w.b) > 0 {
		if l, ok := quickLink(w.b); ok && !linksEnded {
			w.b = w.b[len(l.all):]
			hasLinks = true
			if err := link(l); err != nil {
				return nil, err
			}
			continue
		}
		start := w.b
		field, kind, err := w.tag()
		if err != nil {
			return nil, err
		}
		if kind != 2 || field > 2 {
			return nil, malformed("dag-pb field %d of wire type %d", field, kind)
		}
		v, err := w.bytes()
		if err != nil {
			return nil, err
		}
		if field == 1 {
			if hasData {
				return nil, malformed("data twice")
			}
			data, hasData, linksEnded = v, true, hasLinks
			continue
		}
		if linksEnded {
			return nil, malformed("links on both sides of the data")
		}
		hasLinks = true
		l, err := scanLink(v)
		if err != nil {
			return nil, err
		}
		l.all = start[:len(start)-len(w.b)]
		if err := link(l); err != nil {
			return nil, err
		}
	}
	return data, nil
}

// quickLink parses a link of the usual form, all fields there and none longer
// than 127 bytes, off the front of b. Large nodes are nothing but these.
func quickLink(b []byte) (l rawLink, ok bool) {
	if len(b) < 4 || b[0] != tagNodeLinks || b[1] > 127 || len(b) < 2+int(b[1]) {
		return l, false
	}
	b = b[:2+int(b[1])]
	if len(b) < 4 || b[2] != tagLinkHash || len(b) < 4+int(b[3])+2 || b[3] > 127 {
		return l, false
	}
	name := 4 + int(b[3])
	if b[name] != tagLinkName || b[name+1] > 127 || len(b) < name+2+int(b[name+1])+2 {
		return l, false
	}
	size := name + 2 + int(b[name+1])
	tsize, n := binary.Uvarint(b[size+1:])
	if b[size] != tagLinkTsize || n <= 0 || size+1+n != len(b) {
		return l, false
	}
	return rawLink{all: b, cid: b[4:name:name], name: b[name+2 : size : size], tsize: tsize}, true
}

// parseLink parses an encoded link that was parsed before.
func parseLink(all []byte) (l rawLink, err error) {
	_, err = scanFields(all, func(only rawLink) error { l = only; return nil })
	return l, err
}

// scanLink parses one PBLink: hash, name and size in this order, of which only
// the hash must be there.
func scanLink(b []byte) (l rawLink, err error) {
	w := wire{b}
	last := uint64(0)
	for len(w.b) > 0 {
		field, kind, err := w.tag()
		if err != nil {
			return l, err
		}
		if field <= last {
			return l, malformed("link field %d after field %d", field, last)
		}
		last = field
		switch {
		case field == 1 && kind == 2:
			l.cid, err = w.bytes()
		case field == 2 && kind == 2:
			l.name, err = w.bytes()
		case field == 3 && kind == 0:
			l.tsize, err = w.varint()
		default:
			err = malformed("link field %d of wire type %d", field, kind)
		}
		if err != nil {
			return l, err
		}
	}
	if l.cid == nil {
		return l, malformed("link without a CID")
	}
	return l, nil
}
