// Package cidset is a compact set of CIDs, for walks over millions of blocks.
package cidset

import (
	"sync"

	"github.com/ipfs/go-cid"
)

// Set is a set of CIDs that takes about 40 bytes for each: it keeps the end
// of the digest, 128 bits that nobody can make equal without breaking half the
// hash, and the codec. Its methods may be called concurrently. The zero Set is
// empty.
type Set struct {
	mu   sync.Mutex // guards keys
	keys map[key]struct{}
}

type key [18]byte

func keyOf(c cid.Cid) (k key) {
	h := c.Hash()
	copy(k[:16], h[len(h)-min(16, len(h)):])
	codec := c.Prefix().Codec
	k[16], k[17] = byte(codec), byte(codec>>8)
	return k
}

// Add adds c and tells whether it is new.
func (s *Set) Add(c cid.Cid) bool {
	k := keyOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.keys[k]; ok {
		return false
	}
	if s.keys == nil {
		s.keys = make(map[key]struct{})
	}
	s.keys[k] = struct{}{}
	return true
}

// Has tells whether c is in the set.
func (s *Set) Has(c cid.Cid) bool {
	k := keyOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.keys[k]
	return ok
}
