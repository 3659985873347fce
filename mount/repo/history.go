package repo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ipfs/go-cid"
	"golang.org/x/sys/unix"

	"cafs/mount/tree"
	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
)

// CommitsName is the file that lists every commit ever made, one a line: time,
// CID and reason. It is only appended to, and synced each time: what is left to
// start from when the index is lost.
const CommitsName = "commits"

// reserved is the name at the root under which a mount shows what is not in the tree.
const reserved = ".cafs"

// appendCommit adds a line to the list of commits, durably.
func (r *Repo) appendCommit(k tree.Kept) error {
	f, err := os.OpenFile(filepath.Join(r.Path, CommitsName), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("repo: commits: %w", err)
	}
	reason := k.Reason
	if k.Name != "" {
		reason += " " + fmt.Sprintf("%q", k.Name)
	}
	_, err = fmt.Fprintf(f, "%s %s %s\n", k.Time.UTC().Format(time.RFC3339Nano), k.Cid, reason)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = syncDir(r.Path)
	}
	if err != nil {
		return fmt.Errorf("repo: commits: %w", err)
	}
	return nil
}

// The operations of Do; see there for arguments and results.
const (
	OpSnapshot   = "snapshot.create" // SnapshotArg -> tree.Kept
	OpSnapshots  = "snapshot.ls"     // -> []tree.Kept
	OpSnapshotRm = "snapshot.rm"     // NamesArg
	OpLog        = "log"             // PathArg -> []LogEntry, the newest first
	OpDiff       = "diff"            // DiffArg -> []history.Difference in batches
	OpRestore    = "restore"         // RestoreArg
	OpUndo       = "undo"            // -> the path
	OpAdopt      = "cp"              // AdoptArg
	OpPin        = "pin.add"         // PinArg
	OpUnpin      = "pin.rm"          // NamesArg: CIDs or names
	OpCollect    = "gc"              // CollectArg -> tree.Collected; the same meanwhile
	OpStats      = "stats"           // PathArg -> tree.Account
	OpVerify     = "verify"          // VerifyArg -> verify.Report; VerifyEvent meanwhile
)

// Ops lists the operations of Do.
var Ops = []string{OpSnapshot, OpSnapshots, OpSnapshotRm, OpLog, OpDiff, OpRestore, OpUndo, OpAdopt, OpPin, OpUnpin, OpCollect, OpStats, OpVerify}

// The arguments of operations.
type (
	// SnapshotArg makes a commit.
	SnapshotArg struct {
		Name    string `json:"name,omitempty"` // empty: the time
		Message string `json:"message,omitempty"`
		Reason  string `json:"reason,omitempty"` // empty: snapshot
	}
	// NamesArg names several things.
	NamesArg struct {
		Names []string `json:"names"`
	}
	// PathArg is a path of the tree.
	PathArg struct {
		Path string `json:"path"`
	}
	// DiffArg compares two commits, or one and the tree.
	DiffArg struct {
		A    string `json:"a"`
		B    string `json:"b,omitempty"` // empty: the tree as it is
		Path string `json:"path,omitempty"`
	}
	// RestoreArg brings something back from a commit.
	RestoreArg struct {
		Commit string `json:"commit"`
		From   string `json:"from,omitempty"`
		To     string `json:"to"`
	}
	// AdoptArg puts content into the tree.
	AdoptArg struct {
		Cid     cid.Cid `json:"cid"`
		Path    string  `json:"path"`
		Replace bool    `json:"replace,omitempty"`
		Uid     uint32  `json:"uid"`
		Gid     uint32  `json:"gid"`
	}
	// PinArg keeps content.
	PinArg struct {
		Cid  cid.Cid `json:"cid"`
		Name string  `json:"name,omitempty"`
	}
	// CollectArg collects garbage.
	CollectArg struct {
		DryRun bool  `json:"dry_run,omitempty"`
		Keep   *Keep `json:"keep,omitempty"` // give up automatic commits first
	}
)

// LogEntry is a commit that changed a path.
type LogEntry struct {
	tree.Kept
	Path    string `json:"path"`
	Content string `json:"content,omitempty"` // CID of what is at the path; empty: nothing is
	Size    int64  `json:"size"`              // bytes of a file, or of the blocks of a directory
}

// History works on what the repository keeps of its past and does the commands
// about that, for a daemon and for commands that have the repository open.
type History struct {
	Repo *Repo
	Tree *tree.Tree
	// Touched hears of what changed in the tree; may be nil.
	Touched func([]tree.Touched)
}

// Do does one operation. progress, which may be nil, hears of results that come
// before the end.
func (h *History) Do(ctx context.Context, op string, arg json.RawMessage, progress func(any) error) (any, error) {
	if progress == nil {
		progress = func(any) error { return nil }
	}
	switch op {
	case OpSnapshot:
		return with(arg, func(a SnapshotArg) (any, error) { return h.snapshot(ctx, a) })
	case OpSnapshots:
		return h.commits()
	case OpSnapshotRm:
		return with(arg, func(a NamesArg) (any, error) { return nil, h.removeSnapshots(ctx, a.Names) })
	case OpLog:
		return with(arg, func(a PathArg) (any, error) { return h.log(ctx, a.Path) })
	case OpDiff:
		return with(arg, func(a DiffArg) (any, error) { return nil, h.diff(ctx, a, progress) })
	case OpRestore:
		return with(arg, func(a RestoreArg) (any, error) { return nil, h.restore(ctx, a) })
	case OpUndo:
		path, touched, err := h.Tree.Undo(ctx)
		h.tell(touched)
		return path, err
	case OpAdopt:
		return with(arg, func(a AdoptArg) (any, error) {
			if err := checkTarget(a.Path); err != nil {
				return nil, err
			}
			touched, err := h.Tree.Adopt(ctx, tree.Cred{Uid: a.Uid, Gid: a.Gid}, a.Cid, a.Path, a.Replace)
			h.tell(touched)
			return nil, err
		})
	case OpPin:
		return with(arg, func(a PinArg) (any, error) { return nil, h.Pin(ctx, Root{Cid: a.Cid, Name: a.Name, Time: time.Now()}) })
	case OpUnpin:
		return with(arg, func(a NamesArg) (any, error) { return nil, h.unpin(ctx, a.Names) })
	case OpCollect:
		return with(arg, func(a CollectArg) (any, error) { return h.Collect(ctx, a, progress) })
	case OpStats:
		return with(arg, func(a PathArg) (any, error) {
			return h.Tree.Account(ctx, a.Path, tree.CollectOptions{Heap: h.Repo.Store, Pins: h.pins})
		})
	case OpVerify:
		return with(arg, func(a VerifyArg) (any, error) { return h.verify(ctx, a, progress) })
	}
	return nil, fmt.Errorf("repo: %q: %w", op, unix.EOPNOTSUPP)
}

func with[T any](arg json.RawMessage, f func(T) (any, error)) (any, error) {
	var a T
	if err := json.Unmarshal(arg, &a); err != nil {
		return nil, fmt.Errorf("repo: argument: %w: %v", syscall.EINVAL, err)
	}
	return f(a)
}

func (h *History) tell(touched []tree.Touched) {
	if h.Touched != nil && len(touched) > 0 {
		h.Touched(touched)
	}
}

func (h *History) snapshot(ctx context.Context, a SnapshotArg) (tree.Kept, error) {
	if a.Reason == "" {
		a.Reason = "snapshot"
		if a.Name == "" {
			a.Name = time.Now().Format("2006-01-02T15.04.05.000")
		}
	}
	if strings.ContainsAny(a.Name, "/\x00:") || a.Name == "." || a.Name == ".." || a.Name == "latest" || len(a.Name) > 255 {
		return tree.Kept{}, Hint(fmt.Errorf("repo: snapshot %q: %w", a.Name, unix.EINVAL), "a name is that of a file, without '/' and ':', and not 'latest'")
	}
	k, _, err := h.Tree.Commit(ctx, tree.CommitOptions{Name: a.Name, Reason: a.Reason, Message: a.Message, IfChanged: a.Reason != "snapshot"})
	if errors.Is(err, fs.ErrExist) {
		err = Hint(err, "choose another name, or remove that one with 'cafs snapshot rm'")
	}
	return k, err
}

func (h *History) commits() ([]tree.Kept, error) {
	all := []tree.Kept{}
	for k, err := range h.Tree.Commits() {
		if err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	return all, nil
}

func (h *History) removeSnapshots(ctx context.Context, names []string) error {
	var gone []tree.Kept
	for _, name := range names {
		k, err := h.find(name)
		if err != nil {
			return err
		}
		gone = append(gone, k)
	}
	return h.Tree.DropCommits(ctx, gone...)
}

func (h *History) find(name string) (tree.Kept, error) {
	k, err := h.Tree.FindCommit(name)
	if errors.Is(err, tree.ErrNoCommit) {
		err = Hint(err, "'cafs snapshot ls' and 'cafs log' list them")
	}
	return k, err
}

// log lists the commits in which the path is not as in the one before.
func (h *History) log(ctx context.Context, path string) ([]LogEntry, error) {
	all, err := h.commits()
	if err != nil {
		return nil, err
	}
	out := []LogEntry{}
	before := history.Entry{}
	for _, k := range all {
		c, err := h.Tree.LoadCommit(ctx, k.Cid)
		if err != nil {
			return nil, err
		}
		e, err := h.Tree.Reader().Walk(ctx, &c, path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			e, err = history.Entry{}, nil
		}
		if err != nil {
			return nil, err
		}
		if e.Cid == before.Cid && e.Record == before.Record && e.Mtime == before.Mtime && e.Ctime == before.Ctime {
			continue
		}
		l := LogEntry{Kept: k, Path: path, Size: e.Size}
		if e.Cid.Defined() {
			l.Content = e.Cid.String()
		}
		if e.Kind == index.Dir {
			l.Size = int64(e.Tsize)
		}
		before, out = e, append(out, l)
	}
	if len(out) == 0 && len(all) > 0 {
		return nil, fmt.Errorf("repo: log %s: in no snapshot and no commit: %w", path, fs.ErrNotExist)
	}
	slices.Reverse(out)
	return out, nil
}

func (h *History) diff(ctx context.Context, a DiffArg, progress func(any) error) error {
	run := h.Repo.Store.Sweep() // nothing refers to what Peek puts
	defer run.End()
	side := func(name string) (history.Side, error) {
		var c history.Commit
		var err error
		if name == "" {
			c, err = h.Tree.Peek(ctx)
		} else {
			var k tree.Kept
			if k, err = h.find(name); err == nil {
				c, err = h.Tree.LoadCommit(ctx, k.Cid)
			}
		}
		if err != nil {
			return history.Side{}, err
		}
		e, err := h.Tree.Reader().Walk(ctx, &c, a.Path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return history.Side{}, nil
		}
		return history.Side{Entry: &e, Links: c.Links}, err
	}
	left, err := side(a.A)
	if err != nil {
		return err
	}
	right, err := side(a.B)
	if err != nil {
		return err
	}
	if left.Entry == nil && right.Entry == nil {
		return fmt.Errorf("repo: diff: %s is in neither: %w", a.Path, fs.ErrNotExist)
	}
	all, err := h.Tree.Reader().Diff(ctx, strings.TrimSuffix(a.Path, "/"), left, right)
	if err != nil {
		return err
	}
	const batch = 512
	for part := range slices.Chunk(all, batch) {
		if err := progress(part); err != nil {
			return err
		}
	}
	return nil
}

func (h *History) restore(ctx context.Context, a RestoreArg) error {
	k, err := h.find(a.Commit)
	if err != nil {
		return err
	}
	if err := checkTarget(a.To); err != nil {
		return err
	}
	if c, err := h.Tree.LoadCommit(ctx, k.Cid); err == nil {
		_, err = h.Tree.Reader().Walk(ctx, &c, a.From)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return Hint(fmt.Errorf("repo: restore: %s has no %s: %w", a.Commit, a.From, fs.ErrNotExist), "'cafs log PATH' lists the commits that have a path")
		}
	}
	touched, err := h.Tree.Restore(ctx, k.Cid, a.From, a.To)
	h.tell(touched)
	return err
}

// checkTarget refuses to put anything where a mount shows the repository itself.
func checkTarget(path string) error {
	first, _, _ := strings.Cut(strings.TrimLeft(path, "/"), "/")
	if first == reserved {
		return fmt.Errorf("repo: %s: the name %s is reserved: %w", path, reserved, unix.EINVAL)
	}
	return nil
}

// Pin keeps content that is there already, durably: all of the roots, or none
// when a DAG is not complete. Errors: linksys.ErrIncomplete.
func (h *History) Pin(ctx context.Context, roots ...Root) error {
	var cids []cid.Cid
	for _, root := range roots {
		cids = append(cids, root.Cid)
	}
	return h.Tree.Keep(ctx, func() error {
		if err := h.Repo.Sys.Complete(ctx, cids...); err != nil {
			return err
		}
		return h.Repo.AddRoot(ctx, roots...)
	}, cids...)
}

// unpin gives up roots by CID or name.
func (h *History) unpin(ctx context.Context, names []string) error {
	b := h.Repo.DB.NewBatch()
	defer b.Close()
	for _, name := range names {
		found := false
		c, cidErr := cid.Decode(name)
		for root, err := range h.Repo.Roots() {
			if err != nil {
				return err
			}
			if cidErr == nil && root.Cid == c || cidErr != nil && root.Name == name {
				found = true
				b.DeleteRef(rootPrefix + root.Cid.String())
			}
		}
		if !found {
			return Hint(fmt.Errorf("repo: no pin is called %q: %w", name, fs.ErrNotExist), "'cafs pin ls' lists them")
		}
	}
	return b.CommitSync(ctx)
}

func (h *History) pins() iter.Seq2[cid.Cid, error] {
	return func(yield func(cid.Cid, error) bool) {
		for root, err := range h.Repo.Roots() {
			if !yield(root.Cid, err) || err != nil {
				return
			}
		}
	}
}

// refCollected is the ref that has what the last collection found.
const refCollected = "gc/last"

// collected is the value of refCollected.
type collected struct {
	tree.Collected
	Ended time.Time `json:"ended"`
}

// Last is what the last collection found, be it in an earlier run, and when it
// ended; zero when there was none.
func (h *History) Last() (tree.Collected, time.Time) {
	var c collected
	val, err := h.Repo.DB.Ref(refCollected)
	if err != nil || json.Unmarshal(val, &c) != nil {
		return tree.Collected{}, time.Time{}
	}
	return c.Collected, c.Ended
}

// remember keeps what a collection found; a crash may take that.
func (h *History) remember(r tree.Collected) error {
	val, err := json.Marshal(collected{r, time.Now()})
	if err != nil {
		return err
	}
	b := h.Repo.DB.NewBatch()
	defer b.Close()
	b.SetRef(refCollected, val)
	return b.Commit()
}

// Collect collects garbage.
func (h *History) Collect(ctx context.Context, a CollectArg, progress func(any) error) (tree.Collected, error) {
	if a.Keep != nil && !a.DryRun {
		if err := h.Prune(ctx, *a.Keep); err != nil {
			return tree.Collected{}, err
		}
	}
	said := time.Now()
	r, err := h.Tree.Collect(ctx, tree.CollectOptions{Heap: h.Repo.Store, Pins: h.pins, DryRun: a.DryRun, Progress: func(r tree.Collected) {
		if time.Since(said) > time.Second {
			said = time.Now()
			_ = progress(r) // who listens may be gone; that ends ctx
		}
	}})
	if err == nil {
		err = h.remember(r)
	}
	return r, err
}
