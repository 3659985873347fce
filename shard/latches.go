package shard

import (
	"hash/maphash"
	"sync"
)

// stripes is a power of two, well above the number of goroutines that run at once.
const stripes = 256

// Latches are striped read-write locks: equal keys share a lock, and so do some
// different ones. Whoever holds one must not take another of the same Latches,
// or two goroutines may wait for each other. The zero value is ready.
type Latches struct {
	locks [stripes]struct {
		sync.RWMutex
		_ [64 - 24]byte // one cache line each
	}
}

var seed = maphash.MakeSeed()

// Of is the lock of a key.
func (l *Latches) Of(key string) *sync.RWMutex {
	return &l.locks[maphash.String(seed, key)%stripes].RWMutex
}

// OfUint64 is the lock of a number. Neighbouring numbers get different locks.
func (l *Latches) OfUint64(n uint64) *sync.RWMutex {
	return &l.locks[n%stripes].RWMutex
}
