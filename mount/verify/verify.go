// Package verify checks a repository: that the index agrees with itself, that
// every block that something refers to is there, that bytes in staging have
// their checksums, and, when asked to, that every block is what its hash says.
// It tells which paths what is damaged or missing belongs to, and repairs what
// a good copy can be found of.
//
// It works beside writers. What was replaced while it ran is not damage, so
// that a block counts as missing only if something refers to it in the end.
package verify

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
	"cafs/store"
	"cafs/store/disk"
)

// Pin is content that is kept although it is not in the tree.
type Pin struct {
	Cid  cid.Cid
	Name string
}

// Options of Run. Tree, DB, Store and Pins are required.
type Options struct {
	Tree  *tree.Tree
	DB    *index.DB
	Store *store.Dir
	Pins  func() iter.Seq2[Pin, error]

	Data bool // read and hash every block
	// Resume goes on with the reading where the last run was interrupted.
	Resume bool
	// State is the file that says where that was, as long as there is something
	// to resume.
	State string

	// Quarantine, when set, is where damaged blocks are moved to. Directories
	// that lack blocks are made anew from the index then, and what was moved there
	// earlier and is sound is put back.
	Quarantine disk.FS

	// Found hears of each thing that is wrong; an error ends the run.
	Found func(Finding) error
	// Progress may be nil. Interval is the time between two calls; 0 is 200 ms.
	Progress func(Report)
	Interval time.Duration
}

// Problem says what is wrong.
type Problem string

// The problems.
const (
	Damaged    Problem = "damaged"    // a block is not what its hash says
	Missing    Problem = "missing"    // a block that something refers to is not there
	Unreadable Problem = "unreadable" // the disk cannot read a block
	Unstaged   Problem = "staging"    // bytes that are not in a block yet cannot be read, or are not what was written
	Incoherent Problem = "index"      // the index contradicts itself
)

// Finding is one thing that is wrong.
type Finding struct {
	Problem Problem  `json:"problem"`
	Cid     cid.Cid  `json:"cid,omitzero"`      // of the block
	Detail  string   `json:"detail,omitempty"`  // for staging and the index: what it is
	Paths   []string `json:"paths,omitempty"`   // that need it, at most maxPaths; none: nothing does
	More    int      `json:"more,omitempty"`    // paths that are left out
	Outcome Outcome  `json:"outcome,omitempty"` // of a repair
}

// Outcome is what a repair did.
type Outcome string

// The outcomes.
const (
	Repaired    Outcome = "repaired"
	Quarantined Outcome = "quarantined" // moved aside; there is no copy of it here
	Lost        Outcome = "no copy"     // likewise, and nothing to move aside
)

// maxPaths is how many paths are told of one block.
const maxPaths = 10

// Report counts. Bytes are those of blocks.
type Report struct {
	Phase   string  `json:"phase"` // index, blocks, data, paths, repair or done
	Part    float64 `json:"part"`  // of the phase that is done, 0 to 1, where that is known
	Inodes  int64   `json:"inodes"`
	Linked  int64   `json:"linked"` // blocks that something refers to
	Blocks  int64   `json:"blocks"` // that were hashed
	Bytes   int64   `json:"bytes"`  // of them
	Wrong   int64   `json:"wrong"`  // findings
	Left    int64   `json:"left"`   // of them, those that were not repaired
	Resumed bool    `json:"resumed,omitempty"`

	Begun time.Time `json:"begun"` // of what was resumed: when that was
}

// run is one verification.
type run struct {
	Options
	mu   sync.Mutex // guards what follows
	r    Report
	said time.Time
	bad  map[string]*Finding // blocks, by multihash
}

// Run verifies. The report is of what was done until the error, if there is one.
func Run(ctx context.Context, o Options) (Report, error) {
	v := &run{Options: o, bad: map[string]*Finding{}}
	v.r.Begun = time.Now()
	if v.Interval == 0 {
		v.Interval = 200 * time.Millisecond
	}
	err := v.all(ctx)
	if err != nil {
		err = fmt.Errorf("verify: %w", err)
	}
	return v.r, err
}

func (v *run) all(ctx context.Context) error {
	snap := v.DB.Snapshot()
	defer snap.Close()
	v.phase("index")
	if err := v.index(ctx, snap); err != nil {
		return err
	}
	v.phase("blocks")
	if err := v.blocks(ctx, snap); err != nil {
		return err
	}
	if v.Data {
		v.phase("data")
		if err := v.data(ctx); err != nil {
			return err
		}
	}
	if len(v.bad) > 0 {
		v.phase("paths")
		now := v.DB.Snapshot() // what was missing may not be needed any more
		defer now.Close()
		w := &owners{run: v, snap: now}
		if err := w.find(ctx); err != nil {
			return err
		}
		if v.Quarantine != nil {
			v.phase("repair")
			if err := v.repair(ctx, w.dirs); err != nil {
				return err
			}
		}
		if err := v.tell(); err != nil {
			return err
		}
	}
	v.phase("done")
	return nil
}

// phase begins a phase.
func (v *run) phase(name string) {
	v.mu.Lock()
	v.r.Phase, v.r.Part, v.said = name, 0, time.Time{}
	v.mu.Unlock()
	v.progress(func(*Report) {})
}

// progress counts, and reports that once in a while.
func (v *run) progress(count func(*Report)) {
	v.mu.Lock()
	count(&v.r)
	now := v.r
	due := v.Progress != nil && time.Since(v.said) >= v.Interval
	if due {
		v.said = time.Now()
	}
	v.mu.Unlock()
	if due {
		v.Progress(now)
	}
}

// found tells of something that is no block.
func (v *run) found(f Finding) error {
	v.progress(func(r *Report) { r.Wrong++; r.Left++ })
	return v.Found(f)
}

// badBlock notes a block; what is known of it already stays.
func (v *run) badBlock(c cid.Cid, p Problem) {
	v.mu.Lock()
	defer v.mu.Unlock()
	key := string(c.Hash())
	if f := v.bad[key]; f == nil {
		v.bad[key] = &Finding{Problem: p, Cid: c}
	}
}

// problemOf says what an error of reading a block means.
func problemOf(err error) Problem {
	switch {
	case errors.Is(err, store.ErrCorrupt):
		return Damaged
	case errors.Is(err, store.ErrNotFound):
		return Missing
	}
	return Unreadable
}

// tell hands out the blocks that were found. One that was missing and that
// nothing refers to any more was garbage.
func (v *run) tell() error {
	for _, f := range v.bad {
		if f.Problem == Missing && len(f.Paths) == 0 && f.Outcome == "" {
			continue
		}
		v.progress(func(r *Report) {
			r.Wrong++
			if gone := f.Outcome == Quarantined && len(f.Paths) == 0; f.Outcome != Repaired && !gone {
				r.Left++
			}
		})
		if err := v.Found(*f); err != nil {
			return err
		}
	}
	return nil
}
