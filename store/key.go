package store

import (
	"encoding/base32"
	"errors"
	"fmt"
	"strings"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// MaxBlock is the longest block a store takes or reads, in bytes.
const MaxBlock = 2 << 20

// maxHash is the longest multihash in bytes: its base32 name plus suffix must
// stay a file name.
const maxHash = 150

const suffix = ".data"

var base32Name = base32.StdEncoding.WithPadding(base32.NoPadding)

// hashKey is the multihash of c as a map key: a part of c's own string, so it
// costs no allocation.
func hashKey(c cid.Cid) string {
	s := c.KeyString()
	if c.Version() == 0 {
		return s
	}
	for range 2 { // version and codec, a varint each
		i := 0
		for i < len(s) && s[i]&0x80 != 0 {
			i++
		}
		s = s[min(i+1, len(s)):]
	}
	return s
}

// cidOf is a CID to name a bare multihash in calls that take one.
func cidOf(key string) cid.Cid { return cid.NewCidV1(cid.Raw, mh.Multihash(key)) }

// keyString is a multihash for messages.
func keyString(key string) string { return mh.Multihash(key).B58String() }

var errIdentity = errors.New("identity CIDs are not stored")

// CheckPut refuses what no store keeps: identity CIDs, blocks over MaxBlock,
// and multihashes too long for a file name.
func CheckPut(c cid.Cid, block []byte) error {
	key := hashKey(c)
	switch {
	case !c.Defined() || len(key) < 2 || len(key) > maxHash:
		return fmt.Errorf("store: put %s: not a multihash that can be stored", c)
	case key[0] == mh.IDENTITY:
		return fmt.Errorf("store: put %s: %w", c, errIdentity)
	case len(block) > MaxBlock:
		return fmt.Errorf("store: put %s: %d bytes are over the limit of %d", c, len(block), MaxBlock)
	}
	return nil
}

// blockName is the file name of a block.
func blockName(key string) string {
	var buf [(maxHash+4)/5*8 + len(suffix)]byte
	n := base32Name.EncodedLen(len(key))
	var raw [maxHash]byte
	base32Name.Encode(buf[:n], raw[:copy(raw[:], key)])
	copy(buf[n:], suffix)
	return string(buf[:n+len(suffix)])
}

// blockKey is the part of a block's file name that sharding functions see.
func blockKey(name string) string { return name[:len(name)-len(suffix)] }

func isNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// maxName is the length of the longest file name of a block without its suffix.
const maxName = (maxHash*8 + 4) / 5

// fromBase32 is the value of a letter of the alphabet, or 0xff.
var fromBase32 = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for v, letter := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") {
		t[letter] = byte(v)
	}
	return t
}()

// decodeName decodes the base32 text of a multihash into h, which has its
// length. It tells false for what is no multihash and for what is not how the
// store would write it.
func decodeName(h, text []byte) bool {
	var bits, have uint
	n := 0
	for _, letter := range text {
		v := fromBase32[letter]
		if v == 0xff {
			return false
		}
		bits = bits<<5 | uint(v)
		if have += 5; have >= 8 {
			have -= 8
			h[n] = byte(bits >> have)
			n++
		}
	}
	if have >= 5 || bits&(1<<have-1) != 0 {
		return false // a letter too many, or padding that is not zero
	}
	if n == 34 && h[0] == mh.SHA2_256 && h[1] == 32 {
		return true
	}
	_, err := mh.Cast(h[:n])
	return err == nil && h[0] != mh.IDENTITY
}

// parseName is the multihash of a block's file name; ok is false for any other
// name.
func parseName(name string) (h mh.Multihash, ok bool) {
	text, ok := strings.CutSuffix(name, suffix)
	if !ok || len(text) > maxName {
		return nil, false
	}
	h = make(mh.Multihash, len(text)*5/8)
	return h, decodeName(h, []byte(text))
}
