package tree_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

// TestReadAhead: a file that is read alone costs one block; after two files of
// a directory the others are fetched, in either order, each once.
func TestReadAhead(t *testing.T) {
	const files = 40
	for _, newest := range []bool{true, false} {
		t.Run(fmt.Sprint("newest first ", newest), func(t *testing.T) {
			r := newRig(t)
			var dirs [3][]tree.Ino
			for i := range dirs {
				d, err := r.tree.Create(tree.Cred{}, tree.RootIno, fmt.Sprint("d", i), tree.Node{Kind: index.Dir, Perm: 0o755})
				must(t, err)
				for k := range files {
					f, err := r.tree.Create(tree.Cred{}, d.Ino, fmt.Sprint("f", k), tree.Node{Kind: index.File, Perm: 0o644})
					must(t, err)
					_, err = r.tree.Write(r.ctx, f.Ino, fmt.Appendf(nil, "contents of %d", f.Ino), 0, nil)
					must(t, err)
					dirs[i] = append(dirs[i], f.Ino)
				}
				if newest {
					slices.Reverse(dirs[i])
				}
			}
			_, err := r.tree.Seal(r.ctx, tree.RootIno)
			must(t, err)
			r.reopen()
			read := func(ino tree.Ino) {
				t.Helper()
				p := make([]byte, 100)
				n, _ := r.tree.Read(r.ctx, ino, p, 0)
				if want := fmt.Sprint("contents of ", ino); string(p[:n]) != want {
					t.Errorf("read %q, want %q", p[:n], want)
				}
			}
			gets := func() int64 { return r.store.Stats().Gets }
			before := gets()
			read(dirs[0][0])
			read(dirs[1][0])
			if n := gets() - before; n != 2 {
				t.Errorf("two files of two directories cost %d blocks", n)
			}
			before = gets()
			read(dirs[2][0])
			read(dirs[2][1])
			for end := time.Now().Add(20 * time.Second); gets()-before < files; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d blocks fetched, want %d", gets()-before, files)
				}
			}
			for _, ino := range dirs[2] {
				read(ino)
			}
			if n := gets() - before; n != files {
				t.Errorf("%d files cost %d blocks", files, n)
			}
		})
	}
}
