package gc

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"slices"
	"testing"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/codec/dagcbor"
	"github.com/ipld/go-ipld-prime/node/basicnode"
	mh "github.com/multiformats/go-multihash"
)

var keysFlag = flag.Int("keys", 300_000, "multihashes in the set")

func hash(i int) mh.Multihash {
	s := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(i)))
	h, err := mh.Encode(s[:], mh.SHA2_256)
	if err != nil {
		panic(err)
	}
	return h
}

// TestSet holds many multihashes in less than 16 bytes each, at every size:
// with -keys 10000000 as many as a repository of 10 TiB has.
func TestSet(t *testing.T) {
	n := *keysFlag
	s := new(Set)
	for i := range n {
		if !s.Add(hash(i), Class(i%3)) {
			t.Fatalf("%d was there", i)
		}
		if i >= 50_000 && i%(n/30) == 0 && s.Bytes() >= int64(i)*16 {
			t.Fatalf("%d bytes for %d", s.Bytes(), i)
		}
	}
	t.Logf("%.2f bytes for each of %d", float64(s.Bytes())/float64(n), n)
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
	if s.Len() != int64(n) {
		t.Errorf("%d in the set", s.Len())
	}
	// While the last table grows it is there twice: what a collection takes at
	// most is the set and a shard's table.
	if peak := s.Bytes() + s.Bytes()/setShards*2; peak >= int64(n)*17 {
		t.Errorf("%d bytes at most", peak)
	}
}

// FuzzCBOR compares the links found in dag-cbor with those that decoding finds.
func FuzzCBOR(f *testing.F) {
	for _, s := range []string{"\xa0", "\x82\x01\xf5", "\xa1aa\xfb\x3f\xf8\x00\x00\x00\x00\x00\x00",
		"\x81\xd8\x2a\x58\x25\x00\x01\x55\x12\x20aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var want, got []cid.Cid
		if err := decoded(dagcbor.Decode, basicnode.Prototype.Any, b, func(c cid.Cid, _ Depth) { want = append(want, c) }); err != nil {
			_ = cborLinks(b, func(cid.Cid) {})
			return
		}
		err := cborLinks(b, func(c cid.Cid) { got = append(got, c) })
		if err == nil && !slices.Equal(got, want) {
			t.Errorf("%x: %v, %v; want %v", b, got, err, want)
		}
	})
}
