package tree_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cafs/mount/tree"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
	"cafs/store/disk"
)

// script is what the failing disk has to serve: every kind of operation, all
// ways in which contents reach the disk, and every barrier.
var script = []string{
	"create", "write", "fsync", "write much", "fsync", "append chunks", "(seal)", "chmod",
	"rename over", "(commit tick)", "mkdir", "append", "fsync directory", "exchange", "shorten", "sync",
	"link", "unlink", "write much", "(commit tick)", "unlink", "(reclaim)", "setxattr", "sync", "(seal all)", "symlink", "punch", "fsync",
}

// TestFailures fails the n-th call into the disk, for every n, alone or with
// all that follow, in a script of operations. An operation fails with an error
// that says so and leaves the old state or, a write, a prefix of the new one;
// what was acknowledged before or after survives a power cut; when the index
// has failed, reads go on and every change is refused.
func TestFailures(t *testing.T) {
	base := newBase(t)
	step := int64(1)
	if testing.Short() {
		step = 3
	}
	short := &disk.ShortWrite{N: 100, Err: syscall.EIO}
	for name, inject := range map[string]func(n int64) func(disk.Op) error{
		"once":        func(n int64) func(disk.Op) error { return disk.FailAt(n, syscall.EIO) },
		"from then":   func(n int64) func(disk.Op) error { return disk.FailFrom(n, syscall.EIO, changing...) },
		"short write": func(n int64) func(disk.Op) error { return disk.FailAt(n, short, disk.OpWrite) },
		"sync": func(n int64) func(disk.Op) error {
			return disk.FailAt(n, syscall.EIO, disk.OpSync, disk.OpSyncDir, disk.OpSyncFS)
		},
		"no room once":      func(n int64) func(disk.Op) error { return disk.FailAt(n, syscall.ENOSPC, changing...) },
		"no room from then": func(n int64) func(disk.Op) error { return disk.FailFrom(n, syscall.ENOSPC, changing...) },
	} {
		t.Run(name, func(t *testing.T) {
			var end, failed, readOnly atomic.Int64
			end.Store(1 << 30)
			spread(t, 100_000, func(t *testing.T, i int) {
				n := int64(i)*step + 1
				if n >= end.Load() {
					return
				}
				f := failing{t: t, what: fmt.Sprintf("%s, call %d", name, n)}
				f.run(base, inject(n))
				switch {
				case !f.hit.Load():
					end.Store(min(n, end.Load()))
				case f.db != nil && f.db.Err() != nil:
					readOnly.Add(1)
				case f.errors > 0:
					failed.Add(1)
				}
			})
			t.Logf("%d calls, in steps of %d: %d failed an operation, %d made the index read-only", end.Load()-1, step, failed.Load(), readOnly.Load())
			if failed.Load()+readOnly.Load() == 0 {
				t.Error("no failure had any effect")
			}
		})
	}
}

// changing are the calls that change the disk: a disk that refuses them can
// still be read.
var changing = []disk.OpKind{
	disk.OpCreate, disk.OpMkdir, disk.OpRemove, disk.OpRename, disk.OpLink, disk.OpWrite, disk.OpSync, disk.OpSyncDir,
	disk.OpSyncFS, disk.OpTruncate, disk.OpAllocate, disk.OpWriteOut,
}

// failing runs the script once.
type failing struct {
	*world
	t      *testing.T
	what   string
	h      *states
	hit    atomic.Bool
	failed atomic.Value // the last disk.Op that failed
	looks  atomic.Bool  // the disk does not fail while the test looks at it
	errors int
}

func (f *failing) run(base base, inject func(disk.Op) error) {
	watchdog := time.AfterFunc(time.Minute, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("%s (%+v): hangs", f.what, f.failed.Load()))
	})
	defer watchdog.Stop()
	d := base.disk.Crash(0, 1)
	r := &rig{t: f.t, ctx: context.Background(), disk: d, log: quiet, fault: func(op disk.Op) error {
		if f.looks.Load() {
			return nil
		}
		err := inject(op)
		if err != nil {
			f.hit.Store(true)
			f.failed.Store(op)
		}
		return err
	}}
	f.world = newWorld(r, 7)
	f.root = base.root.clone()
	f.h = newStates()
	f.published = f.h.replaced
	f.h.note(f.world)
	f.h.acknowledge(f.files()...)
	if err := r.tryOpen(); err != nil {
		f.errors++
		f.refused("open", err)
	} else {
		for _, name := range script {
			f.step(name)
		}
		f.compare()
		if f.db.Err() != nil {
			f.readOnly()
		}
		if err := f.tree.Close(r.ctx); err == nil {
			f.h.acknowledge(f.files()...)
		}
		r.close(false)
	}
	f.h.mu.Lock()
	m := f.h.now
	f.h.mu.Unlock()
	for seed, keep := range []float64{0, 0.5} {
		i := image{disk: d.Crash(int64(seed), keep), moment: m, why: fmt.Sprintf("power cut after the end, keeping %v", keep)}
		if reason := f.h.checkImage(f.t, i, keep == 0); reason != "" {
			f.t.Errorf("%s\n%s: %s", f.what, i.why, reason)
		}
	}
}

func (f *failing) files() []*node { return f.all(func(n *node) bool { return n.kind == index.File }) }

// step does one operation of the script, and if it fails looks at what is left.
func (f *failing) step(name string) {
	var err error
	before := f.root.clone()
	switch name {
	case "fsync":
		if err = f.tree.Fsync(f.ctx, f.theFile().ino); err == nil {
			f.h.acknowledge(f.theFile())
		}
	case "fsync directory":
		if err = f.tree.Fsync(f.ctx, f.at("a").ino); err == nil {
			f.h.acknowledge()
		}
	case "sync":
		if err = f.tree.Sync(f.ctx); err == nil {
			f.h.acknowledge(f.files()...)
		}
	case "(reclaim)":
		err = f.tree.Reclaim(f.ctx)
	case "(seal all)":
		_, err = f.tree.Seal(f.ctx, tree.RootIno)
	default:
		a := acts[slices.IndexFunc(acts, func(a act) bool { return a.name == name })]
		var want error
		want, err = a.do(f.world)
		if err == nil || errno(want) == errno(err) {
			if errno(want) != errno(err) {
				f.t.Errorf("%s: %s: got %v, want %v", f.what, name, err, want)
			}
			f.h.note(f.world)
			return
		}
	}
	if err == nil {
		return
	}
	f.errors++
	f.refused(name, err)
	f.settle(name, before)
}

// refused checks that an error is one that a failing disk gives.
func (f *failing) refused(what string, err error) {
	for _, ok := range []error{syscall.EIO, syscall.ENOSPC, index.ErrReadOnly, content.ErrLost, content.ErrDamaged, store.ErrPoisoned, store.ErrFull} {
		if errors.Is(err, ok) {
			return
		}
	}
	f.t.Errorf("%s: %s: %v", f.what, what, err)
}

// settle takes over what a failed operation left: nothing, or some of a write;
// or, when the index failed with it, perhaps all.
func (f *failing) settle(name string, before *node) {
	after := f.root
	f.h.note(f.world) // a power cut may show it if the index failed
	f.looks.Store(true)
	defer f.looks.Store(false)
	var want strings.Builder
	before.dump("", &want, true)
	got := f.dump()
	if got == want.String() {
		if f.db.Err() == nil {
			f.unnote()
		}
		f.root = before
		return
	}
	want.Reset()
	after.dump("", &want, true)
	if got == want.String() {
		return
	}
	if file := f.changedFile(before, after); file != nil {
		f.unnote()
		f.h.note(f.world)
		return
	}
	f.t.Errorf("%s: %s failed and left neither the old nor the new state:\n%s", f.what, name, difference(got, want.String()))
}

// unnote takes the last step back: it has not happened.
func (f *failing) unnote() {
	step := len(f.h.names) - 1
	f.h.names = f.h.names[:step]
	for _, h := range f.h.files {
		if k := len(h.since); k > 0 && h.since[k-1] == step {
			h.sums, h.since, h.seen = h.sums[:k-1], h.since[:k-1], nil
		}
	}
	f.h.mu.Lock()
	f.h.now.last = step
	f.h.mu.Unlock()
}

// changedFile makes the model show a prefix of a write, if that is what the
// tree shows.
func (f *failing) changedFile(before, after *node) *node {
	for _, n := range f.files() {
		a, err := f.tree.Getattr(n.ino)
		must(f.t, err)
		got := make([]byte, a.Size)
		if k, err := f.tree.Read(f.ctx, n.ino, got, 0); k != len(got) {
			f.t.Errorf("%s: read: %v", f.what, err)
		}
		if bytes.Equal(got, n.data) {
			continue
		}
		var old []byte
		w := world{root: before}
		for _, o := range w.all(func(o *node) bool { return o.ino == n.ino }) {
			old = o.data
		}
		// Some prefix of got is new, and the rest is old.
		k := 0
		for k < len(got) && k < len(n.data) && got[k] == n.data[k] {
			k++
		}
		rest := make([]byte, len(got))
		copy(rest, old)
		if bytes.Equal(got[k:], rest[k:]) {
			n.data = got
			var want strings.Builder
			after.dump("", &want, true)
			if f.dump() == want.String() {
				return n
			}
		}
	}
	return nil
}

func (f *failing) compare() {
	f.looks.Store(true)
	defer f.looks.Store(false)
	if d := f.differs(); d != "" {
		f.t.Errorf("%s: the tree differs from the model:\n%s", f.what, d)
	}
}

// readOnly checks that nothing can be changed, and that nothing is.
func (f *failing) readOnly() {
	select {
	case <-f.db.Failed():
	case <-time.After(10 * time.Second):
		f.t.Errorf("%s: nobody is told of the failure", f.what)
	}
	root := f.root
	for _, a := range acts {
		f.root = root.clone()
		want, got := a.do(f.world)
		if want == nil && !errors.Is(got, index.ErrReadOnly) && a.name != "(seal)" && a.name != "(commit tick)" {
			f.t.Errorf("%s: %s in a tree that is read-only: %v", f.what, a.name, got)
		}
	}
	f.root = root
	f.refused("sync when read-only", f.tree.Sync(f.ctx)) // the loss of a file comes first
	f.refused("fsync when read-only", f.tree.Fsync(f.ctx, f.theFile().ino))
	f.compare()
}
