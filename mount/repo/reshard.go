package repo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"cafs/shard"
	"cafs/store"
	"cafs/store/disk"
)

// Reshard spreads the blocks of the repository at path over folders by fn, in
// place. Interrupted anyhow, it is run again; until it is through, the
// repository cannot be opened (store.ErrResharding). progress, which may be nil,
// is called with the number of blocks moved so far. Errors: ErrNotRepo,
// ErrLocked, those of [store.Reshard].
func Reshard(ctx context.Context, path string, fn shard.Func, o Options, progress func(moved int64)) (err error) {
	if path, err = Resolve(path); err != nil {
		return err
	}
	if _, err := ReadConfig(path); err != nil {
		return err
	}
	lock, err := Acquire(ctx, path, o.Holder, o.Wait)
	if err != nil {
		return err
	}
	// The index is not opened: what the lock said of it stays true.
	defer func() { err = errors.Join(err, lock.Release(!lock.Unclean)) }()
	blocks := filepath.Join(path, BlocksName)
	fsys, err := disk.OS(blocks)
	if err != nil {
		return fmt.Errorf("repo: reshard %s: %w", blocks, err)
	}
	defer fsys.Close()
	if err := store.Reshard(ctx, fsys, fn, progress); err != nil {
		return fmt.Errorf("repo: %s: %w", blocks, err)
	}
	return nil
}
