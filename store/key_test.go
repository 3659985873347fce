package store

import (
	"encoding/base32"
	"testing"

	mh "github.com/multiformats/go-multihash"
)

// FuzzParseName: a name is taken if and only if it is how the store would write
// the multihash that it decodes to.
func FuzzParseName(f *testing.F) {
	for _, n := range []int{1, 2, 16, 20, 32} {
		h, err := mh.Sum([]byte("x"), mh.SHA2_256, n)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(blockName(string(h)))
	}
	f.Add("CIQ.data")
	f.Add(".data")
	f.Add("CIQKSSEQJ4XQ6R43R6AZO2KLGAMEWDJO2HA42KQ6YD5YLUUZUGJKIRZ.data") // padding bits set
	f.Add("CIQKSSEQJ4XQ6R43R6AZO2KLGAMEWDJO2HA42KQ6YD5YLUUZUGJKIRYA.data")
	f.Fuzz(func(t *testing.T, name string) {
		h, ok := parseName(name)
		if ok && blockName(string(h)) != name {
			t.Errorf("%q was taken for %x, whose name is %q", name, h, blockName(string(h)))
		}
		if len(name) < len(suffix) {
			return
		}
		raw, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(name[:len(name)-len(suffix)])
		if err != nil || len(raw) > maxHash || blockName(string(raw)) != name {
			return
		}
		if _, err := mh.Cast(raw); err == nil && raw[0] != mh.IDENTITY && !ok {
			t.Errorf("%q was not taken", name)
		}
	})
}
