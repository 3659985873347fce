package linktest

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"strings"
)

// Colliding makes n names of one murmur3 hash: the second block of each leads
// the hash from wherever the first one led it to one and the same state.
func Colliding(rnd *rand.Rand, n int) (names []string) {
	const c1, c2, add1, add2 = 0x87c37b91114253d5, 0x4cf5ad432745937f, 0x52dce729, 0x38495ab5
	inverse := func(odd uint64) uint64 {
		x := odd
		for range 6 {
			x *= 2 - odd*x
		}
		return x
	}
	var end1, end2 uint64 = rnd.Uint64(), rnd.Uint64()
	for len(names) < n {
		name := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, rnd.Uint64()), rnd.Uint64())
		h1 := bits.RotateLeft64(binary.LittleEndian.Uint64(name)*c1, 31) * c2
		h1 = bits.RotateLeft64(h1, 27)*5 + add1
		h2 := bits.RotateLeft64(binary.LittleEndian.Uint64(name[8:])*c2, 33) * c1
		h2 = (bits.RotateLeft64(h2, 31)+h1)*5 + add2
		mixed := bits.RotateLeft64((end1-add1)*inverse(5)-h2, -27) ^ h1
		name = binary.LittleEndian.AppendUint64(name, bits.RotateLeft64(mixed*inverse(c2), -31)*inverse(c1))
		mixed = bits.RotateLeft64((end2-add2)*inverse(5)-end1, -31) ^ h2
		name = binary.LittleEndian.AppendUint64(name, bits.RotateLeft64(mixed*inverse(c1), -33)*inverse(c2))
		if !strings.ContainsAny(string(name), "/\x00") {
			names = append(names, string(name))
		}
	}
	return names
}
