package index

import (
	"hash/maphash"
	"sync/atomic"
)

// absent remembers names that were removed lately. To find that a key is not
// there the engine passes all its versions that are still in memory, which for
// a name that is made and removed again and again, as lock files and journals
// are, would take longer each time.
//
// A name is entered after the batch that removed it was applied, and leaves
// before one that sets it is: so what it says is true as long as changes of one
// name come one after the other, which is the callers' part of [Batch].
type absent struct {
	seed  maphash.Seed
	slots [1024]atomic.Pointer[string] // keys, each in the slot of its hash
}

func (a *absent) slot(key []byte) *atomic.Pointer[string] {
	return &a.slots[maphash.Bytes(a.seed, key)%uint64(len(a.slots))]
}

func (a *absent) has(key []byte) bool {
	k := a.slot(key).Load()
	return k != nil && *k == string(key)
}

func (a *absent) add(key string) { a.slot([]byte(key)).Store(&key) }

func (a *absent) drop(key []byte) {
	s := a.slot(key)
	if k := s.Load(); k != nil && *k == string(key) {
		s.CompareAndSwap(k, nil)
	}
}
