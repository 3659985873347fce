package unixfs

import (
	"encoding/binary"
	"time"
)

// Stat is the metadata a UnixFS node may carry. Zero fields are absent. cafs
// keeps modes and times out of its content DAGs, so that chmod changes no CID;
// others put them in.
type Stat struct {
	Mode  uint32    // permission bits 07777; the 20 bits above are reserved and kept
	Mtime time.Time // any instant but the zero time
}

func (s Stat) isZero() bool { return s.Mode == 0 && s.Mtime.IsZero() }

// mtime parses the timestamp message: seconds since 1970 and, as a fixed32,
// nanoseconds, which must be below one second.
func (m *message) mtime(b []byte) error {
	w := wire{b}
	var sec int64
	var nsec uint32
	var seen uint64
	for len(w.b) > 0 {
		field, kind, err := w.tag()
		if err != nil {
			return err
		}
		if field <= 2 {
			if seen>>field&1 != 0 {
				return malformed("mtime field %d twice", field)
			}
			seen |= 1 << field
		}
		switch {
		case field == 1 && kind == 0:
			var v uint64
			v, err = w.varint()
			sec = int64(v)
		case field == 2 && kind == 5:
			var v []byte
			if v, err = w.take(4); err == nil {
				nsec = binary.LittleEndian.Uint32(v)
			}
		case field <= 2:
			err = malformed("mtime field %d of wire type %d", field, kind)
		default:
			err = w.skip(kind)
		}
		if err != nil {
			return err
		}
	}
	if seen&(1<<1) == 0 || nsec > 999_999_999 {
		return malformed("mtime")
	}
	m.stat.Mtime = time.Unix(sec, int64(nsec)).UTC()
	return nil
}
