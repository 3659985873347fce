package unixfs

import (
	"bytes"
	"crypto/sha256"
	"math/bits"
	"slices"
)

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

// hashLevels is how many levels the hash can tell names apart on.
func hashLevels(fanout int) int { return 64 / slotBits(fanout) }

// maxLevels is how many levels there can be: names of one hash are told apart
// by their sha2-256.
func maxLevels(fanout int) int { return hashLevels(fanout) + 8*sha256.Size/slotBits(fanout) }

// slotAt is the slot of a name with the given hash at a level, the root being
// level 0.
func slotAt[S string | []byte](hash uint64, name S, level, fanout int) int {
	n := slotBits(fanout)
	if level < hashLevels(fanout) {
		return int(hash >> (64 - (level+1)*n) & uint64(fanout-1))
	}
	sum := sha256.Sum256([]byte(name))
	slot, from := 0, (level-hashLevels(fanout))*n
	for i := from; i < from+n; i++ {
		slot = slot<<1 | int(sum[i/8]>>(7-i%8)&1)
	}
	return slot
}

// inOrder puts what is sorted by hash in the order of the slots it has at a
// level, which differs where the hash is used up.
func inOrder[T any](all []T, name func(T) string, level, fanout int) {
	if level != hashLevels(fanout) || len(all) < 2 {
		return
	}
	slices.SortFunc(all, func(a, b T) int {
		x, y := sha256.Sum256([]byte(name(a))), sha256.Sum256([]byte(name(b)))
		return bytes.Compare(x[:], y[:])
	})
}

// Slot returns which slot leads to a name from a HAMT node of the given fan-out, a
// power of two, at a level, the root's being 0; false where no node can be.
func Slot(name string, level, fanout int) (int, bool) {
	if level >= maxLevels(fanout) {
		return 0, false
	}
	return slotAt(nameHash(name), name, level, fanout), true
}

// SlotDigits is Slot as the name of the link begins.
func SlotDigits(name string, level, fanout int) (string, bool) {
	slot, ok := Slot(name, level, fanout)
	if !ok {
		return "", false
	}
	var b [4]byte
	return string(appendSlot(b[:0], slot, slotWidth(fanout))), true
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
