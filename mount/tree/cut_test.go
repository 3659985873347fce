package tree_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"cafs/mount/tree"
	"cafs/mount/tree/history"
	"cafs/mount/tree/index"
)

// TestCut takes commits while one writer counts: it writes the next number to
// file after file, then sets that as permissions of file after file, and makes
// a file of that name. So a commit is a moment of the log if it has numbers that
// go down at one place, by one, in the order of the steps.
func TestCut(t *testing.T) {
	r := newRig(t)
	const files = 40
	var inos []tree.Ino
	for i := range files {
		a, err := r.tree.Create(tree.Cred{}, tree.RootIno, fmt.Sprintf("f%02d", i), tree.Node{Kind: index.File, Perm: 0o600})
		must(t, err)
		inos = append(inos, a.Ino)
	}
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		for n := uint64(1); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			for i, ino := range inos {
				// Somewhere in several chunks, so that seals have work.
				_, err := r.tree.Write(r.ctx, ino, binary.BigEndian.AppendUint64(nil, n), int64(i%3)*chunk, nil)
				must(t, err)
			}
			for _, ino := range inos {
				_, err := r.tree.Setattr(r.ctx, ino, tree.SetAttr{Mask: tree.SetMtime, Mtime: index.Timespec{Sec: int64(n)}})
				must(t, err)
			}
			a, err := r.tree.Create(tree.Cred{}, tree.RootIno, fmt.Sprintf("g%d", n), tree.Node{Kind: index.File, Perm: 0o600})
			must(t, err)
			r.tree.Forget(a.Ino, 1)
			must(t, r.tree.Unlink(tree.RootIno, fmt.Sprintf("g%d", n)))
		}
	})
	busy.Go(func() { // publishing and sealing must not matter
		for {
			select {
			case <-stop:
				return
			default:
				must(t, r.tree.Sync(r.ctx))
				_, err := r.tree.Seal(r.ctx, inos[3])
				must(t, err)
			}
		}
	})
	moments := map[uint64]bool{}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		k, _, err := r.tree.Commit(r.ctx, tree.CommitOptions{Reason: "snapshot"})
		must(t, err)
		c, err := r.tree.LoadCommit(r.ctx, k.Cid)
		must(t, err)
		written := make([]uint64, files)
		for e, err := range history.List(r.ctx, r.load, c.Root.Record) {
			must(t, err)
			var i int
			if _, err := fmt.Sscanf(e.Name, "f%d", &i); err != nil {
				continue
			}
			if b := r.content(e.Cid); len(b) >= i%3*chunk+8 {
				written[i] = binary.BigEndian.Uint64(b[i%3*chunk:])
			}
		}
		if i := slices.IndexFunc(written, func(n uint64) bool { return n != written[0] }); i > 0 {
			for j, n := range written[i:] {
				if n != written[0]-1 {
					t.Fatalf("file %d has %d after %v: no moment had that", i+j, n, written[:i+j])
				}
			}
		}
		moments[written[0]] = true
	}
	close(stop)
	busy.Wait()
	if len(moments) < 3 {
		t.Errorf("commits of %d moments only", len(moments))
	}
}

// TestRemovedDuringSeal: files that are sealed by themselves and then removed, one
// after the other, while a commit is made: it has those that were not removed
// at its moment, as they were.
func TestRemovedDuringSeal(t *testing.T) {
	r := newRig(t)
	const files = 100
	content := func(round, i int) []byte { return fmt.Appendf(nil, "%d of round %d", i, round) }
	for round := range 20 {
		name := func(i int) string { return fmt.Sprintf("r%02d-%03d", round, i) }
		var inos []tree.Ino
		for i := range files {
			a, err := r.tree.Create(tree.Cred{}, tree.RootIno, name(i), tree.Node{Kind: index.File, Perm: 0o600})
			must(t, err)
			_, err = r.tree.Write(r.ctx, a.Ino, content(round, i), 0, nil)
			must(t, err)
			inos = append(inos, a.Ino)
		}
		must(t, r.tree.Sync(r.ctx))
		var busy sync.WaitGroup
		busy.Go(func() {
			for i, ino := range inos {
				_, err := r.tree.Seal(r.ctx, ino)
				must(t, err)
				must(t, r.tree.Unlink(tree.RootIno, name(i)))
				r.tree.Forget(ino, 1)
			}
		})
		k, _, err := r.tree.Commit(r.ctx, tree.CommitOptions{Reason: "snapshot"})
		busy.Wait()
		must(t, err)
		c, err := r.tree.LoadCommit(r.ctx, k.Cid)
		must(t, err)
		there := map[string][]byte{}
		for e, err := range history.List(r.ctx, r.load, c.Root.Record) {
			must(t, err)
			there[e.Name] = r.content(e.Cid)
		}
		for i := range files {
			if got, ok := there[name(i)]; i < files-len(there) && ok || i >= files-len(there) && string(got) != string(content(round, i)) {
				t.Fatalf("round %d: %d files, and %s is %q", round, len(there), name(i), got)
			}
		}
	}
}
