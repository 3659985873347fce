package repo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
	"cafs/store/disk"
)

// ErrSound: there is nothing to recover.
var ErrSound = errors.New("the index is sound")

// Recovered is what Recover did.
type Recovered struct {
	Commit  tree.Kept   // the tree is as in this one
	Kept    int         // commits that are whole, with that one
	Damaged []tree.Kept // commits that lack blocks, and are given up
	Lost    string      // folder with the old index and staging
}

// Recover gives up an index that cannot be opened, with the bytes that were not
// in blocks yet, and makes the tree of the newest commit that is whole. All
// whole commits are kept; pins are not. The old files are moved, not removed.
// Errors: ErrSound; tree.ErrNoCommit when no commit is whole.
func Recover(ctx context.Context, path string, o Options) (done Recovered, err error) {
	if path, err = Resolve(path); err != nil {
		return done, err
	}
	all, err := listCommits(path)
	if err != nil {
		return done, err
	}
	if len(all) == 0 {
		return done, Hint(fmt.Errorf("repo: recover %s: %w", path, tree.ErrNoCommit),
			"the file %s lists none; put the folder %s back from a copy of the repository", CommitsName, IndexName)
	}
	if done.Lost, err = setAside(ctx, path, o); err != nil {
		return done, err
	}
	o.freshIndex = true
	r, err := Open(ctx, path, o)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	t, _, err := r.OpenTree(ctx, TreeOptions{})
	if err != nil {
		return done, err
	}
	var whole []tree.Kept
	for i := len(all) - 1; i >= 0; i-- {
		if err := r.Sys.Complete(ctx, all[i].Cid); ctx.Err() != nil {
			return done, ctx.Err()
		} else if err != nil {
			r.log.Warn("commit is not whole", "cid", all[i].Cid, "err", err)
			done.Damaged = append(done.Damaged, all[i])
			continue
		}
		whole = append(whole, all[i])
	}
	if len(whole) == 0 {
		return done, fmt.Errorf("repo: recover %s: all %d commits lack blocks: %w", path, len(all), tree.ErrNoCommit)
	}
	slices.Reverse(whole)
	done.Commit, done.Kept = whole[len(whole)-1], len(whole)
	return done, t.Rebuild(ctx, whole...)
}

// setAside moves index and staging into a new folder and makes empty ones.
func setAside(ctx context.Context, path string, o Options) (lost string, err error) {
	lock, err := Acquire(ctx, path, o.Holder, o.Wait)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Release(false)) }()
	if sound(filepath.Join(path, IndexName)) {
		return "", Hint(fmt.Errorf("repo: recover %s: %w", path, ErrSound), "'cafs restore' brings back what a commit has")
	}
	lost = filepath.Join(path, "lost-"+time.Now().UTC().Format("20060102T150405.000"))
	if err := os.Mkdir(lost, 0o700); err != nil {
		return "", fmt.Errorf("repo: recover: %w", err)
	}
	for _, name := range []string{IndexName, StagingName} {
		err := os.Rename(filepath.Join(path, name), filepath.Join(lost, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return lost, fmt.Errorf("repo: recover: %w", err)
		}
		if err := os.Mkdir(filepath.Join(path, name), 0o700); err != nil {
			return lost, fmt.Errorf("repo: recover: %w", err)
		}
	}
	if err := errors.Join(syncDir(lost), syncDir(path)); err != nil {
		return lost, fmt.Errorf("repo: recover: %w", err)
	}
	return lost, nil
}

// sound tells whether the index has something in it and can be opened.
func sound(path string) bool {
	d, err := disk.OS(path)
	if err != nil {
		return false
	}
	defer d.Close()
	if names, err := d.ReadDir("."); err != nil || len(names) == 0 {
		return false
	}
	db, err := index.Open(d, index.Options{})
	if err != nil {
		return false
	}
	_, err = db.Inode(tree.RootIno)
	return errors.Join(err, db.Close()) == nil
}

// listCommits reads the list of commits, the oldest first. Lines that make no
// sense are skipped: the last one may be torn.
func listCommits(path string) ([]tree.Kept, error) {
	text, err := os.ReadFile(filepath.Join(path, CommitsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("repo: commits: %w", err)
	}
	var all []tree.Kept
	for line := range strings.Lines(string(text)) {
		when, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		id, rest, _ := strings.Cut(rest, " ")
		reason, name, _ := strings.Cut(rest, " ")
		k := tree.Kept{Reason: reason}
		if k.Time, err = time.Parse(time.RFC3339Nano, when); err != nil {
			continue
		}
		if k.Cid, err = cid.Decode(id); err != nil {
			continue
		}
		if k.Name, err = strconv.Unquote(name); err != nil {
			k.Name = ""
		}
		all = append(all, k)
	}
	return all, nil
}
