package tree_test

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
	"cafs/store/disk"
)

// TestFull fills the disk, first with the tree's own contents and then, to the
// last byte, with somebody else's. Writing and creating fail with ENOSPC, at
// once and not in an fsync; deleting, truncating, reading and syncing work; and
// when there is room again, so does writing (DESIGN 6, promise 5).
func TestFull(t *testing.T) {
	d := emptyDisk(t)
	d.SetCapacity(64 << 20)
	h := newStates()
	r := &rig{t: t, ctx: t.Context(), disk: d, log: quiet, ballast: true, close: func(bool) {}}
	r.open()
	defer func() { r.close(false) }()
	w := newWorld(r, 1)
	h.note(w)

	eat(t, d, 8<<20)
	n := fill(t, w)
	h.note(w)
	noErr(t, "sync", w.tree.Sync(t.Context()))
	h.acknowledge(w.all(func(n *node) bool { return n.kind == index.File })...)
	eat(t, d, 64<<20)

	wantFull(t, "write", w.write(w.root.entries["f0"].clone(), 1, 1))
	_, err := w.tree.Create(tree.Cred{}, tree.RootIno, "more", tree.Node{Kind: index.File})
	wantFull(t, "create", err)
	wantFull(t, "setxattr", w.tree.Setxattr(w.root.entries["f0"].ino, "user.x", []byte("x"), 0, false))
	for i := range n {
		name := fmt.Sprintf("f%d", i)
		f := w.root.entries[name]
		if i%10 == 0 { // some are kept, some of them empty
			if i%20 == 0 {
				noErr(t, "truncate", w.truncate(f, 0))
			}
		} else {
			noErr(t, "unlink", w.root.unlink(name))
			noErr(t, "unlink", w.tree.Unlink(tree.RootIno, name))
		}
		h.note(w)
		noErr(t, "fsync", w.fsync(h, w.root))
	}
	noErr(t, "index", w.db.Err())
	if d := w.differs(); d != "" {
		t.Errorf("the tree differs from the model:\n%s", d)
	}
	noErr(t, "remove", d.Remove("others"))
	noErr(t, "reclaim", w.tree.Reclaim(t.Context()))
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		_, err := w.tree.Setattr(t.Context(), tree.RootIno, tree.SetAttr{Mask: tree.SetPerm, Perm: 0o755})
		noErr(t, "chmod", err)
		if err = w.write(w.root.entries["f0"], 1, chunk); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with room again: %v", err)
		}
	}
	h.note(w)
	noErr(t, "sync", w.tree.Sync(t.Context()))
	h.acknowledge(w.all(func(n *node) bool { return n.kind == index.File })...)
	if d := w.differs(); d != "" {
		t.Errorf("the tree differs from the model:\n%s", d)
	}
	if _, err := d.Stat("staging/ballast"); err != nil {
		t.Errorf("the ballast was not made again: %v", err)
	}
	i := image{disk: d.Crash(1, 0), moment: h.now, why: "at the end"}
	i.disk.SetCapacity(0)
	if reason := h.checkImage(t, i, true); reason != "" {
		t.Error(reason)
	}
}

// fill writes files, in ways that go to staging and to blocks, until there is
// no room, and tells how many it made.
func fill(t *testing.T, w *world) int {
	for i := range 10_000 {
		name := fmt.Sprintf("f%d", i)
		want, err := w.create(w.root, name, index.File)
		noErr(t, "create", want)
		if err == nil {
			f := w.root.entries[name]
			before := f.data
			if err = w.write(f, int64(i%2)*100, 40*chunk); err == nil {
				continue
			}
			f.data = before
			a, err := w.tree.Getattr(f.ino)
			noErr(t, "getattr", err)
			if a.Size != 0 {
				t.Errorf("a write of one piece failed and left %d bytes", a.Size)
			}
			i++
		} else {
			delete(w.root.entries, name)
		}
		wantFull(t, "write", err)
		if i < 50 {
			t.Errorf("full after %d files", i)
		}
		return i
	}
	t.Fatal("the disk does not fill")
	return 0
}

// TestFullAndFailed: when the index cannot be written, every change says so, also
// on a disk that is full.
func TestFullAndFailed(t *testing.T) {
	d := emptyDisk(t)
	d.SetCapacity(64 << 20)
	var dead atomic.Bool
	r := &rig{t: t, ctx: t.Context(), disk: d, log: quiet, close: func(bool) {}, fault: func(op disk.Op) error {
		if dead.Load() && op.Kind.Changes() {
			return syscall.EIO
		}
		return nil
	}}
	r.open()
	defer func() { r.close(false) }()
	a, err := r.tree.Create(tree.Cred{}, tree.RootIno, "f", tree.Node{Kind: index.File, Perm: 0o600})
	must(t, err)
	eat(t, d, 64<<20)
	change := map[string]func() error{
		"create": func() error {
			_, err := r.tree.Create(tree.Cred{}, tree.RootIno, "g", tree.Node{Kind: index.File})
			return err
		},
		"write": func() error {
			_, err := r.tree.Write(t.Context(), a.Ino, []byte("x"), 0, nil)
			return err
		},
		"setxattr": func() error { return r.tree.Setxattr(a.Ino, "user.x", []byte("x"), 0, false) },
	}
	for name, do := range change {
		wantFull(t, name, do())
	}
	dead.Store(true)
	if err := r.tree.Fsync(t.Context(), tree.RootIno); err == nil {
		t.Fatal("fsync over a dead disk succeeds")
	}
	for name, do := range change {
		if err := do(); !errors.Is(err, index.ErrReadOnly) {
			t.Errorf("%s with a failed index, on a full disk: %v", name, err)
		}
	}
}

// eat makes somebody else's file grow to a size, or take all the room there is.
func eat(t *testing.T, d *disk.Mem, size int64) {
	f, err := d.OpenFile("others", os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	defer f.Close()
	page := make([]byte, 4096)
	for off := int64(0); off < size; off += int64(len(page)) {
		if _, err := f.WriteAt(page, off); err != nil {
			wantFull(t, "eating", err)
			return
		}
	}
}

func noErr(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantFull(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%s on a full disk: %v", what, err)
	}
}
