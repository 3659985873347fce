package repo

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cafs/linksys/add"
	"cafs/linksys/unixfs"
)

// ImportOptions say how content is brought in.
type ImportOptions struct {
	Name    string // what the root is called in lists and messages
	Profile string // empty: the repository's
	add.Options
	Recursive bool // folders too
	NoRoot    bool // do not remember it: what nothing else refers to is garbage
}

// Import adds what f is open on, a file, a pipe or a folder, and remembers it
// as a root unless told not to. All of it is durable when Import returns. With
// NoSync it need not be, and the root is for the caller to remember once it is:
// no crash must leave one without its blocks. f stays the caller's.
func (r *Repo) Import(ctx context.Context, f *os.File, o ImportOptions) (root unixfs.Root, stats add.Stats, err error) {
	o.Options.Profile = r.Profile
	if o.Profile != "" {
		if o.Options.Profile, err = unixfs.ParseProfile(o.Profile); err != nil {
			return root, stats, fmt.Errorf("repo: add: %w: %w", err, unix.EINVAL)
		}
	}
	info, err := f.Stat()
	if err != nil {
		return root, stats, fmt.Errorf("repo: add: %w", err)
	}
	im := add.New(r.Store, o.Options)
	switch mode := info.Mode(); {
	case mode.IsDir() && !o.Recursive:
		return root, stats, Hint(fmt.Errorf("repo: add: %w", unix.EISDIR), "add folders with -r")
	case mode.IsDir():
		root, err = im.AddTree(ctx, f)
	case mode.IsRegular() || mode&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeCharDevice) != 0:
		stop := interruptible(ctx, f)
		root, err = im.AddFile(ctx, f)
		stop()
		if ctx.Err() != nil {
			err = ctx.Err() // also when all seems well: a writer that gave up looks like the end of a file
		}
	default:
		err = fmt.Errorf("repo: add: not a file or a folder: %w", unix.EINVAL)
	}
	if err != nil {
		return root, stats, err
	}
	if stats, err = im.Finish(ctx); err != nil {
		return root, stats, err
	}
	if o.NoRoot || o.NoSync {
		return root, stats, nil
	}
	return root, stats, r.AddRoot(ctx, Root{Cid: root.Cid, Name: o.Name, Time: time.Now()})
}
