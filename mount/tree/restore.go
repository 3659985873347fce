package tree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree/index"
)

// refUndo is the ref that has what the last restore replaced.
const refUndo = "tree/undo"

// ErrNothing: there is no restore to be undone. It is an fs.ErrNotExist.
var ErrNothing error = missing("nothing to undo")

// undoing is the value of refUndo: the state before the last restore, which put
// something at Path.
type undoing struct {
	Commit cid.Cid `json:"commit"`
	Path   string  `json:"path"`
}

// undoing reads refUndo. Errors: ErrNothing.
func (t *Tree) undoing() (u undoing, err error) {
	val, err := t.db.Ref(refUndo)
	if errors.Is(err, fs.ErrNotExist) {
		return u, ErrNothing
	}
	if err == nil {
		err = json.Unmarshal(val, &u)
	}
	return u, err
}

// Restore puts what a commit has at the path from in place of what is at to, by
// reference and at one moment, with all its attributes. Hard links to names
// outside of from become files of their own. The state before is committed
// first, so that Undo can bring it back for as long as that commit is kept.
// Errors: ErrNoCommit when c is not kept; fs.ErrNotExist.
func (t *Tree) Restore(ctx context.Context, c cid.Cid, from, to string) ([]Touched, error) {
	t.sealing.one.Lock()
	defer t.sealing.one.Unlock()
	defer t.lease()()
	touched, err := t.restore(ctx, c, from, to)
	if err != nil {
		return nil, fmt.Errorf("tree: restore %s:%s to %q: %w", c, from, to, err)
	}
	return touched, nil
}

func (t *Tree) restore(ctx context.Context, c cid.Cid, from, to string) ([]Touched, error) {
	// A kept commit is whole, and with a lease it stays so until it is in the tree.
	if err := t.isKept(c); err != nil {
		return nil, err
	}
	commit, err := t.LoadCommit(ctx, c)
	if err != nil {
		return nil, err
	}
	e, err := t.reader().Walk(ctx, &commit, from)
	if err != nil {
		return nil, err
	}
	before, _, err := t.commit(ctx, CommitOptions{Reason: "restore", Message: "before a restore to /" + strings.Trim(to, "/"), IfChanged: true})
	if err != nil {
		return nil, err
	}
	undo, err := json.Marshal(undoing{before.Cid, to})
	if err != nil {
		return nil, err
	}
	touched, err := t.put(ctx, e, commit.Links, to, true, func(b *index.Batch) { b.SetRef(refUndo, undo) })
	if err != nil {
		return nil, err
	}
	return touched, t.db.Sync(ctx)
}

// Undo takes back the last Restore, and undone again brings it back. It tells
// the path. Errors: ErrNothing.
func (t *Tree) Undo(ctx context.Context) (path string, touched []Touched, err error) {
	t.sealing.one.Lock()
	defer t.sealing.one.Unlock()
	defer t.lease()()
	u, err := t.undoing()
	if err != nil {
		return "", nil, fmt.Errorf("tree: undo: %w", err)
	}
	touched, err = t.restore(ctx, u.Commit, u.Path, u.Path)
	switch {
	case errors.Is(err, ErrNoCommit):
		return "", nil, fmt.Errorf("tree: undo: %w: the commit of what was there is not kept any more", ErrNothing)
	case errors.Is(err, fs.ErrNotExist): // there was nothing before
		touched, err = t.bringBackNothing(ctx, u)
	}
	if err != nil {
		return u.Path, nil, fmt.Errorf("tree: undo of a restore to %q: %w", u.Path, err)
	}
	return u.Path, touched, nil
}

// bringBackNothing removes what a restore put where nothing had been.
func (t *Tree) bringBackNothing(ctx context.Context, u undoing) ([]Touched, error) {
	before, _, err := t.commit(ctx, CommitOptions{Reason: "restore", Message: "before an undo at /" + strings.Trim(u.Path, "/"), IfChanged: true})
	if err != nil {
		return nil, err
	}
	undo, err := json.Marshal(undoing{before.Cid, u.Path})
	if err != nil {
		return nil, err
	}
	parts := splitPath(u.Path)
	above, err := t.walk(parts[:len(parts)-1])
	if err != nil {
		return nil, err
	}
	defer t.unpin(above)
	t.ns.Lock()
	defer t.ns.Unlock()
	name := parts[len(parts)-1]
	if err := t.noteLinks(above.ino, name); err != nil {
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
	if err := t.makeRoom(ed, p, g, name, true); err != nil {
		return nil, err
	}
	ed.SetRef(refUndo, undo)
	if err := ed.commit(); err != nil {
		return nil, err
	}
	return []Touched{{p.ino, name}}, t.db.Sync(ctx)
}
