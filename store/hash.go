package store

import (
	"bytes"
	"context"
	"fmt"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
	_ "github.com/multiformats/go-multihash/register/all" // blocks that others made
)

// PutVerified stores a block that came from outside: it is hashed first, and
// refused with ErrMismatch when it is not what c names.
func PutVerified(ctx context.Context, p Putter, c cid.Cid, block []byte) error {
	got, err := sumLike(c.Hash(), block)
	if err != nil {
		return fmt.Errorf("store: put %s: %w", c, err)
	}
	if !bytes.Equal(got, c.Hash()) {
		return fmt.Errorf("store: put %s: %w", c, ErrMismatch)
	}
	return p.Put(ctx, c, block)
}

// sumLike hashes block with the function and digest length of h.
func sumLike(h mh.Multihash, block []byte) (mh.Multihash, error) {
	d, err := mh.Decode(h)
	if err != nil {
		return nil, err
	}
	return mh.Sum(block, d.Code, d.Length)
}

// Verify tells whether block is what h names. Errors: ErrCorrupt.
func Verify(h mh.Multihash, block []byte) error {
	got, err := hashLike(string(h), block)
	if err != nil {
		return fmt.Errorf("store: verify %s: %w", h.B58String(), err)
	}
	if !bytes.Equal(got, h) {
		return &CorruptError{Want: h, Got: got}
	}
	return nil
}
