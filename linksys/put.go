package linksys

import (
	"bytes"
	"context"
	"fmt"

	"github.com/ipfs/boxo/verifcid"
	"github.com/ipfs/go-cid"

	"cafs/linksys/unixfs"
	"cafs/store"
)

// PutVerified stores a block that came from outside, after hashing it. The bytes
// of an identity CID are compared with it and not stored. Hash functions that
// nobody should trust are refused. The block is durable after Sync. Errors:
// store.ErrMismatch, [ErrBudget] for a block over unixfs.MaxBlock.
func (s *System) PutVerified(ctx context.Context, c cid.Cid, block []byte) error {
	if data, ok, err := inline(c); ok {
		if err == nil && !bytes.Equal(data, block) {
			err = fmt.Errorf("linksys: identity CID: %w", store.ErrMismatch)
		}
		return err
	}
	if err := verifcid.ValidateCid(verifcid.DefaultAllowlist, c); err != nil {
		return fmt.Errorf("linksys: %s: %w", c, err)
	}
	if len(block) > unixfs.MaxBlock {
		return fmt.Errorf("linksys: block %s of %d bytes: %w", c, len(block), ErrBudget)
	}
	return store.PutVerified(ctx, s.blocks, c, block)
}

// Sync makes every block put so far durable, where the store can.
func (s *System) Sync(ctx context.Context) error {
	if y, ok := s.blocks.(store.Syncer); ok {
		return y.Sync(ctx)
	}
	return nil
}
