// Package seal computes the content addresses of directories from a snapshot
// of the index. It decides what has to be built anew and in which order; it
// changes nothing but the block store, through the functions it is given.
package seal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"sync"

	"golang.org/x/sync/errgroup"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/index"
)

// Source is the state of the namespace to be sealed: a snapshot of the index.
type Source interface {
	Inode(index.Ino) (index.Inode, error)
	Dirent(dir index.Ino, name string) (index.Dirent, error)
	Dirents(dir index.Ino, after uint64) iter.Seq2[index.Dirent, error]
	Changed(dir index.Ino) iter.Seq2[string, error]
}

// Result is the new root of a directory or symbolic link.
type Result struct {
	Ino, Parent index.Ino
	Root        unixfs.Root
	Link        bool        // a symbolic link
	Files       []index.Ino // those in the directory that were sealed for it
}

// Sealer builds the DAGs of directories.
type Sealer struct {
	Profile unixfs.Profile
	Source  Source
	Load    unixfs.Load
	Emit    unixfs.Emit
	Path    func(index.Ino) string // for messages
	// Files gives the roots of the contents of regular files; undefined where the
	// file was removed meanwhile.
	Files func(ctx context.Context, inos []index.Ino) ([]unixfs.Root, error)

	files map[index.Ino]unixfs.Root
	spare chan struct{} // a place for each goroutine that seals a directory beside its caller

	mu      sync.Mutex
	results []Result
	byIno   map[index.Ino]unixfs.Root // those of results
}

// beside is how many more directories are sealed at a time: they wait for the
// disk when their old nodes are read.
const beside = 7

// Root returns the root of an inode that this seal has sealed.
func (s *Sealer) Root(ino index.Ino) (unixfs.Root, bool) {
	if root, ok := s.files[ino]; ok {
		return root, root.Cid.Defined()
	}
	return s.sealed(ino)
}

func (s *Sealer) sealed(ino index.Ino) (unixfs.Root, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	root, ok := s.byIno[ino]
	return root, ok
}

func (s *Sealer) add(r Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.results = append(s.results, r)
	s.byIno[r.Ino] = r.Root
}

// fileGroup is how many files are sealed by one call of Files.
const fileGroup = 512

// Dir seals the directory dir and all that is unsealed below it. The results
// are in the order children before parents.
func (s *Sealer) Dir(ctx context.Context, dir index.Ino) (unixfs.Root, []Result, error) {
	s.files, s.byIno, s.spare = make(map[index.Ino]unixfs.Root), make(map[index.Ino]unixfs.Root), make(chan struct{}, beside)
	if err := s.sealFiles(ctx, dir); err != nil {
		return unixfs.Root{}, nil, err
	}
	rec, err := s.Source.Inode(dir)
	if err != nil {
		return unixfs.Root{}, nil, err
	}
	root, err := s.dir(ctx, dir, rec)
	return root, s.results, err
}

// sealFiles seals every unsealed file below dir, in groups.
func (s *Sealer) sealFiles(ctx context.Context, dir index.Ino) error {
	var group []index.Ino
	flush := func() error {
		done, err := s.Files(ctx, group)
		if err != nil {
			return err
		}
		for i, ino := range group {
			s.files[ino] = done[i]
		}
		group = group[:0]
		return nil
	}
	err := s.unsealedFiles(ctx, dir, func(ino index.Ino) error {
		if _, seen := s.files[ino]; seen {
			return nil
		}
		s.files[ino] = unixfs.Root{}
		if group = append(group, ino); len(group) == fileGroup {
			return flush()
		}
		return nil
	})
	if err == nil && len(group) > 0 {
		err = flush()
	}
	return err
}

func (s *Sealer) unsealedFiles(ctx context.Context, dir index.Ino, visit func(index.Ino) error) error {
	rec, err := s.Source.Inode(dir)
	if err != nil || !rec.Unsealed {
		return err
	}
	for d, err := range s.changedEntries(dir, rec) {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		switch d.Kind {
		case index.Dir:
			err = s.unsealedFiles(ctx, d.Ino, visit)
		case index.File:
			var child index.Inode
			if child, err = s.Source.Inode(d.Ino); err == nil && child.Unsealed {
				err = visit(d.Ino)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changedEntries lists what may differ from the directory's CID: all of it when
// there is none. A name that is gone has Ino 0.
func (s *Sealer) changedEntries(dir index.Ino, rec index.Inode) iter.Seq2[index.Dirent, error] {
	if !rec.Base.Defined() {
		return s.Source.Dirents(dir, 0)
	}
	return func(yield func(index.Dirent, error) bool) {
		for name, err := range s.Source.Changed(dir) {
			d := index.Dirent{Name: name}
			if err == nil {
				d, err = s.Source.Dirent(dir, name)
			}
			if errors.Is(err, fs.ErrNotExist) {
				d, err = index.Dirent{Name: name}, nil
			}
			if !yield(d, err) || err != nil {
				return
			}
		}
	}
}

// dir returns the root of a directory.
func (s *Sealer) dir(ctx context.Context, dir index.Ino, rec index.Inode) (root unixfs.Root, err error) {
	if !rec.Unsealed {
		return rootOf(rec), nil
	}
	if err := ctx.Err(); err != nil {
		return unixfs.Root{}, err
	}
	if err := s.below(ctx, dir, rec); err != nil {
		return unixfs.Root{}, err
	}
	var files []index.Ino
	entries := s.entries(ctx, dir, rec, &files)
	if rec.Base.Defined() {
		var changes []unixfs.Change
		for c, err := range entries {
			if err != nil {
				return unixfs.Root{}, err
			}
			changes = append(changes, c)
		}
		// What was adopted by its CID has no known size and may be sharded
		// otherwise, or where we would not: it is built anew once.
		err = unixfs.ErrForeign
		if rec.BaseSize != 0 || s.Profile.DirSize == unixfs.SizeNone {
			root, err = s.Profile.EditDirSized(ctx, s.Load, rootOf(rec), changes, s.Emit)
		}
		if errors.Is(err, unixfs.ErrForeign) {
			root, err = s.Profile.BuildDir(ctx, s.all(ctx, dir, changes), s.Emit)
		}
	}
	if !rec.Base.Defined() {
		root, err = s.Profile.BuildDir(ctx, onlySet(entries), s.Emit)
	}
	if err != nil {
		return unixfs.Root{}, fmt.Errorf("seal: directory %s: %w", s.Path(dir), err)
	}
	s.add(Result{Ino: dir, Parent: rec.Parent, Root: root, Files: files})
	return root, nil
}

// below seals the directories in a directory, several at a time.
func (s *Sealer) below(ctx context.Context, dir index.Ino, rec index.Inode) error {
	var dirs []index.Ino
	for d, err := range s.changedEntries(dir, rec) {
		if err != nil {
			return err
		}
		if d.Ino != 0 && d.Kind == index.Dir {
			dirs = append(dirs, d.Ino)
		}
	}
	var g errgroup.Group
	var first error
	for _, ino := range dirs {
		rec, err := s.Source.Inode(ino)
		if err != nil || !rec.Unsealed {
			first = err
		} else {
			select {
			case s.spare <- struct{}{}:
				g.Go(func() error {
					defer func() { <-s.spare }()
					_, err := s.dir(ctx, ino, rec)
					return err
				})
			default:
				_, first = s.dir(ctx, ino, rec)
			}
		}
		if first != nil {
			break
		}
	}
	return errors.Join(first, g.Wait())
}

// entries yields the changes of a directory against its CID, sealing what they
// lead to, and adds the files among them that this seal has sealed. FIFOs,
// sockets and devices have no content address and are left out.
func (s *Sealer) entries(ctx context.Context, dir index.Ino, rec index.Inode, files *[]index.Ino) iter.Seq2[unixfs.Change, error] {
	return func(yield func(unixfs.Change, error) bool) {
		for d, err := range s.changedEntries(dir, rec) {
			c := unixfs.Change{Name: d.Name}
			if err == nil && d.Ino != 0 {
				var root unixfs.Root
				if root, err = s.child(ctx, dir, d); d.Kind == index.File {
					if _, now := s.files[d.Ino]; now {
						*files = append(*files, d.Ino)
					}
				}
				c.Set = root.Cid.Defined()
				c.Entry = unixfs.Entry{Name: d.Name, Cid: root.Cid, Tsize: root.Tsize}
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
	}
}

// all yields all entries of a directory, given those that changed.
func (s *Sealer) all(ctx context.Context, dir index.Ino, changes []unixfs.Change) iter.Seq2[unixfs.Entry, error] {
	changed := make(map[string]unixfs.Change, len(changes))
	for _, c := range changes {
		changed[c.Name] = c
	}
	return onlySet(func(yield func(unixfs.Change, error) bool) {
		for d, err := range s.Source.Dirents(dir, 0) {
			c, ok := changed[d.Name]
			if err == nil && !ok {
				var root unixfs.Root
				root, err = s.child(ctx, dir, d)
				c = unixfs.Change{Name: d.Name, Set: root.Cid.Defined(), Entry: unixfs.Entry{Name: d.Name, Cid: root.Cid, Tsize: root.Tsize}}
			}
			if !yield(c, err) || err != nil {
				return
			}
		}
	})
}

// child returns the root of an entry: undefined for what has no content address.
func (s *Sealer) child(ctx context.Context, dir index.Ino, d index.Dirent) (root unixfs.Root, err error) {
	switch d.Kind {
	case index.Dir, index.File, index.Symlink:
	default:
		return unixfs.Root{}, nil
	}
	if root, ok := s.files[d.Ino]; ok {
		return root, nil
	}
	if root, ok := s.sealed(d.Ino); ok {
		return root, nil
	}
	rec, err := s.Source.Inode(d.Ino)
	if err != nil || !rec.Unsealed {
		return rootOf(rec), err
	}
	if d.Kind == index.Dir {
		return s.dir(ctx, d.Ino, rec)
	}
	if d.Kind == index.Symlink {
		root, err = s.Profile.Symlink(rec.Target, s.Emit)
		if err == nil {
			s.add(Result{Ino: d.Ino, Parent: dir, Root: root, Link: true})
		}
		return root, err
	}
	return unixfs.Root{}, fmt.Errorf("seal: file %d was not sealed", d.Ino)
}

// rootOf is the sealed root in a record. BaseSize is the content size of a file
// and, for a directory, the size that decides about sharding.
func rootOf(rec index.Inode) unixfs.Root {
	return unixfs.Root{Cid: rec.Base, Size: uint64(rec.BaseSize), Tsize: rec.Tsize}
}

func onlySet(changes iter.Seq2[unixfs.Change, error]) iter.Seq2[unixfs.Entry, error] {
	return func(yield func(unixfs.Entry, error) bool) {
		for c, err := range changes {
			if err == nil && !c.Set {
				continue
			}
			if !yield(c.Entry, err) || err != nil {
				return
			}
		}
	}
}
