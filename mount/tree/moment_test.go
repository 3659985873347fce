package tree_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

// logged is a writer with a directory of its own, and what that was after each
// of its operations, which it makes one after the other.
type logged struct {
	*world
	name   string
	states []state
}

// state is what a writer's directory was from some moment of an operation on
// until some moment of the next.
type state struct {
	begun, ended time.Time // of the operation that made it
	dump         string
}

func (l *logged) work(ctx context.Context) error {
	for ctx.Err() == nil {
		begun := time.Now()
		if err := l.step(); err != nil {
			return err
		}
		l.states = append(l.states, state{begun, time.Now(), dumpModel(l.root)})
	}
	return nil
}

// TestMoment takes commits while several writers go on, with seals, publishing
// and collections beside them. A commit must have each writer's directory as it
// was after some operation, and there must be one moment at which all of them
// were so: none may have an operation that began after one was over that
// another lacks.
func TestMoment(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	r := newRig(t)
	var writers []*logged
	for i := range 3 {
		name := fmt.Sprint("w", i)
		a, err := r.tree.Create(tree.Cred{}, tree.RootIno, name, tree.Node{Kind: index.Dir, Perm: 0o755})
		must(t, err)
		own := *r // each with its own list of references
		l := &logged{world: newWorld(&own, seed+uint64(i)), name: name}
		l.root.ino = a.Ino
		now := time.Now()
		l.states = []state{{now, now, dumpModel(l.root)}}
		writers = append(writers, l)
	}
	ctx, stop := context.WithCancel(r.ctx)
	defer stop()
	var busy sync.WaitGroup
	for _, l := range writers {
		busy.Go(func() {
			if err := l.work(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	busy.Go(func() { // what goes on in the background must not matter
		for i := 0; ctx.Err() == nil; i++ {
			var err error
			switch i % 3 {
			case 0:
				err = r.tree.Publish(r.ctx)
			case 1:
				_, err = r.tree.Seal(r.ctx, writers[i%len(writers)].root.ino)
			case 2:
				_, err = r.tree.Collect(r.ctx, tree.CollectOptions{Heap: r.store})
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	type taken struct {
		k            tree.Kept
		begun, ended time.Time
	}
	var commits []taken
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		c := taken{begun: time.Now()}
		var err error
		c.k, _, err = r.tree.Commit(r.ctx, tree.CommitOptions{Reason: "snapshot"})
		must(t, err)
		c.ended = time.Now()
		commits = append(commits, c)
	}
	stop()
	busy.Wait()
	for i, c := range commits {
		if err := r.checkMoment(c.k, c.begun, c.ended, writers); err != nil {
			t.Fatalf("commit %d of %d: %v", i, len(commits), err)
		}
	}
	t.Logf("%d commits; operations: %d, %d, %d", len(commits), len(writers[0].states), len(writers[1].states), len(writers[2].states))
}

// checkMoment finds the moment of a commit. The state i of a writer can be seen
// from when its operation began until the next one ended: these spans, and that
// of the commit, must have a moment in common. A directory may have looked the
// same more than once.
func (r *rig) checkMoment(k tree.Kept, begun, ended time.Time, writers []*logged) error {
	c, err := r.tree.LoadCommit(r.ctx, k.Cid)
	must(r.t, err)
	var spans [][][2]time.Time // of each writer, those in which it looked like the commit
	for _, l := range writers {
		e, err := r.tree.Reader().Walk(r.ctx, &c, l.name)
		must(r.t, err)
		var b strings.Builder
		r.dumpEntry(&c, "", e, &b)
		var all [][2]time.Time
		for i, s := range l.states {
			if s.dump != b.String() {
				continue
			}
			until := ended
			if i+1 < len(l.states) && l.states[i+1].ended.Before(ended) {
				until = l.states[i+1].ended
			}
			if s.begun.Before(until) && begun.Before(until) && s.begun.Before(ended) {
				all = append(all, [2]time.Time{s.begun, until})
			}
		}
		if len(all) == 0 {
			return fmt.Errorf("%s was never so during it:\n%s", l.name, b.String())
		}
		spans = append(spans, all)
	}
	if !meet(begun, ended, spans) {
		return fmt.Errorf("no moment had all of this: %v", spans)
	}
	return nil
}

// meet tells whether one span of each list overlaps with from and until.
func meet(from, until time.Time, spans [][][2]time.Time) bool {
	if len(spans) == 0 {
		return true
	}
	for _, s := range spans[0] {
		a, b := from, until
		if s[0].After(a) {
			a = s[0]
		}
		if s[1].Before(b) {
			b = s[1]
		}
		if a.Before(b) && meet(a, b, spans[1:]) {
			return true
		}
	}
	return false
}
