package history

import (
	"context"
	"slices"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree/index"
)

// Kind of a difference.
type DiffKind string

// The kinds of difference.
const (
	Added    DiffKind = "added"
	Removed  DiffKind = "removed"
	Modified DiffKind = "modified" // other content
	Mode     DiffKind = "mode"     // other attributes, the same content
	Renamed  DiffKind = "renamed"  // the same content under another name
)

// Difference is a path that differs between two commits.
type Difference struct {
	Kind DiffKind `json:"kind"`
	Path string   `json:"path"`
	From string   `json:"from,omitempty"` // of what was renamed
	Dir  bool     `json:"dir,omitempty"`  // a directory, with all below it if added or removed
	Size int64    `json:"size"`           // bytes now, or before if it was removed
	Old  string   `json:"old,omitempty"`  // CID
	New  string   `json:"new,omitempty"`  // CID
}

// Side is one side of a comparison.
type Side struct {
	Entry *Entry // nil: nothing is there
	Links cid.Cid
}

// Diff lists what differs between two entries at the same path, by looking only
// at what has different CIDs. Directories that are there on one side only are
// one difference each.
func (r Reader) Diff(ctx context.Context, path string, a, b Side) ([]Difference, error) {
	d := &differ{r: r, ctx: ctx, a: a.Links, b: b.Links}
	if err := d.entries(path, a.Entry, b.Entry); err != nil {
		return nil, err
	}
	return d.renames(), nil
}

type differ struct {
	r    Reader
	ctx  context.Context
	a, b cid.Cid // maps of links
	out  []Difference
}

func (d *differ) entries(path string, a, b *Entry) error {
	var err error
	if a, err = d.resolve(d.a, a); err != nil {
		return err
	}
	if b, err = d.resolve(d.b, b); err != nil {
		return err
	}
	switch {
	case a == nil && b == nil:
		return nil
	case a == nil:
		d.add(Difference{Kind: Added, Path: path, Dir: b.Kind == index.Dir, Size: b.Size, New: text(b.Cid)})
		return nil
	case b == nil:
		d.add(Difference{Kind: Removed, Path: path, Dir: a.Kind == index.Dir, Size: a.Size, Old: text(a.Cid)})
		return nil
	}
	dirs := a.Kind == index.Dir && b.Kind == index.Dir
	diff := Difference{Path: path, Dir: dirs, Size: b.Size, Old: text(a.Cid), New: text(b.Cid)}
	switch {
	case !dirs && (a.Kind != b.Kind || a.Cid != b.Cid):
		diff.Kind = Modified
		d.add(diff)
	case !sameAttrs(a, b, !dirs): // a directory's times say only that something in it changed
		diff.Kind = Mode
		d.add(diff)
	}
	if dirs {
		return d.dirs(path, a, b)
	}
	return nil
}

func (d *differ) add(x Difference) { d.out = append(d.out, x) }

func text(c cid.Cid) string {
	if !c.Defined() {
		return ""
	}
	return c.String()
}

func (d *differ) resolve(links cid.Cid, e *Entry) (*Entry, error) {
	if e == nil || e.Link == (LinkID{}) {
		return e, nil
	}
	r, err := d.r.Resolve(d.ctx, links, *e)
	return &r, err
}

func sameAttrs(a, b *Entry, times bool) bool {
	same := a.Perm == b.Perm && a.Uid == b.Uid && a.Gid == b.Gid && a.Rdev == b.Rdev &&
		slices.EqualFunc(a.Xattrs, b.Xattrs, func(x, y Xattr) bool {
			return x.Name == y.Name && string(x.Value) == string(y.Value) && x.Block == y.Block
		})
	return same && (!times || a.Mtime == b.Mtime)
}

func (d *differ) dirs(path string, a, b *Entry) error {
	if a.Record.Defined() && b.Record.Defined() {
		if a.Record == b.Record && d.a == d.b {
			return nil
		}
		if a.Record == b.Record && a.Hard == 0 {
			return nil
		}
		return d.tries(path, a.Record, b.Record, 0)
	}
	if a.Cid == b.Cid && !a.Record.Defined() && !b.Record.Defined() {
		return nil
	}
	var left, right []Entry
	for e, err := range d.r.List(d.ctx, a) {
		if err != nil {
			return err
		}
		left = append(left, e)
	}
	for e, err := range d.r.List(d.ctx, b) {
		if err != nil {
			return err
		}
		right = append(right, e)
	}
	return d.lists(path, left, right)
}

// tries compares two maps, or parts of maps for the same slot of a level.
func (d *differ) tries(path string, a, b cid.Cid, level int) error {
	x, err := loadNode(d.ctx, d.r.Load, a)
	if err != nil {
		return err
	}
	y, err := loadNode(d.ctx, d.r.Load, b)
	if err != nil {
		return err
	}
	if len(x.children) == 0 || len(y.children) == 0 {
		left, err := d.all(x, level)
		if err != nil {
			return err
		}
		right, err := d.all(y, level)
		if err != nil {
			return err
		}
		return d.lists(path, left, right)
	}
	for s := range slots {
		i := slices.IndexFunc(x.children, func(c child) bool { return c.slot == s })
		j := slices.IndexFunc(y.children, func(c child) bool { return c.slot == s })
		var left, right []Entry
		switch {
		case i < 0 && j < 0:
			continue
		case i >= 0 && j >= 0:
			p, q := x.children[i], y.children[j]
			if p.c == q.c && (p.hard == 0 || d.a == d.b) {
				continue
			}
			if err := d.tries(path, p.c, q.c, level+1); err != nil {
				return err
			}
			continue
		case i >= 0:
			left, err = d.all(&trieNode{children: x.children[i : i+1]}, level)
		default:
			right, err = d.all(&trieNode{children: y.children[j : j+1]}, level)
		}
		if err == nil {
			err = d.lists(path, left, right)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// all lists the entries of a part of a map.
func (d *differ) all(n *trieNode, level int) ([]Entry, error) {
	entries := slices.Clone(n.entries)
	for _, c := range n.children {
		err := list(d.ctx, d.r.Load, c.c, level+1, func(e Entry) error { entries = append(entries, e); return nil })
		if err != nil {
			return nil, err
		}
	}
	return entries, nil
}

func (d *differ) lists(path string, left, right []Entry) error {
	slices.SortFunc(left, byName)
	slices.SortFunc(right, byName)
	for len(left) > 0 || len(right) > 0 {
		var a, b *Entry
		if len(right) == 0 || len(left) > 0 && left[0].Name <= right[0].Name {
			a = &left[0]
		}
		if len(left) == 0 || len(right) > 0 && right[0].Name <= left[0].Name {
			b = &right[0]
		}
		var name string
		if a != nil {
			name, left = a.Name, left[1:]
		}
		if b != nil {
			name, right = b.Name, right[1:]
		}
		if err := d.entries(path+"/"+name, a, b); err != nil {
			return err
		}
	}
	return d.ctx.Err()
}

// renames joins what was removed here and added there with the same content.
func (d *differ) renames() []Difference {
	gone := map[string][]int{}
	for i, x := range d.out {
		if x.Kind == Removed && x.Old != "" && (x.Dir || x.Size > 0) {
			gone[x.Old] = append(gone[x.Old], i)
		}
	}
	drop := map[int]bool{}
	for i, x := range d.out {
		from := gone[x.New]
		if x.Kind != Added || len(from) == 0 || d.out[from[0]].Dir != x.Dir {
			continue
		}
		gone[x.New] = from[1:]
		drop[from[0]] = true
		d.out[i].Kind, d.out[i].From, d.out[i].Old = Renamed, d.out[from[0]].Path, x.New
	}
	var out []Difference
	for i, x := range d.out {
		if !drop[i] {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b Difference) int {
		if a.Path < b.Path {
			return -1
		}
		return 1
	})
	return out
}
