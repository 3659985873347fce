package gc

import (
	"encoding/binary"
	"errors"

	"github.com/ipfs/go-cid"
)

var errCBOR = errors.New("malformed dag-cbor")

// cborLinks visits the links of a dag-cbor block without decoding anything else
// of it: most blocks that a collection reads are maps of entries.
func cborLinks(b []byte, visit func(cid.Cid)) error {
	for items := uint64(1); items > 0; {
		items--
		if len(b) == 0 {
			return errCBOR
		}
		major, n, rest, err := cborHead(b)
		if err != nil {
			return err
		}
		b = rest
		switch major {
		case 0, 1, 7: // numbers, simple values and floats: nothing follows
		case 2, 3:
			if n > uint64(len(b)) {
				return errCBOR
			}
			b = b[n:]
		case 4, 5:
			if n > uint64(len(b)) { // an item takes a byte at least
				return errCBOR
			}
			items += n << (major - 4)
		case 6:
			if n != 42 {
				return errCBOR
			}
			major, n, rest, err := cborHead(b)
			if err != nil || major != 2 || n < 2 || n > uint64(len(rest)) || rest[0] != 0 {
				return errCBOR
			}
			c, err := cid.Cast(rest[1:n])
			if err != nil {
				return err
			}
			visit(c)
			b = rest[n:]
		}
	}
	if len(b) > 0 {
		return errCBOR
	}
	return nil
}

// cborHead takes the head of an item off b: its major type and number.
func cborHead(b []byte) (major byte, n uint64, rest []byte, err error) {
	if len(b) == 0 {
		return 0, 0, nil, errCBOR
	}
	major, low := b[0]>>5, b[0]&0x1f
	b = b[1:]
	if low < 24 {
		return major, uint64(low), b, nil
	}
	size := 1 << (low - 24)
	if low > 27 || len(b) < size {
		return 0, 0, nil, errCBOR // indefinite lengths are not dag-cbor
	}
	switch size {
	case 1:
		n = uint64(b[0])
	case 2:
		n = uint64(binary.BigEndian.Uint16(b))
	case 4:
		n = uint64(binary.BigEndian.Uint32(b))
	case 8:
		n = binary.BigEndian.Uint64(b)
	}
	return major, n, b[size:], nil
}
