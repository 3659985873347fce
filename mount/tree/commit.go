package tree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
	"cafs/mount/tree/seal"
)

// Refs of the index that history is kept under.
const (
	refCommit = "commit/"      // and the time and the CID -> Kept as JSON
	refHead   = "record/head"  // the last commit's CID, kept or not
	refLinks  = "record/links" // the map of link ids that the inodes' records belong to
)

// missing is an fs.ErrNotExist that says of what kind.
type missing string

func (m missing) Error() string { return string(m) }
func (m missing) Unwrap() error { return fs.ErrNotExist }

// ErrNoCommit: no kept commit has this name, time or CID. It is an fs.ErrNotExist.
var ErrNoCommit error = missing("no such snapshot or commit")

// Kept is a commit that the repository keeps.
type Kept struct {
	Cid     cid.Cid   `json:"cid"`
	Time    time.Time `json:"time"`
	Name    string    `json:"name,omitempty"` // of a snapshot; others are subject to retention
	Reason  string    `json:"reason"`         // snapshot, hourly, seal, restore
	Message string    `json:"message,omitempty"`
}

func (k *Kept) ref() string { return fmt.Sprintf("%s%016x/%s", refCommit, k.Time.UnixNano(), k.Cid) }

// CommitOptions describe a commit.
type CommitOptions struct {
	Name      string // must not be in use
	Reason    string
	Message   string
	IfChanged bool // return the last commit when nothing differs from it
}

// Commit records the tree as it is at one moment during the call, which costs
// what changed since the last commit, and keeps that. It is durable when Commit
// returns. made is false when IfChanged was set and nothing had changed.
// Errors: fs.ErrExist.
func (t *Tree) Commit(ctx context.Context, o CommitOptions) (k Kept, made bool, err error) {
	t.sealing.one.Lock()
	defer t.sealing.one.Unlock()
	defer t.lease()()
	return t.commit(ctx, o)
}

// commit is Commit for a caller that has sealing.one and a lease.
func (t *Tree) commit(ctx context.Context, o CommitOptions) (k Kept, made bool, err error) {
	if o.Name != "" {
		if _, err := t.FindCommit(o.Name); err == nil {
			return k, false, fmt.Errorf("tree: snapshot %q: %w", o.Name, fs.ErrExist)
		} else if !errors.Is(err, ErrNoCommit) {
			return k, false, err
		}
	}
	if err := t.publishAll(ctx); err != nil {
		return k, false, err
	}
	cut, err := t.beginCut(true)
	if err != nil {
		return k, false, err
	}
	defer t.record.end()
	defer cut.end()
	w := t.newCommitting(ctx, cut)
	defer w.files.end()
	if err := w.build(o); err != nil {
		return k, false, fmt.Errorf("tree: commit: %w", err)
	}
	if o.IfChanged && w.unchanged() {
		k, err := t.lastKept()
		if err == nil && k.Cid == w.commit.Parents[0] {
			return k, false, w.files.settle(ctx)
		}
		if err != nil && !errors.Is(err, ErrNoCommit) {
			return k, false, err
		}
	}
	k, err = w.enter(o)
	if err != nil {
		return k, false, fmt.Errorf("tree: commit: %w", err)
	}
	return k, true, nil
}

// Peek returns what a commit would record now, without making one.
func (t *Tree) Peek(ctx context.Context) (history.Commit, error) {
	t.sealing.one.Lock()
	defer t.sealing.one.Unlock()
	defer t.lease()()
	if err := t.publishAll(ctx); err != nil {
		return history.Commit{}, err
	}
	cut, err := t.beginCut(true)
	if err != nil {
		return history.Commit{}, err
	}
	defer t.record.end()
	defer cut.end()
	w := t.newCommitting(ctx, cut)
	defer w.files.end()
	if err := w.build(CommitOptions{}); err != nil {
		return history.Commit{}, fmt.Errorf("tree: %w", err)
	}
	return w.commit, w.files.settle(ctx)
}

// Reader reads commits, which need not be kept.
func (t *Tree) Reader() history.Reader { return t.reader() }

// committing is one commit on its way.
type committing struct {
	t      *Tree
	ctx    context.Context
	cut    *sealCut
	blocks *blockSet
	files  *fileSeals

	sealed []seal.Result
	dirs   []history.Recorded
	links  []index.LinkAt
	commit history.Commit
	head   *history.Commit // the last one; nil when there is none
}

func (t *Tree) newCommitting(ctx context.Context, cut *sealCut) *committing {
	return &committing{t: t, ctx: ctx, cut: cut, blocks: &blockSet{t: t, ctx: ctx}, files: &fileSeals{t: t, atCut: true}}
}

// build seals contents and attributes as of the cut.
func (w *committing) build(o CommitOptions) error {
	t := w.t
	s := t.sealer(w.cut, w.blocks, w.files)
	var err error
	if _, w.sealed, err = s.Dir(w.ctx, RootIno); err != nil {
		return err
	}
	r := history.Recorder{Source: w.cut.snap, Inode: w.cut.inode, Root: s.Root, Load: t.load, Emit: w.blocks.emit}
	w.commit = history.Commit{Time: time.Now(), Reason: o.Reason, Message: o.Message}
	if w.commit.Root, w.dirs, err = r.Record(w.ctx, RootIno); err != nil {
		return err
	}
	base, err := t.cidRef(refLinks)
	if err != nil {
		return err
	}
	if w.commit.Links, w.links, err = r.Links(w.ctx, base); err != nil {
		return err
	}
	head, err := t.cidRef(refHead)
	if err != nil || !head.Defined() {
		return err
	}
	w.commit.Parents = []cid.Cid{head}
	if c, err := t.LoadCommit(w.ctx, head); err == nil {
		w.head = &c
	} // else it was collected: a parent need not be kept
	return nil
}

func (w *committing) unchanged() bool {
	return w.head != nil && reflect.DeepEqual(w.commit.Root, w.head.Root) && w.commit.Links == w.head.Links
}

// enter makes the commit durable and then the index refer to it.
func (w *committing) enter(o CommitOptions) (Kept, error) {
	t := w.t
	c, err := w.commit.Encode(w.blocks.emit)
	if err != nil {
		return Kept{}, err
	}
	if err := w.blocks.flush(w.files.cids()...); err != nil {
		return Kept{}, err
	}
	if err := w.files.enter(w.ctx); err != nil {
		return Kept{}, err
	}
	k := Kept{Cid: c, Time: w.commit.Time, Name: o.Name, Reason: o.Reason, Message: o.Message}
	if t.opts.Committed != nil {
		if err := t.opts.Committed(k); err != nil {
			return Kept{}, err
		}
	}
	val, err := json.Marshal(k)
	if err != nil {
		return Kept{}, err
	}
	b := t.db.NewBatch()
	defer b.Close()
	b.SetRef(k.ref(), val)
	b.SetRef(refHead, c.Bytes())
	if w.commit.Links.Defined() {
		b.SetRef(refLinks, w.commit.Links.Bytes())
	} else {
		b.DeleteRef(refLinks)
	}
	if err := b.Commit(); err != nil {
		return Kept{}, err
	}
	if err := t.commitSeal(w.sealed, w.files.isClean); err != nil {
		return Kept{}, err
	}
	if err := w.enterRecords(); err != nil {
		return Kept{}, err
	}
	return k, t.db.Sync(w.ctx)
}

// enterRecords makes the new records those that later notes are about, children
// before parents, and takes back the notes that they have seen to.
func (w *committing) enterRecords() error {
	for _, d := range w.dirs {
		if err := w.enterRecord(d); err != nil {
			return err
		}
	}
	b := w.t.db.NewBatch()
	defer b.Close()
	for _, l := range w.links {
		if !w.t.record.linkSince(l.ID) {
			b.ClearLinkUnrecorded(l.ID)
		}
	}
	return b.Commit()
}

func (w *committing) enterRecord(d history.Recorded) error {
	t := w.t
	n, err := t.pin(d.Ino)
	if errors.Is(err, syscall.ESTALE) {
		return nil // removed meanwhile
	} else if err != nil {
		return err
	}
	defer t.unpin(n)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.rec.Nlink == 0 {
		return nil
	}
	e := t.begin()
	defer e.Close()
	since := t.record.since(d.Ino)
	for _, name := range d.Names {
		if _, again := since[name]; !again {
			e.ClearUnrecorded(d.Ino, name)
		}
	}
	if !n.rec.Record.Defined() {
		for name := range since { // noted in memory only
			e.SetUnrecorded(d.Ino, name)
		}
	}
	e.rec(n).Record = d.Record
	return e.commit()
}

// cidRef reads a ref that is a CID; undefined when there is none.
func (t *Tree) cidRef(name string) (cid.Cid, error) {
	val, err := t.db.Ref(name)
	if errors.Is(err, fs.ErrNotExist) {
		return cid.Undef, nil
	} else if err != nil {
		return cid.Undef, err
	}
	c, err := cid.Cast(val)
	if err != nil {
		return cid.Undef, fmt.Errorf("tree: ref %s: %w", name, index.ErrCorrupt)
	}
	return c, nil
}

// LoadCommit reads a commit.
func (t *Tree) LoadCommit(ctx context.Context, c cid.Cid) (history.Commit, error) {
	data, err := t.load(ctx, c)
	if err != nil {
		return history.Commit{}, fmt.Errorf("tree: commit %s: %w", c, err)
	}
	k, err := history.Decode(data)
	if err != nil {
		return k, fmt.Errorf("tree: commit %s: %w", c, err)
	}
	return k, nil
}

// Commits lists the kept commits, the oldest first.
func (t *Tree) Commits() iter.Seq2[Kept, error] { return Commits(t.db) }

// Commits lists the commits kept in an index, the oldest first.
func Commits(db interface {
	Refs(prefix string) iter.Seq2[index.Ref, error]
}) iter.Seq2[Kept, error] {
	return func(yield func(Kept, error) bool) {
		for ref, err := range db.Refs(refCommit) {
			var k Kept
			if err == nil {
				err = json.Unmarshal(ref.Value, &k)
			}
			if err != nil {
				yield(Kept{}, fmt.Errorf("tree: commits: %w", err))
				return
			}
			if !yield(k, nil) {
				return
			}
		}
	}
}

func (t *Tree) lastKept() (Kept, error) {
	last, found := Kept{}, false
	for k, err := range t.Commits() {
		if err != nil {
			return Kept{}, err
		}
		last, found = k, true
	}
	if !found {
		return Kept{}, ErrNoCommit
	}
	return last, nil
}

// timeLayouts are the ways to write a time, in local time where no zone is given.
var timeLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04"}

// FindCommit finds a kept commit by name, CID, "latest", or a time: then it is
// the last one made by then, a day, a minute and a second meaning their end. Errors: ErrNoCommit.
func (t *Tree) FindCommit(name string) (Kept, error) {
	var all []Kept
	for k, err := range t.Commits() {
		if err != nil {
			return Kept{}, err
		}
		all = append(all, k)
	}
	slices.Reverse(all)
	c, cidErr := cid.Decode(name)
	for _, k := range all {
		if k.Name == name || name == "latest" || cidErr == nil && k.Cid == c {
			return k, nil
		}
	}
	if at, ok := parseTime(name); ok {
		for _, k := range all {
			if !k.Time.After(at) {
				return k, nil
			}
		}
	}
	return Kept{}, fmt.Errorf("tree: %q: %w", name, ErrNoCommit)
}

func parseTime(text string) (time.Time, bool) {
	for _, layout := range timeLayouts {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			switch {
			case !strings.Contains(layout, "05"): // the minute's end
				at = at.Add(time.Minute - 1)
			case !strings.ContainsAny(text, ".,"): // the second's end
				at = at.Add(time.Second - 1)
			}
			return at, true
		}
	}
	if at, err := time.ParseInLocation("2006-01-02", text, time.Local); err == nil {
		return at.AddDate(0, 0, 1).Add(-1), true
	}
	return time.Time{}, false
}

// isKept tells whether a commit is kept. Errors: ErrNoCommit.
func (t *Tree) isKept(c cid.Cid) error {
	for k, err := range t.Commits() {
		if err != nil || k.Cid == c {
			return err
		}
	}
	return fmt.Errorf("tree: commit %s: %w", c, ErrNoCommit)
}

// DropCommits gives up kept commits, durably. What only they held is garbage
// then. When the one that Undo needs is among them, there is nothing to undo any
// more.
func (t *Tree) DropCommits(ctx context.Context, all ...Kept) error {
	t.sealing.one.Lock() // no restore and no undo meanwhile
	defer t.sealing.one.Unlock()
	undo, err := t.undoing()
	if err != nil && !errors.Is(err, ErrNothing) {
		return fmt.Errorf("tree: drop commits: %w", err)
	}
	if len(all) > 0 {
		t.released.Add(1)
	}
	b := t.db.NewBatch()
	defer b.Close()
	for _, k := range all {
		b.DeleteRef(k.ref())
		if err == nil && k.Cid == undo.Commit {
			b.DeleteRef(refUndo)
		}
	}
	if err := b.CommitSync(ctx); err != nil {
		return fmt.Errorf("tree: drop commits: %w", err)
	}
	return nil
}
