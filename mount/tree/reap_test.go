package tree_test

import (
	"fmt"
	"sync"
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
