package history

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/ipfs/go-cid"
	"golang.org/x/sync/errgroup"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/index"
)

// Source is the tree to be recorded: a snapshot of the index.
type Source interface {
	Inode(index.Ino) (index.Inode, error)
	Dirent(dir index.Ino, name string) (index.Dirent, error)
	Dirents(dir index.Ino, after uint64) iter.Seq2[index.Dirent, error]
	Unrecorded(dir index.Ino) iter.Seq2[string, error]
	UnrecordedLinks() iter.Seq2[index.LinkAt, error]
	Xattrs(ino index.Ino) iter.Seq2[index.Xattr, error]
}

// Recorder builds the attribute tree of a commit. It looks at what is noted as
// unrecorded and at directories that no commit has recorded, and changes
// nothing but the block store.
type Recorder struct {
	Source Source
	// Inode, if it tells true, has the inode's newest attributes in place of
	// the Source's: those of files with unpublished contents.
	Inode func(index.Ino) (index.Inode, bool)
	// Root is the content of an inode that is not sealed in Source.
	Root func(index.Ino) (unixfs.Root, bool)
	Load Load
	Emit Emit

	spare chan struct{} // a place for each goroutine that records a directory beside its caller

	mu    sync.Mutex
	dirs  []Recorded
	links []index.LinkAt
}

// beside is how many more directories are recorded at a time: they wait for the
// disk when their old maps are read.
const beside = 7

// Recorded is the outcome for a directory: the names are recorded in Record.
type Recorded struct {
	Ino    index.Ino
	Record cid.Cid
	Names  []string // those that were noted
}

// Record records the directory top and all below it. The results are in the
// order children before parents.
func (r *Recorder) Record(ctx context.Context, top index.Ino) (Entry, []Recorded, error) {
	rec, err := r.inode(top)
	if err != nil {
		return Entry{}, nil, err
	}
	r.spare = make(chan struct{}, beside)
	e, err := r.entry(ctx, "", top, &rec)
	return e, r.dirs, err
}

// Links records the inodes with several names in the map base, and returns
// those that were noted.
func (r *Recorder) Links(ctx context.Context, base cid.Cid) (cid.Cid, []index.LinkAt, error) {
	var changes []Change
	for l, err := range r.Source.UnrecordedLinks() {
		if err != nil {
			return cid.Undef, nil, err
		}
		r.links = append(r.links, l)
	}
	for _, l := range r.links {
		c := Change{Name: string(l.ID[:])}
		rec, err := r.inode(l.Ino)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return cid.Undef, nil, err
		}
		if err == nil && rec.Nlink > 1 && rec.LinkID == l.ID {
			e, err := r.entry(ctx, c.Name, l.Ino, &rec)
			if err != nil {
				return cid.Undef, nil, err
			}
			e.Nlink = rec.Nlink
			c.Entry = &e
		}
		changes = append(changes, c)
	}
	if len(changes) == 0 {
		return base, nil, nil
	}
	s, err := edit(ctx, r.Load, base, changes, r.Emit)
	if err != nil {
		return cid.Undef, nil, err
	}
	if s.weight == 0 {
		return cid.Undef, r.links, nil
	}
	return s.c, r.links, nil
}

func (r *Recorder) inode(ino index.Ino) (index.Inode, error) {
	if rec, ok := r.Inode(ino); ok {
		return rec, nil
	}
	return r.Source.Inode(ino)
}

// child is the entry of a name in a directory.
func (r *Recorder) child(ctx context.Context, d index.Dirent) (Entry, error) {
	rec, err := r.inode(d.Ino)
	if err != nil {
		return Entry{}, fmt.Errorf("history: %q: %w", d.Name, err)
	}
	if rec.Kind != index.Dir && rec.Nlink > 1 {
		return Entry{Name: d.Name, Link: rec.LinkID}, nil
	}
	return r.entry(ctx, d.Name, d.Ino, &rec)
}

// entry is what a commit has of an inode, with all below it recorded.
func (r *Recorder) entry(ctx context.Context, name string, ino index.Ino, rec *index.Inode) (Entry, error) {
	e := Entry{
		Name: name, Kind: rec.Kind, Perm: rec.Perm, Uid: rec.Uid, Gid: rec.Gid, Rdev: rec.Rdev,
		Atime: rec.Atime, Mtime: rec.Mtime, Ctime: rec.Ctime, Btime: rec.Btime, Target: rec.Target,
	}
	switch rec.Kind {
	case index.File, index.Dir, index.Symlink:
		root, ok := r.Root(ino)
		if !ok && (rec.Kind != index.File || !rec.Unsealed) { // else its base is older
			root = unixfs.Root{Cid: rec.Base, Size: uint64(rec.Size), Tsize: rec.Tsize}
		}
		if !root.Cid.Defined() {
			return e, fmt.Errorf("history: inode %d (%q) was not sealed", ino, name)
		}
		e.Cid, e.Tsize = root.Cid, root.Tsize
		if rec.Kind == index.File {
			e.Size, e.Data = int64(root.Size), min(rec.Alloc, int64(root.Size))
		}
	}
	var err error
	if rec.Xattrs > 0 {
		if e.Xattrs, err = r.xattrs(ino); err != nil {
			return e, err
		}
	}
	if rec.Kind == index.Dir {
		err = r.dir(ctx, ino, rec, &e)
	}
	return e, err
}

// dir records the entries of a directory.
func (r *Recorder) dir(ctx context.Context, ino index.Ino, rec *index.Inode, e *Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if rec.Lazy {
		e.Record = rec.Record // nothing below has link ids, or it would not be lazy
		return nil
	}
	changes, names, err := r.changes(ctx, ino, rec)
	if err != nil {
		return err
	}
	s, err := edit(ctx, r.Load, rec.Record, changes, r.Emit)
	if err != nil {
		return fmt.Errorf("history: directory %d: %w", ino, err)
	}
	e.Record, e.Hard = s.c, s.hard
	if len(names) > 0 || s.c != rec.Record {
		r.mu.Lock()
		r.dirs = append(r.dirs, Recorded{ino, s.c, names})
		r.mu.Unlock()
	}
	return nil
}

// changes lists what the directory's record does not have: everything when
// there is none.
func (r *Recorder) changes(ctx context.Context, ino index.Ino, rec *index.Inode) (changes []Change, names []string, err error) {
	var entries []index.Dirent
	if rec.Record.Defined() {
		for name, err := range r.Source.Unrecorded(ino) {
			if err != nil {
				return nil, nil, err
			}
			names = append(names, name)
		}
		for _, name := range names {
			d, err := r.Source.Dirent(ino, name)
			if errors.Is(err, fs.ErrNotExist) {
				d = index.Dirent{Name: name}
			} else if err != nil {
				return nil, nil, err
			}
			entries = append(entries, d)
		}
	} else {
		for d, err := range r.Source.Dirents(ino, 0) {
			if err != nil {
				return nil, nil, err
			}
			entries = append(entries, d)
		}
	}
	changes, err = r.children(ctx, entries)
	return changes, names, err
}

// children records entries, several directories among them at a time.
func (r *Recorder) children(ctx context.Context, entries []index.Dirent) ([]Change, error) {
	changes := make([]Change, len(entries))
	var g errgroup.Group
	var first error
	for i, d := range entries {
		changes[i].Name = d.Name
		if d.Ino == 0 {
			continue
		}
		record := func() error {
			e, err := r.child(ctx, d)
			changes[i].Entry = &e
			return err
		}
		if d.Kind == index.Dir && r.place() {
			g.Go(func() error {
				defer func() { <-r.spare }()
				return record()
			})
		} else if first = record(); first != nil {
			break
		}
	}
	return changes, errors.Join(first, g.Wait())
}

// place takes a place in spare, if there is one.
func (r *Recorder) place() bool {
	select {
	case r.spare <- struct{}{}:
		return true
	default:
		return false
	}
}

// xattrs reads the extended attributes; the largest values become blocks until
// the rest is small.
func (r *Recorder) xattrs(ino index.Ino) ([]Xattr, error) {
	var all []Xattr
	size := 0
	for x, err := range r.Source.Xattrs(ino) {
		if err != nil {
			return nil, err
		}
		all = append(all, Xattr{Name: x.Name, Value: x.Value})
		size += len(x.Name) + len(x.Value)
	}
	bySize := make([]int, len(all))
	for i := range bySize {
		bySize[i] = i
	}
	slices.SortStableFunc(bySize, func(a, b int) int { return len(all[b].Value) - len(all[a].Value) })
	for _, i := range bySize {
		const link = 48 // a link is about that long
		if size <= MaxInlineXattrs || len(all[i].Value) <= link {
			break
		}
		c, err := xattrBlock(all[i].Value, r.Emit)
		if err != nil {
			return nil, err
		}
		size -= len(all[i].Value)
		all[i].Value, all[i].Block = nil, c
	}
	slices.SortFunc(all, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}
