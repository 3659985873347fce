package tree_test

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

// TestReap: files that lose their last users, after their names, while a seal
// takes a cut of what is not published leave nothing in the index.
func TestReap(t *testing.T) {
	r := newRig(t)
	seal := func() {
		_, err := r.tree.Seal(r.ctx, tree.RootIno)
		must(t, err)
	}
	for round := range 40 {
		var inos [100]tree.Ino
		for i := range inos {
			a, err := r.tree.Create(tree.Cred{}, tree.RootIno, fmt.Sprint(i), tree.Node{Kind: index.File, Perm: 0o600})
			must(t, err)
			inos[i] = a.Ino
		}
		seal()
		for i, ino := range inos { // which differ from what is sealed, as nobody has noted yet
			_, err := r.tree.Write(r.ctx, ino, []byte("content"), int64(round), nil)
			must(t, err)
			must(t, r.tree.Unlink(tree.RootIno, fmt.Sprint(i)))
		}
		var forgetting sync.WaitGroup
		forgetting.Go(func() {
			for _, ino := range inos {
				r.tree.Forget(ino, 1)
			}
		})
		seal()
		forgetting.Wait()
	}
	snap := r.db.Snapshot()
	defer snap.Close()
	for in, err := range snap.Inodes(0) {
		must(t, err)
		if in.Nlink == 0 {
			t.Errorf("inode %d is in the index, and has no name", in.Ino)
		}
	}
}

// TestAway: of inodes that are only referred to few stay in memory, and the
// references count all the same: a file whose last name goes lives until its
// references are given back, and then leaves nothing.
func TestAway(t *testing.T) {
	r := newRig(t) // with room for one inode
	const n = 1000
	inos := make([]tree.Ino, n)
	for i := range inos {
		a, err := r.tree.Create(tree.Cred{}, tree.RootIno, fmt.Sprint(i), tree.Node{Kind: index.File, Perm: 0o600})
		must(t, err)
		inos[i] = a.Ino
		if i%2 == 0 {
			_, err := r.tree.Lookup(tree.RootIno, fmt.Sprint(i))
			must(t, err)
		}
	}
	if got := r.tree.Stats().Inodes; got > n/10 {
		t.Errorf("%d of %d inodes are in memory", got, n)
	}
	for i, ino := range inos {
		must(t, r.tree.Unlink(tree.RootIno, fmt.Sprint(i)))
		if i%2 == 0 {
			r.tree.Forget(ino, 1)
		}
		_, err := r.tree.Write(r.ctx, ino, []byte("content"), 0, nil)
		must(t, err)
	}
	for _, ino := range inos {
		if a, err := r.tree.Getattr(ino); err != nil || a.Size != 7 || a.Nlink != 0 {
			t.Fatalf("%+v, %v", a, err)
		}
		r.tree.Forget(ino, 1)
		if _, err := r.tree.Getattr(ino); !errors.Is(err, syscall.ESTALE) {
			t.Fatalf("after the last reference: %v", err)
		}
	}
	if got := r.tree.Stats().Inodes; got > 1 {
		t.Errorf("%d inodes are in memory at the end", got)
	}
}

// TestSweepBeside: the sweep of what an unclean end left behind, which goes on
// in the background, meets files that are removed meanwhile: at no moment, at which
// the power may go, has the index an inode without a name that it would not sweep.
func TestSweepBeside(t *testing.T) {
	r := newRig(t)
	done := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		defer close(done)
		for range 120 {
			var all []tree.Forgotten // together, so that it takes a while
			for i := range 200 {
				a, err := r.tree.Create(tree.Cred{}, tree.RootIno, fmt.Sprint(i), tree.Node{Kind: index.File, Perm: 0o600})
				if err == nil {
					err = r.tree.Unlink(tree.RootIno, fmt.Sprint(i))
				}
				if err != nil {
					t.Error(err)
					return
				}
				all = append(all, tree.Forgotten{Ino: a.Ino, N: 1})
			}
			r.tree.ForgetAll(all)
		}
	})
	others.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if err := r.tree.SweepOrphans(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if reason := unsound(r); reason != "" {
			t.Error(reason)
			break
		}
	}
	others.Wait()
}
