package repo

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"cafs/mount/tree/index"
	"cafs/store"
	"cafs/store/disk"
)

// damagedIndex says what can be done about an index that cannot be opened,
// where that is because of its files.
func damagedIndex(path string, err error) error {
	switch {
	case errors.Is(err, index.ErrVersion), errors.Is(err, fs.ErrPermission), notFiles(err):
		return fmt.Errorf("repo: %s: %w", path, err)
	}
	// The cause is not wrapped: a missing file is no missing repository.
	err = fmt.Errorf("repo: %s: %w: %v", path, ErrDamaged, err)
	return Hint(err, "put the folder %s back from a copy of the repository, or let 'cafs recover' make the tree of the last commit anew", IndexName)
}

// emptied tells whether the index has vanished from a repository that was used.
func (r *Repo) emptied(index disk.FS) bool {
	names, err := index.ReadDir(".")
	if err != nil || len(names) > 0 {
		return false
	}
	commits, err := listCommits(r.Path)
	return err == nil && len(commits) > 0
}

// damagedStore does so for the block store, of which opening reads next to
// nothing.
func (r *Repo) damagedStore(path string, err error) error {
	if errors.Is(err, store.ErrResharding) {
		return Hint(fmt.Errorf("repo: %s: %w", path, err), "finish that with 'cafs store reshard'; nothing is lost")
	}
	if !errors.Is(err, store.ErrLayout) && !errors.Is(err, store.ErrNotStore) {
		return fmt.Errorf("repo: %s: %w", path, err)
	}
	err = fmt.Errorf("repo: %s: %w: %v", path, ErrDamaged, err)
	return Hint(err, "put the file %s back; by this repository's config it holds one line: %s",
		filepath.Join(path, "SHARDING"), r.Config.Shard)
}

// notFiles: it is the disk, not what is on it.
func notFiles(err error) bool {
	for _, no := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}
