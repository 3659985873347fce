package gc

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	mh "github.com/multiformats/go-multihash"
)

func hash(i int) mh.Multihash {
	s := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(i)))
	h, err := mh.Encode(s[:], mh.SHA2_256)
	if err != nil {
		panic(err)
	}
	return h
}

// TestSet holds 300 000 multihashes in less than 16 bytes each, at every size.
func TestSet(t *testing.T) {
	const n = 300_000
	s := new(Set)
	for i := range n {
		if !s.Add(hash(i), Class(i%3)) {
			t.Fatalf("%d was there", i)
		}
		if i >= 50_000 && i%10_000 == 0 && s.Bytes() >= int64(i)*16 {
			t.Fatalf("%d bytes for %d", s.Bytes(), i)
		}
	}
	for i := range n {
		if c, ok := s.Class(hash(i)); !ok || c != Class(i%3) {
			t.Fatalf("%d is %v, %v", i, c, ok)
		}
		if s.Add(hash(i), Pinned) {
			t.Fatalf("%d is new", i)
		}
		if _, ok := s.Class(hash(n + i)); ok {
			t.Fatalf("%d was never added", n+i)
		}
	}
	if s.Len() != n {
		t.Errorf("%d in the set", s.Len())
	}
}
