package unixfs

import (
	"encoding/binary"
	"math/bits"
)

// nameHash is murmur3-x64-64, the first half of Austin Appleby's MurmurHash3
// for x64 with 128 bits and seed 0: the hash that places a name in a HAMT. It has
// no secret, so that whoever chooses names can make them collide.
func nameHash[S string | []byte](name S) uint64 {
	const c1, c2 = 0x87c37b91114253d5, 0x4cf5ad432745937f
	var h1, h2 uint64
	var block [16]byte
	rest := name
	for len(rest) >= 16 {
		copy(block[:], rest[:16])
		rest = rest[16:]
		h1 ^= bits.RotateLeft64(binary.LittleEndian.Uint64(block[:])*c1, 31) * c2
		h1 = (bits.RotateLeft64(h1, 27)+h2)*5 + 0x52dce729
		h2 ^= bits.RotateLeft64(binary.LittleEndian.Uint64(block[8:])*c2, 33) * c1
		h2 = (bits.RotateLeft64(h2, 31)+h1)*5 + 0x38495ab5
	}
	block = [16]byte{}
	copy(block[:], rest) // zeros behind the tail mix in nothing
	h2 ^= bits.RotateLeft64(binary.LittleEndian.Uint64(block[8:])*c2, 33) * c1
	h1 ^= bits.RotateLeft64(binary.LittleEndian.Uint64(block[:])*c1, 31) * c2

	h1 ^= uint64(len(name))
	h2 ^= uint64(len(name))
	h1 += h2
	h2 += h1
	return avalanche(h1) + avalanche(h2)
}

func avalanche(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
