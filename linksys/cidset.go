package linksys

import (
	"sync"

	"github.com/ipfs/go-cid"
)

// cidSet is a set of CIDs that takes about 40 bytes for each: it keeps the end
// of the digest, 128 bits that nobody can make equal without breaking half the
// hash, and the codec.
type cidSet struct {
	mu   sync.Mutex // guards keys
	keys map[cidKey]struct{}
}

type cidKey [18]byte

func keyOf(c cid.Cid) (k cidKey) {
	h := c.Hash()
	copy(k[:16], h[len(h)-min(16, len(h)):])
	codec := c.Prefix().Codec
	k[16], k[17] = byte(codec), byte(codec>>8)
	return k
}

// add tells whether c is new.
func (s *cidSet) add(c cid.Cid) bool {
	k := keyOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.keys[k]; ok {
		return false
	}
	if s.keys == nil {
		s.keys = make(map[cidKey]struct{})
	}
	s.keys[k] = struct{}{}
	return true
}

func (s *cidSet) has(c cid.Cid) bool {
	k := keyOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.keys[k]
	return ok
}
