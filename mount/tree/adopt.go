package tree

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
)

// Touched names an entry of a directory that changed without the kernel's
// asking.
type Touched struct {
	Dir  Ino
	Name string
}

// planting enters a tree of entries into the index by reference: what has no
// hard links below stays lazy, so that it costs one inode however large it is.
// Directories with hard links are entered at once, since the number of names
// of an inode, and which they are, must be known.
type planting struct {
	t      *Tree
	ctx    context.Context
	b      *index.Batch
	links  cid.Cid // the commit's
	groups map[history.LinkID]*planted
}

// planted is an inode with several names on its way.
type planted struct {
	ino   Ino
	rec   index.Inode
	names []index.Backref
}

// plant makes the inode of e under a name, whose entry the caller makes.
func (p *planting) plant(parent Ino, cookie uint64, e history.Entry) (Ino, error) {
	if e.Link != (history.LinkID{}) {
		return p.plantLink(parent, cookie, e)
	}
	ino, err := p.t.newIno()
	if err != nil {
		return 0, err
	}
	rec := inodeOf(&e)
	rec.Parent, rec.Cookie = parent, cookie
	if e.Kind == index.Dir && e.Hard > 0 {
		rec.Lazy, rec.Record = false, cid.Undef // link ids will be others
		if err := p.below(ino, &rec, &e); err != nil {
			return 0, err
		}
	}
	if err := p.t.setXattrs(p.ctx, p.b, ino, &rec, &e); err != nil {
		return 0, err
	}
	p.b.SetInode(ino, &rec)
	return ino, nil
}

// below plants the entries of a directory.
func (p *planting) below(ino Ino, rec *index.Inode, dir *history.Entry) error {
	for e, err := range p.t.reader().List(p.ctx, dir) {
		if err != nil {
			return err
		}
		rec.Next++
		d := Dirent{Name: e.Name, Kind: e.Kind, Cookie: rec.Next}
		if d.Ino, err = p.plant(ino, d.Cookie, e); err != nil {
			return err
		}
		if e.Link != (history.LinkID{}) {
			d.Kind = p.groups[e.Link].rec.Kind
		}
		if d.Kind == index.Dir {
			rec.Nlink++
		}
		p.b.SetDirent(ino, d)
	}
	return nil
}

// plantLink adds a name to an inode that may have others.
func (p *planting) plantLink(parent Ino, cookie uint64, e history.Entry) (Ino, error) {
	g := p.groups[e.Link]
	if g == nil {
		r, err := p.t.reader().Resolve(p.ctx, p.links, e)
		if err != nil {
			return 0, err
		}
		g = &planted{rec: inodeOf(&r)}
		if g.ino, err = p.t.newIno(); err != nil {
			return 0, err
		}
		if err := p.t.setXattrs(p.ctx, p.b, g.ino, &g.rec, &r); err != nil {
			return 0, err
		}
		p.groups[e.Link] = g
	}
	g.names = append(g.names, index.Backref{Parent: parent, Cookie: cookie})
	return g.ino, nil
}

// finish makes the inodes with link ids, now that all of their names are known.
func (p *planting) finish() {
	for _, g := range p.groups {
		g.rec.Parent, g.rec.Cookie = g.names[0].Parent, g.names[0].Cookie
		g.rec.Nlink = uint32(len(g.names))
		if len(g.names) > 1 {
			rand.Read(g.rec.LinkID[:])
			for _, n := range g.names {
				p.b.SetBackref(g.ino, n.Parent, n.Cookie)
			}
			p.b.SetLinkUnrecorded(g.rec.LinkID, g.ino)
			p.t.record.notedLink(g.rec.LinkID)
		}
		p.b.SetInode(g.ino, &g.rec)
	}
}

// Adopt puts content by its CID at a path of the tree, by reference: nothing is
// copied, and directories are looked into when somebody does. What is at the
// path already is replaced only if replace is set. Errors: fs.ErrExist,
// fs.ErrNotExist for the directory above, history.ErrFormat.
func (t *Tree) Adopt(ctx context.Context, cred Cred, c cid.Cid, name string, replace bool) ([]Touched, error) {
	stamp := now()
	owner := history.Entry{Uid: cred.Uid, Gid: cred.Gid, Mtime: stamp}
	var touched []Touched
	err := t.Keep(ctx, func() error {
		e, err := t.reader().Bare(ctx, &owner, path.Base(name), c)
		if err != nil {
			return err
		}
		e.Ctime, e.Btime = stamp, stamp
		touched, err = t.put(ctx, e, cid.Undef, name, replace, nil)
		return err
	}, c)
	if err != nil {
		return nil, fmt.Errorf("tree: adopt %s at %q: %w", c, name, err)
	}
	return touched, nil
}

func splitPath(name string) []string {
	var parts []string
	for _, p := range strings.Split(path.Clean("/"+name), "/") {
		if p != "" {
			parts = append(parts, p)
		}
	}
	return parts
}

// put enters e at a path, in one batch with what more adds to it. What was there
// goes into the grave.
func (t *Tree) put(ctx context.Context, e history.Entry, links cid.Cid, name string, replace bool, more func(*index.Batch)) ([]Touched, error) {
	parts := splitPath(name)
	if len(parts) == 0 {
		return t.putRoot(ctx, e, links, more)
	}
	base := parts[len(parts)-1]
	if err := checkName(base); err != nil {
		return nil, err
	}
	above, err := t.walk(parts[:len(parts)-1])
	if err != nil {
		return nil, err
	}
	defer t.unpin(above)
	t.ns.Lock()
	defer t.ns.Unlock()
	if err := t.noteLinks(above.ino, base); err != nil {
		return nil, err
	}
	g, err := t.markedDir(t.grave.ino())
	if err != nil {
		return nil, err
	}
	p, err := t.lockDir(above.ino)
	if err != nil {
		t.unpin(g)
		return nil, err
	}
	defer t.unlock(p)
	g.mu.Lock()
	defer t.unlock(g)
	ed := t.begin()
	defer ed.Close()
	if err := t.makeRoom(ed, p, g, base, replace); err != nil {
		return nil, err
	}
	pl := &planting{t: t, ctx: ctx, b: ed.Batch, links: links, groups: make(map[history.LinkID]*planted)}
	if err := t.plantName(ed, pl, p, base, e); err != nil {
		return nil, err
	}
	pl.finish()
	if more != nil {
		more(ed.Batch)
	}
	ed.rec(p).Mtime, ed.rec(p).Ctime = now(), now()
	return []Touched{{p.ino, base}}, ed.commit()
}

// makeRoom takes the entry of a name in the locked directory p away.
func (t *Tree) makeRoom(ed *edit, p, g *inode, name string, replace bool) error {
	d, err := t.db.Dirent(p.ino, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !replace {
		err = fs.ErrExist
	}
	if err != nil {
		return err
	}
	if d.Ino == g.ino || d.Ino == p.ino {
		return syscall.EINVAL
	}
	n, err := t.pin(d.Ino)
	if err != nil {
		return err
	}
	if ed.has(n) { // by another name
		t.unpin(n)
	} else {
		n.mu.Lock()
		ed.unlock = append(ed.unlock, func() { t.unlock(n) })
	}
	t.bury(ed, n, p, d, g)
	return nil
}

// plantName plants e under a name in the locked directory p.
func (t *Tree) plantName(ed *edit, pl *planting, p *inode, name string, e history.Entry) error {
	cookie := ed.rec(p).Next + 1
	ino, err := pl.plant(p.ino, cookie, e)
	if err != nil {
		return err
	}
	kind := e.Kind
	if e.Link != (history.LinkID{}) {
		kind = pl.groups[e.Link].rec.Kind
	}
	t.addName(ed, p, name, ino, kind)
	if kind == index.Dir {
		ed.rec(p).Nlink++
	}
	return nil
}

// putRoot replaces everything in the root directory, and its attributes.
func (t *Tree) putRoot(ctx context.Context, e history.Entry, links cid.Cid, more func(*index.Batch)) ([]Touched, error) {
	if e.Kind != index.Dir {
		return nil, syscall.ENOTDIR
	}
	t.ns.Lock()
	defer t.ns.Unlock()
	var old []Dirent
	for d, err := range t.db.Dirents(RootIno, 0) {
		if err != nil {
			return nil, err
		}
		old = append(old, d)
		if err := t.noteLinks(RootIno, d.Name); err != nil {
			return nil, err
		}
	}
	g, err := t.markedDir(t.grave.ino())
	if err != nil {
		return nil, err
	}
	p, err := t.lockDir(RootIno)
	if err != nil {
		t.unpin(g)
		return nil, err
	}
	defer t.unlock(p)
	g.mu.Lock()
	defer t.unlock(g)
	ed := t.begin()
	defer ed.Close()
	touched := []Touched{{RootIno, ""}}
	for _, d := range old {
		if err := t.makeRoom(ed, p, g, d.Name, true); err != nil {
			return nil, err
		}
		touched = append(touched, Touched{RootIno, d.Name})
	}
	pl := &planting{t: t, ctx: ctx, b: ed.Batch, links: links, groups: make(map[history.LinkID]*planted)}
	for child, err := range t.reader().List(ctx, &e) {
		if err == nil {
			err = t.plantName(ed, pl, p, child.Name, child)
		}
		if err != nil {
			return nil, err
		}
		touched = append(touched, Touched{RootIno, child.Name})
	}
	pl.finish()
	if err := t.dressRoot(ctx, ed, p, &e); err != nil {
		return nil, err
	}
	if more != nil {
		more(ed.Batch)
	}
	return touched, ed.commit()
}

// dressRoot gives the root directory the attributes of e.
func (t *Tree) dressRoot(ctx context.Context, ed *edit, p *inode, e *history.Entry) error {
	rec := ed.rec(p)
	rec.Perm, rec.Uid, rec.Gid = e.Perm, e.Uid, e.Gid
	rec.Atime, rec.Mtime, rec.Ctime, rec.Btime = e.Atime, e.Mtime, e.Ctime, e.Btime
	for x, err := range t.db.Xattrs(RootIno) {
		if err != nil {
			return err
		}
		ed.DeleteXattr(RootIno, x.Name)
	}
	return t.setXattrs(ctx, ed.Batch, RootIno, rec, e)
}
