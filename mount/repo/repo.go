// Package repo is the repository: one folder with everything cafs keeps.
//
//	config      what was decided when it was made, as JSON (doc/format.md)
//	lock        held by the one process that has the repository open
//	blocks/     the block store, in flatfs layout
//	index/      the working tree's database
//	staging/    bytes that are not blocks yet
//	quarantine/ damaged blocks that were moved aside (VerifyArg)
//	verify      how far an interrupted verification has read
//	api.sock    where a mounted repository answers commands (package api)
//	log         what the daemon of a background mount had to say
//
// It makes, opens and closes these parts in the right order, sees to it that
// only one process does so at a time, and remembers whether the last one ended
// properly. It knows nothing of FUSE and of the command line.
//
// # Order
//
// Open: lock, config, index, store, links. The index comes before the store,
// which keeps page checksums in it. OpenTree adds staging, contents and the
// tree. Close goes backwards, and marks the repository as properly closed only
// after everything before it succeeded.
package repo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Names inside a repository.
const (
	ConfigName  = "config"
	LockName    = "lock"
	BlocksName  = "blocks"
	IndexName   = "index"
	StagingName = "staging"
	SocketName  = "api.sock"
	LogName     = "log"
)

var (
	// ErrNotRepo: the folder is missing or holds no repository.
	ErrNotRepo = errors.New("no cafs repository")
	// ErrExists: a repository is already there.
	ErrExists = errors.New("repository exists")
	// ErrLocked: another process has the repository open; the error is a [*LockedError].
	ErrLocked = errors.New("repository in use")
	// ErrVersion: the repository was written in a format this program does not know.
	ErrVersion = errors.New("unknown repository version")
	// ErrDamaged: a part of the repository is missing or cannot be read.
	ErrDamaged = errors.New("repository damaged")
	// ErrNested: a mountpoint and the repository are inside one another.
	ErrNested = errors.New("mountpoint and repository overlap")
)

// A Hinted error says what can be done about it.
type Hinted struct {
	Err  error
	Hint string // one sentence in lower case, without a full stop
}

func (e *Hinted) Error() string { return e.Err.Error() }
func (e *Hinted) Unwrap() error { return e.Err }

// Hint adds a remedy to an error; nil stays nil.
func Hint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Hinted{err, fmt.Sprintf(format, args...)}
}

// DefaultPath is $CAFS_REPO, or .cafs in the home folder.
func DefaultPath() (string, error) {
	if p := os.Getenv("CAFS_REPO"); p != "" {
		return p, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", Hint(fmt.Errorf("repo: default path: %w", err), "name the repository with --repo")
	}
	return filepath.Join(home, ".cafs"), nil
}

// Resolve makes a path absolute and resolves the symlinks of as much of it as
// exists, so that it can be compared with others; the rest is kept as it is.
func Resolve(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("repo: resolve %q: %w", path, err)
	}
	rest := ""
	for dir := abs; ; dir = filepath.Dir(dir) {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			return "", fmt.Errorf("repo: resolve %q: %w", path, err)
		}
		if _, err := os.Lstat(dir); err == nil {
			return "", fmt.Errorf("repo: resolve %q: %q is a symlink to nothing: %w", path, dir, os.ErrNotExist)
		}
		rest = filepath.Join(filepath.Base(dir), rest)
	}
}

// CheckNesting refuses a mountpoint that is the repository, lies inside it or
// contains it: the daemon would wait for itself on the first access. Both paths
// are resolved ones. Folders are also compared by identity, which finds bind
// mounts. Errors: ErrNested.
func CheckNesting(repository, mountpoint string) error {
	nested := func(what string) error {
		err := fmt.Errorf("repo: %w: %s %s the repository %s", ErrNested, mountpoint, what, repository)
		return Hint(err, "choose a mountpoint outside the repository, or another repository with --repo")
	}
	switch {
	case repository == mountpoint || sameFile(repository, mountpoint):
		return nested("is")
	case inside(mountpoint, repository):
		return nested("lies inside")
	case inside(repository, mountpoint):
		return nested("contains")
	}
	return nil
}

// inside tells whether path is below dir.
func inside(path, dir string) bool {
	if rel, err := filepath.Rel(dir, path); err == nil && rel != "." && rel != ".." && !strings.HasPrefix(rel, "../") {
		return true
	}
	for p := filepath.Dir(path); ; p = filepath.Dir(p) {
		if sameFile(p, dir) {
			return true
		}
		if p == filepath.Dir(p) {
			return false
		}
	}
}

func sameFile(a, b string) bool {
	ia, err := os.Stat(a)
	if err != nil {
		return false
	}
	ib, err := os.Stat(b)
	return err == nil && os.SameFile(ia, ib)
}
