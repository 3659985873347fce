package mount

import (
	"context"
	"fmt"
	"iter"
	"syscall"

	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/mount/tree"
	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
)

// past is a node's place in a commit.
type past struct {
	entry history.Entry
	links cid.Cid // the commit's map of inodes with several names
}

// lookupCommit makes the node of a commit's root: below .cafs/snapshots one
// with this name, below .cafs/at the last one made by a time.
func (v *view) lookupCommit(ctx context.Context, dir nodeKind, name string) (*node, error) {
	k, err := v.tree.FindCommit(name)
	if err != nil {
		return nil, err
	}
	if dir == snapshotsDir && k.Name != name {
		return nil, fmt.Errorf("mount: view: %q: %w", name, tree.ErrNoCommit)
	}
	c, err := v.tree.LoadCommit(ctx, k.Cid)
	if err != nil {
		return nil, err
	}
	n := v.pastNode(past{entry: c.Root, links: c.Links})
	n.version = k.Cid.String() // the name may come to mean another one
	return n, nil
}

// lookupPast finds a name in a recorded directory.
func (v *view) lookupPast(ctx context.Context, p *node, name string) (*node, error) {
	e, err := v.tree.Reader().Lookup(ctx, &p.past.entry, p.past.links, name)
	if err != nil {
		return nil, err
	}
	return v.pastNode(past{entry: e, links: p.past.links}), nil
}

// pastNode makes a node with attributes as they were.
func (v *view) pastNode(p past) *node {
	e := &p.entry
	n := &node{kind: pastNode, c: e.Cid, bytes: e.Cid, target: e.Target, past: &p}
	n.attr = tree.Attr{
		Kind: e.Kind, Perm: e.Perm, Uid: e.Uid, Gid: e.Gid, Rdev: e.Rdev, Nlink: 1,
		Atime: e.Atime, Mtime: e.Mtime, Ctime: e.Ctime, Btime: e.Btime,
	}
	switch e.Kind {
	case index.File:
		n.attr.Size, n.attr.Blocks = e.Size, (e.Data+511)/512
	case index.Symlink:
		n.attr.Size = int64(len(e.Target))
	case index.Dir:
		n.attr.Size, n.attr.Blocks = 4096, 8
	}
	return n
}

// pastEntries lists a recorded directory as the entries of any other.
func (v *view) pastEntries(ctx context.Context, n *node) iter.Seq2[linksys.Entry, error] {
	types := map[index.Kind]linksys.Type{index.File: linksys.Regular, index.Dir: linksys.Directory, index.Symlink: linksys.Symlink}
	return func(yield func(linksys.Entry, error) bool) {
		for e, err := range v.tree.Reader().List(ctx, &n.past.entry) {
			if !yield(linksys.Entry{Entry: unixfs.Entry{Name: e.Name, Cid: e.Cid}, Type: types[e.Kind]}, err) {
				return
			}
		}
	}
}

// commitNames lists what .cafs/snapshots and .cafs/at show.
func (v *view) commitNames(dir nodeKind) ([]string, error) {
	var names []string
	last := ""
	for k, err := range v.tree.Commits() {
		if err != nil {
			return nil, err
		}
		name := k.Name
		if dir == atDir {
			// In full, or the time would be before the commit that it names.
			name = k.Time.Local().Format("2006-01-02T15:04:05.999999999")
		}
		if name != "" && name != last {
			names = append(names, name)
		}
		last = name
	}
	return names, nil
}

// xattr returns an extended attribute as it was; content by its address has
// none. Error: ENODATA.
func (v *view) xattr(ctx context.Context, id uint64, name string) ([]byte, error) {
	n, err := v.get(id)
	if err != nil {
		return nil, err
	}
	if n.past != nil {
		for _, x := range n.past.entry.Xattrs {
			if x.Name == name {
				return history.XattrValue(ctx, v.tree.Reader().Load, x)
			}
		}
	}
	return nil, syscall.ENODATA
}

// xattrNames lists what xattr answers.
func (v *view) xattrNames(id uint64) (names []string, err error) {
	n, err := v.get(id)
	if err != nil || n.past == nil {
		return nil, err
	}
	for _, x := range n.past.entry.Xattrs {
		names = append(names, x.Name)
	}
	return names, nil
}
