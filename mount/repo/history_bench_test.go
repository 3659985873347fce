package repo

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

var (
	benchFiles = flag.Int("bench-files", 20_000, "files of the tree that history is measured with")
	benchRepo  = flag.String("bench-repo", "", "repository to measure with; made, with its first commit, when it is missing")
	benchMake  = flag.Bool("bench-make", false, "make it and stop")
	benchSweep = flag.Int("bench-sweep", 10_000, "files that become garbage; the repository is used up then if it is more than 0")
	benchWarm  = flag.Bool("bench-warm", false, "look at each block's file before the sweep, so that it finds caches warm")
	benchTime  = flag.Duration("bench-beside", 4*time.Second, "how long readers and writers are measured, alone and beside collections")
)

// bench is an open repository with a tree of small files, a thousand in a
// directory, and a first commit of it, called first.
type bench struct {
	*testing.B
	ctx  context.Context
	tree *tree.Tree
	h    *History
}

func (b *bench) ok(err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

// report prints at once, too: with many files a run may be ended before its end.
func (b *bench) report(v float64, name string) {
	b.ReportMetric(v, name)
	fmt.Fprintln(os.Stderr, name, v)
}

func (b *bench) step(name string, f func()) {
	begin := time.Now()
	f()
	b.report(float64(time.Since(begin).Microseconds())/1000, name+"-ms")
}

func openBench(tb *testing.B) *bench {
	b := &bench{B: tb, ctx: context.Background()}
	path := *benchRepo
	if path == "" {
		path = filepath.Join(b.TempDir(), "repo")
	}
	r, err := Open(b.ctx, path, Options{Create: &Config{}})
	b.ok(err)
	b.Cleanup(func() { r.Close() })
	b.tree, _, err = r.OpenTree(b.ctx, TreeOptions{})
	b.ok(err)
	b.h = &History{Repo: r, Tree: b.tree}
	if _, err := b.tree.FindCommit("first"); err == nil {
		return b
	}
	b.step("create", func() {
		begin := 0
		if d, err := b.tree.Lookup(tree.RootIno, fmt.Sprint("d", (*benchFiles-1)/1000)); err == nil {
			if _, err := b.tree.Lookup(d.Ino, name(*benchFiles-1)); err == nil {
				begin = *benchFiles // it was interrupted during the commit
			}
		}
		for i := begin; i < *benchFiles; i++ {
			if i%1000 == 0 {
				_, err := b.tree.Create(tree.Cred{}, tree.RootIno, fmt.Sprint("d", i/1000), tree.Node{Kind: index.Dir, Perm: 0o755})
				b.ok(err)
			}
			a, err := b.tree.Create(tree.Cred{}, b.dir(i), name(i), tree.Node{Kind: index.File, Perm: 0o644})
			b.ok(err)
			_, err = b.tree.Write(b.ctx, a.Ino, fmt.Appendf(nil, "contents of file %d", i), 0, nil)
			b.ok(err)
			b.tree.Forget(a.Ino, 1)
		}
	})
	b.step("first-commit", func() { b.commit("first") })
	return b
}

func name(i int) string { return fmt.Sprintf("file-%d.txt", i) }

// dir is the directory of a file.
func (b *bench) dir(i int) tree.Ino { return b.ino(tree.RootIno, fmt.Sprint("d", i/1000)) }

func (b *bench) file(i int) tree.Ino { return b.ino(b.dir(i), name(i)) }

func (b *bench) ino(dir tree.Ino, name string) tree.Ino {
	a, err := b.tree.Lookup(dir, name)
	b.ok(err)
	b.tree.Forget(a.Ino, 1)
	return a.Ino
}

func (b *bench) commit(name string) tree.Kept {
	k, _, err := b.tree.Commit(b.ctx, tree.CommitOptions{Name: name, Reason: "snapshot"})
	b.ok(err)
	return k
}

func (b *bench) collect() tree.Collected {
	got, err := b.h.Collect(b.ctx, CollectArg{}, func(any) error { return nil })
	b.ok(err)
	return got
}

// BenchmarkHistory measures, once each, a commit after 100 files were changed,
// the comparison of two such commits, adopting the tree by its CID, restoring
// it, and collections.
func BenchmarkHistory(tb *testing.B) {
	b := openBench(tb)
	if *benchMake {
		return
	}
	n := *benchFiles
	id := fmt.Sprint(time.Now().UnixNano())
	change := func() {
		for i := range 100 {
			_, err := b.tree.Write(b.ctx, b.file(i*n/100), []byte(id+fmt.Sprint(rand.Uint64())), 0, nil)
			b.ok(err)
		}
	}
	change() // so that the next one finds caches warm
	b.commit("warm-" + id)
	change()
	b.step("commit-of-100", func() { b.commit("second-" + id) })
	b.step("commit-of-none", func() { b.commit("third-" + id) })
	for _, from := range []string{"first", "warm-" + id} {
		arg, err := json.Marshal(DiffArg{A: from, B: "second-" + id})
		b.ok(err)
		b.step("diff-from-"+from[:4], func() {
			n := 0
			_, err := b.h.Do(b.ctx, OpDiff, arg, func(v any) error { n++; return nil })
			b.ok(err)
		})
	}
	first, err := b.tree.FindCommit("first")
	b.ok(err)
	c, err := b.tree.LoadCommit(b.ctx, first.Cid)
	b.ok(err)
	b.step("adopt", func() {
		_, err := b.tree.Adopt(b.ctx, tree.Cred{}, c.Root.Cid, "adopted-"+id, false)
		b.ok(err)
	})
	b.step("restore", func() {
		_, err := b.tree.Restore(b.ctx, first.Cid, "/", "restored-"+id)
		b.ok(err)
	})
	for i := range 2 { // the second finds caches warm
		got := b.collect()
		b.report(float64(got.MarkTime.Microseconds())/1000, fmt.Sprintf("gc%d-mark-ms", i))
		b.report(float64(got.Pause.Microseconds())/1000, fmt.Sprintf("gc%d-pause-ms", i))
		b.report(float64(got.Marked), fmt.Sprintf("gc%d-marked", i))
		b.report(float64(got.Memory)/float64(got.Marked), fmt.Sprintf("gc%d-B/block", i))
		b.report(float64(got.SweepTime.Microseconds())/1000, fmt.Sprintf("gc%d-sweep-none-ms", i))
	}
	b.beside()
	b.sweep()
}

// sweep makes garbage and collects it.
func (b *bench) sweep() {
	n := min(*benchSweep, *benchFiles)
	if n == 0 {
		return
	}
	for d, err := range b.h.Repo.DB.Dirents(tree.RootIno, 0) {
		b.ok(err)
		if d.Name[0] != 'd' { // what was adopted has the files too
			_, err := b.tree.Restore(b.ctx, b.commit("").Cid, "d0", d.Name)
			b.ok(err)
		}
	}
	for i := range n {
		b.ok(b.tree.Unlink(b.dir(i), name(i)))
	}
	all, err := b.h.commits()
	b.ok(err)
	b.ok(b.tree.DropCommits(b.ctx, all...))
	if *benchWarm {
		_, err := b.h.Repo.Store.Total(b.ctx)
		b.ok(err)
	}
	var got tree.Collected
	for end := time.Now().Add(time.Minute); got.Garbage < int64(n)/2 && time.Now().Before(end); {
		time.Sleep(3 * time.Second) // what was replaced is removed in the background
		got = b.collect()
	}
	b.report(float64(got.Garbage), "gc-deleted")
	b.report(float64(got.Garbage)/got.SweepTime.Seconds(), "gc-deletes/s")
}

// beside measures a writer and a reader, alone and beside collections: how many
// operations they do, and how long the longest takes.
func (b *bench) beside() {
	if *benchTime == 0 {
		return
	}
	alone, gc := b.load(false), b.load(true)
	b.report(alone.rate, "alone-op/s")
	b.report(gc.rate, "beside-op/s")
	b.report(gc.rate/alone.rate, "beside/alone")
	for _, q := range []struct {
		name string
		of   float64
	}{{"p999", 0.999}, {"max", 1}} {
		b.report(alone.quantile(q.of), "alone-"+q.name+"-ms")
		b.report(gc.quantile(q.of), "beside-"+q.name+"-ms")
	}
}

type measured struct {
	rate float64 // operations of the writer in a second
	all  []time.Duration
}

func (m measured) quantile(q float64) float64 {
	return float64(m.all[min(int(q*float64(len(m.all))), len(m.all)-1)].Microseconds()) / 1000
}

func (b *bench) load(collect bool) (m measured) {
	ctx, stop := context.WithCancel(b.ctx)
	var busy sync.WaitGroup
	var mu sync.Mutex
	run := func(seed uint64, op func(*rand.Rand, int)) {
		busy.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			var took []time.Duration
			for i := 0; ctx.Err() == nil; i++ {
				begin := time.Now()
				op(r, i)
				took = append(took, time.Since(begin))
			}
			mu.Lock()
			defer mu.Unlock()
			m.all = append(m.all, took...)
			if seed == 0 {
				m.rate = float64(len(took)) / benchTime.Seconds()
			}
		})
	}
	data := make([]byte, 16<<10)
	run(0, func(r *rand.Rand, i int) {
		dir := b.dir(r.IntN(*benchFiles))
		name := fmt.Sprint("new-", i%5000)
		a, err := b.tree.Lookup(dir, name)
		if err != nil {
			a, err = b.tree.Create(tree.Cred{}, dir, name, tree.Node{Kind: index.File, Perm: 0o644})
			b.ok(err)
		}
		_, err = b.tree.Write(b.ctx, a.Ino, data, int64(r.IntN(4))<<14, nil)
		b.ok(err)
		b.tree.Forget(a.Ino, 1)
		if i%3 == 0 {
			b.ok(b.tree.Unlink(dir, name))
		}
	})
	run(1, func(r *rand.Rand, i int) {
		p := make([]byte, 4096)
		if n, err := b.tree.Read(b.ctx, b.file(r.IntN(*benchFiles)), p, 0); n == 0 {
			b.ok(err)
		}
	})
	end := time.Now().Add(*benchTime)
	for collect && time.Now().Before(end) {
		if _, err := b.tree.Collect(ctx, tree.CollectOptions{Heap: b.h.Repo.Store, Pins: b.h.pins}); err != nil {
			b.Error(err)
		}
		b.Logf("a collection ended %v before the end", time.Until(end))
	}
	time.Sleep(time.Until(end))
	took := time.Since(end) + *benchTime
	stop()
	busy.Wait()
	m.rate *= float64(*benchTime) / float64(took)
	slices.Sort(m.all)
	return m
}
