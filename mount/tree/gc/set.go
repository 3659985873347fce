package gc

import (
	"encoding/binary"
	"math/bits"
	"sync"

	mh "github.com/multiformats/go-multihash"
)

// Class says for whom a block is kept: the first that reached it.
type Class uint8

// The classes, in the order in which they are marked.
const (
	Tree    Class = iota // the working tree
	Pinned               // pins
	History              // kept commits only
)

// Reach says what is marked of what a block leads to.
type Reach uint8

// The bits of a Reach.
const (
	own Reach = 1 << iota // what belongs to the same directory or map
	all                   // everything
)

const (
	setShards = 256
	slotLen   = 11        // bytes; with the number of the shard 96 bits, four of them for class and reach
	keyBits   = 1<<20 - 1 // of setKey.hi
	maxFull   = 7         // eighths of a table that are filled at most
	minTable  = 16        // slots
)

// Set is a set of multihashes by 92 of the last bits of their digests: two blocks
// of ten million look the same with a probability of 1e-14. It takes less than
// 16 bytes for each. Methods may be called concurrently.
type Set struct {
	shards [setShards]setShard
}

type setShard struct {
	mu    sync.Mutex
	table []byte // slots of slotLen bytes; a slot of zeros is free
	n     int
}

type setKey struct {
	shard byte
	lo    uint64
	hi    uint32 // 24 bits, the highest two for the class and the next for the reach
}

// keyOf spreads the end of the digest. The all-zero key is moved, since it
// stands for a free slot.
func keyOf(h mh.Multihash) setKey {
	var b [12]byte
	copy(b[:], h[max(0, len(h)-12):])
	k := setKey{shard: b[0], lo: binary.LittleEndian.Uint64(b[1:]), hi: uint32(b[9]) | uint32(b[10])<<8 | uint32(b[11]&0x0f)<<16}
	if k.lo == 0 {
		k.lo = 1
	}
	return k
}

// Add enters h with a class, and tells whether it was new.
func (s *Set) Add(h mh.Multihash, c Class) bool {
	fresh, _ := s.mark(h, c, 0)
	return fresh
}

// mark is Add, and notes a reach too: more tells whether that was not known,
// from a greater one either.
func (s *Set) mark(h mh.Multihash, c Class, r Reach) (fresh, more bool) {
	k := keyOf(h)
	sh := &s.shards[k.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.n*8 >= sh.slots()*maxFull {
		sh.grow()
	}
	i, found := sh.find(k.lo, k.hi)
	if !found {
		sh.put(i, k.lo, k.hi|uint32(c)<<22|uint32(r)<<20)
		sh.n++
		return true, r != 0
	}
	lo, hi := sh.get(i)
	if known := Reach(hi>>20) & (own | all); known >= r {
		return false, false
	}
	sh.put(i, lo, hi|uint32(r)<<20)
	return false, true
}

// Class tells for whom h is kept; ok is false when it is not in the set.
func (s *Set) Class(h mh.Multihash) (c Class, ok bool) {
	bits, ok := s.look(h)
	return Class(bits >> 2), ok
}

// reached tells what is marked of what h leads to.
func (s *Set) reached(h mh.Multihash) Reach {
	bits, _ := s.look(h)
	return Reach(bits) & (own | all)
}

// look returns class and reach.
func (s *Set) look(h mh.Multihash) (bits uint8, ok bool) {
	k := keyOf(h)
	sh := &s.shards[k.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.n == 0 {
		return 0, false
	}
	i, found := sh.find(k.lo, k.hi)
	if !found {
		return 0, false
	}
	_, hi := sh.get(i)
	return uint8(hi >> 20), true
}

// Len is the number of multihashes in the set.
func (s *Set) Len() (n int64) {
	for i := range s.shards {
		s.shards[i].mu.Lock()
		n += int64(s.shards[i].n)
		s.shards[i].mu.Unlock()
	}
	return n
}

// Bytes is the memory the set takes.
func (s *Set) Bytes() (n int64) {
	for i := range s.shards {
		s.shards[i].mu.Lock()
		n += int64(cap(s.shards[i].table))
		s.shards[i].mu.Unlock()
	}
	return n
}

func (sh *setShard) slots() int { return len(sh.table) / slotLen }

func (sh *setShard) get(i int) (lo uint64, hi uint32) {
	b := sh.table[i*slotLen:]
	return binary.LittleEndian.Uint64(b), uint32(b[8]) | uint32(b[9])<<8 | uint32(b[10])<<16
}

func (sh *setShard) put(i int, lo uint64, hi uint32) {
	b := sh.table[i*slotLen:]
	binary.LittleEndian.PutUint64(b, lo)
	b[8], b[9], b[10] = byte(hi), byte(hi>>8), byte(hi>>16)
}

// find returns the slot of a key, or the free one where it belongs.
func (sh *setShard) find(lo uint64, hi uint32) (i int, found bool) {
	n := sh.slots()
	top, _ := bits.Mul64(lo, uint64(n))
	for i = int(top); ; {
		l, h := sh.get(i)
		if l == 0 {
			return i, false
		}
		if l == lo && h&keyBits == hi {
			return i, true
		}
		if i++; i == n {
			i = 0
		}
	}
}

// grow makes room for a quarter more.
func (sh *setShard) grow() {
	old := setShard{table: sh.table}
	n := max(minTable, old.slots()*5/4)
	sh.table = make([]byte, n*slotLen)
	for i := range old.slots() {
		if lo, hi := old.get(i); lo != 0 {
			j, _ := sh.find(lo, hi&keyBits)
			sh.put(j, lo, hi)
		}
	}
}
