package history

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"
	"syscall"

	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/mount/tree/index"
)

// Reader reads trees of entries: recorded ones, and bare content, which has the
// attributes that Bare gives.
type Reader struct {
	Sys  *linksys.System
	Load Load
}

// Bare is the entry of content without recorded attributes, below a directory
// parent: it has the parent's owner and modification time, permissions and time
// of its own if UnixFS stores them, and never set-id bits. Errors: ErrFormat
// for what is neither file, directory nor symbolic link.
func (r Reader) Bare(ctx context.Context, parent *Entry, name string, c cid.Cid) (Entry, error) {
	info, err := r.Sys.Stat(ctx, c)
	if err != nil {
		return Entry{}, fmt.Errorf("history: %q: %w", name, err)
	}
	e := Entry{Name: name, Cid: c, Uid: parent.Uid, Gid: parent.Gid, Mtime: parent.Mtime}
	if !info.Mtime.IsZero() {
		e.Mtime = index.Timespec{Sec: info.Mtime.Unix(), Nsec: uint32(info.Mtime.Nanosecond())}
	}
	e.Atime, e.Ctime, e.Btime = e.Mtime, e.Mtime, e.Mtime
	switch info.Type {
	case linksys.Regular:
		e.Kind, e.Perm, e.Size, e.Data = index.File, 0o644, info.Size, info.Size
	case linksys.Directory:
		e.Kind, e.Perm = index.Dir, 0o755
	case linksys.Symlink:
		e.Kind, e.Perm, e.Target = index.Symlink, 0o777, info.Target
	default: // a block of another codec is a file of its bytes only by its raw CID
		return Entry{}, fmt.Errorf("history: %q: %s is no UnixFS content: %w", name, c, ErrFormat)
	}
	if info.Mode != 0 && e.Kind != index.Symlink {
		e.Perm = uint16(info.Mode & 0o777)
	}
	if c.Prefix().Codec == cid.Raw {
		e.Tsize = uint64(info.Size)
		return e, nil
	}
	block, err := r.Load(ctx, c)
	if err != nil {
		return Entry{}, fmt.Errorf("history: %q: %w", name, err)
	}
	n, err := unixfs.DecodeNode(c, block)
	if err != nil {
		return Entry{}, fmt.Errorf("history: %q: %w", name, err)
	}
	e.Tsize = uint64(len(block))
	for _, l := range n.Links {
		e.Tsize += l.Tsize
	}
	return e, nil
}

// List yields the entries of a directory in no particular order, those with
// several names as link ids. Content that is no UnixFS is left out of bare ones.
func (r Reader) List(ctx context.Context, dir *Entry) iter.Seq2[Entry, error] {
	if dir.Record.Defined() {
		return List(ctx, r.Load, dir.Record)
	}
	return func(yield func(Entry, error) bool) {
		for l, err := range r.Sys.ReadDir(ctx, dir.Cid) {
			if err != nil {
				yield(Entry{}, err)
				return
			}
			e, err := r.Bare(ctx, dir, l.Name, l.Cid)
			if errors.Is(err, ErrFormat) {
				continue
			}
			e.Tsize = l.Tsize // as the directory has it, so that an edit keeps it
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Lookup finds a name in a directory of a commit with these links, and what it
// leads to. Errors: fs.ErrNotExist, ENOTDIR.
func (r Reader) Lookup(ctx context.Context, dir *Entry, links cid.Cid, name string) (Entry, error) {
	if dir.Kind != index.Dir {
		return Entry{}, syscall.ENOTDIR
	}
	if !dir.Record.Defined() {
		l, err := r.Sys.LookupDir(ctx, dir.Cid, name)
		if err != nil {
			return Entry{}, err
		}
		e, err := r.Bare(ctx, dir, name, l.Cid)
		if errors.Is(err, ErrFormat) {
			return Entry{}, fmt.Errorf("history: %q: %w", name, fs.ErrNotExist)
		}
		e.Tsize = l.Tsize
		return e, err
	}
	e, ok, err := Find(ctx, r.Load, dir.Record, name)
	if err != nil {
		return Entry{}, err
	}
	if !ok {
		return Entry{}, fmt.Errorf("history: %q: %w", name, fs.ErrNotExist)
	}
	return r.Resolve(ctx, links, e)
}

// Resolve returns the inode that an entry stands for, under the entry's name.
func (r Reader) Resolve(ctx context.Context, links cid.Cid, e Entry) (Entry, error) {
	if e.Link == (LinkID{}) {
		return e, nil
	}
	l, ok, err := Find(ctx, r.Load, links, string(e.Link[:]))
	if err == nil && !ok {
		err = fmt.Errorf("history: %q: link id %x leads nowhere: %w", e.Name, e.Link, ErrFormat)
	}
	if err != nil {
		return Entry{}, err
	}
	l.Name = e.Name
	return l, nil
}

// Walk finds a slash-separated path from the root of a commit. No symbolic link
// is followed. Errors: fs.ErrNotExist, ENOTDIR.
func (r Reader) Walk(ctx context.Context, c *Commit, path string) (Entry, error) {
	e := c.Root
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." {
			continue
		}
		var err error
		if e, err = r.Lookup(ctx, &e, c.Links, name); err != nil {
			return Entry{}, err
		}
	}
	return e, nil
}
