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

// parseName is the multihash of a block's file name; ok is false for any other
// name, also for one that decodes but is not how the store would write it.
func parseName(name string) (h mh.Multihash, ok bool) {
	text, ok := strings.CutSuffix(name, suffix)
	if !ok || len(name) > base32Name.EncodedLen(maxHash)+len(suffix) {
		return nil, false
	}
	h, err := base32Name.DecodeString(text)
	if err != nil || blockName(string(h)) != name {
		return nil, false
	}
	if _, err := mh.Cast(h); err != nil {
		return nil, false
	}
	return h, true
}
