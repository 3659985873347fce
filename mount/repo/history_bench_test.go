package repo

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

var benchFiles = flag.Int("bench-files", 20_000, "files of the tree that commits are measured with")
var benchStop = flag.Bool("bench-stop", false, "stop after the second commit")

// BenchmarkHistory measures, once each, with a tree of small files, a thousand
// in a directory: the first commit, one after 100 files were changed, the
// comparison of the two, adopting the tree by its CID, and collections.
func BenchmarkHistory(b *testing.B) {
	ctx := context.Background()
	path := filepath.Join(b.TempDir(), "repo")
	r, err := Open(ctx, path, Options{Create: &Config{}})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	t, _, err := r.OpenTree(ctx, TreeOptions{})
	if err != nil {
		b.Fatal(err)
	}
	h := &History{Repo: r, Tree: t}
	ok := func(err error) {
		if err != nil {
			b.Helper()
			b.Fatal(err)
		}
	}
	step := func(name string, f func()) {
		begin := time.Now()
		f()
		b.ReportMetric(float64(time.Since(begin).Microseconds())/1000, name+"-ms")
	}
	var files []tree.Ino
	step("create", func() {
		for len(files) < *benchFiles {
			d, err := t.Create(tree.Cred{}, tree.RootIno, fmt.Sprint("d", len(files)/1000), tree.Node{Kind: index.Dir, Perm: 0o755})
			ok(err)
			for range 1000 {
				a, err := t.Create(tree.Cred{}, d.Ino, fmt.Sprintf("file-%d.txt", len(files)), tree.Node{Kind: index.File, Perm: 0o644})
				ok(err)
				_, err = t.Write(ctx, a.Ino, fmt.Appendf(nil, "contents of file %d", len(files)), 0, false)
				ok(err)
				t.Forget(a.Ino, 1)
				files = append(files, a.Ino)
			}
		}
	})
	commit := func(name string) tree.Kept {
		k, _, err := t.Commit(ctx, tree.CommitOptions{Name: name, Reason: "snapshot"})
		ok(err)
		return k
	}
	var first tree.Kept
	step("first-commit", func() { first = commit("a") })
	for i := range 100 {
		_, err := t.Write(ctx, files[i*len(files)/100], []byte("changed"), 0, false)
		ok(err)
	}
	step("commit-of-100", func() { commit("b") })
	if *benchStop {
		return
	}
	step("commit-of-none", func() { commit("c") })
	arg, err := json.Marshal(DiffArg{A: "a", B: "b"})
	ok(err)
	step("diff-of-100", func() {
		n := 0
		_, err := h.Do(ctx, OpDiff, arg, func(v any) error { n++; return nil })
		ok(err)
	})
	c, err := t.LoadCommit(ctx, first.Cid)
	ok(err)
	step("adopt", func() {
		_, err := t.Adopt(ctx, tree.Cred{}, c.Root.Cid, "adopted", false)
		ok(err)
	})
	step("restore", func() {
		_, err := t.Restore(ctx, first.Cid, "/", "restored")
		ok(err)
	})
	var got tree.Collected
	step("gc-none", func() { got, err = h.Collect(ctx, CollectArg{}, func(any) error { return nil }); ok(err) })
	b.ReportMetric(float64(got.MarkTime.Microseconds())/1000, "gc-mark-ms")
	b.ReportMetric(float64(got.Marked), "gc-marked")
	b.ReportMetric(float64(got.Pause.Microseconds())/1000, "gc-pause-ms")
	for _, name := range []string{"adopted", "restored"} {
		_, err := t.Restore(ctx, first.Cid, "/d0", name)
		ok(err)
	}
	for i, ino := range files[:min(len(files), 10000)] {
		_ = ino
		ok(t.Unlink(mustLookup(b, t, fmt.Sprint("d", i/1000)), fmt.Sprintf("file-%d.txt", i)))
	}
	all, err := h.commits()
	ok(err)
	ok(t.DropCommits(ctx, all...))
	for range 3 { // the grave is emptied in the background
		time.Sleep(3 * time.Second)
	}
	step("gc-some", func() { got, err = h.Collect(ctx, CollectArg{}, func(any) error { return nil }); ok(err) })
	b.ReportMetric(float64(got.Garbage), "gc-deleted")
	b.ReportMetric(float64(got.Garbage)/got.SweepTime.Seconds(), "gc-deletes/s")
}

func mustLookup(b *testing.B, t *tree.Tree, name string) tree.Ino {
	a, err := t.Lookup(tree.RootIno, name)
	if err != nil {
		b.Fatal(err)
	}
	t.Forget(a.Ino, 1)
	return a.Ino
}
