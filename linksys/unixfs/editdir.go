package unixfs

import (
	"context"

	"github.com/ipfs/go-cid"
)

func (p Profile) EditDir(ctx context.Context, load Load, base cid.Cid, changes []Change, emit Emit) (Root, error) {
	panic("being written")
}
