package unixfs

import "math/bits"

// A HAMT node has fanout slots. Which are taken is told by a bitfield, stored
// as a big-endian number without leading zero bytes (some writers keep them),
// and again by the first digits of each link's name.

const minFanout, maxFanout = 8, 1024 // the specification's limits

const hexDigits = "0123456789ABCDEF"

// slotWidth is the number of hexadecimal digits of the last slot.
func slotWidth(fanout int) int { return (bits.Len(uint(fanout-1)) + 3) / 4 }

func appendSlot(b []byte, slot, width int) []byte {
	for i := width - 1; i >= 0; i-- {
		b = append(b, hexDigits[slot>>(4*i)&15])
	}
	return b
}

// slotBits are the bits of the hash that one level of the tree consumes, from
// the most significant on.
func slotBits(fanout int) int { return bits.TrailingZeros(uint(fanout)) }

// maxLevels is how many levels the hash can tell names apart on.
func maxLevels(fanout int) int { return 64 / slotBits(fanout) }

// samePath tells whether two hashes lead to the same slots on every level.
func samePath(a, b uint64, fanout int) bool {
	unused := 64 - maxLevels(fanout)*slotBits(fanout)
	return a>>unused == b>>unused
}

// slotAt is the slot of a hash at a level, the root being level 0.
func slotAt(hash uint64, level, fanout int) int {
	n := slotBits(fanout)
	return int(hash >> (64 - (level+1)*n) & uint64(fanout-1))
}

// slots checks links, in order, against a bitfield.
type slots struct {
	bitfield []byte
	width    int
	left     int // slots not yet seen
	next     int // first slot that may come
	prefix   [4]byte
}

func newSlots(bitfield []byte, fanout int) (*slots, error) {
	if len(bitfield) > fanout/8 {
		return nil, malformed("HAMT bitfield of %d bytes for fan-out %d", len(bitfield), fanout)
	}
	s := &slots{bitfield: bitfield, width: slotWidth(fanout)}
	for _, b := range bitfield {
		s.left += bits.OnesCount8(b)
	}
	return s, nil
}

func (s *slots) bit(slot int) bool {
	i := len(s.bitfield) - 1 - slot/8
	return i >= 0 && s.bitfield[i]>>(slot%8)&1 != 0
}

// check takes the next link's name, which must begin with the next taken slot.
func (s *slots) check(name string) error {
	_, err := s.take([]byte(name))
	return err
}

func (s *slots) take(name []byte) (slot int, err error) {
	if s.left == 0 {
		return 0, malformed("HAMT with more links than bits")
	}
	for !s.bit(s.next) {
		s.next++
	}
	slot = s.next
	s.next++
	s.left--
	if want := appendSlot(s.prefix[:0], slot, s.width); len(name) < s.width || string(name[:s.width]) != string(want) {
		return 0, malformed("HAMT link %q in slot %s", name, want)
	}
	return slot, nil
}

func (s *slots) end() error {
	if s.left != 0 {
		return malformed("HAMT with %d more bits than links", s.left)
	}
	return nil
}
