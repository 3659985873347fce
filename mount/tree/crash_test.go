package tree_test

import (
	"bytes"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

var crashesFlag = flag.Int("crashes", 60, "histories that end in a power cut")

// history is what a crash may leave: the namespace after every step since the
// last barrier, and the contents that each file had.
type history struct {
	names   []string // dumps without contents, by step
	barrier int      // no namespace older than this step may come back
	files   map[tree.Ino]*fileHistory
}

// fileHistory has the states of a file's contents and the steps at which they
// began to be there; and the steps at which what was there was published.
type fileHistory struct {
	sums      [][]byte
	since     []int
	published []int
}

func (h *history) note(w *world) {
	step := len(h.names)
	var b strings.Builder
	w.root.dump("", &b, false)
	h.names = append(h.names, b.String())
	for _, n := range w.all(func(n *node) bool { return n.kind == index.File }) {
		f := h.files[n.ino]
		if f == nil {
			f = &fileHistory{}
			h.files[n.ino] = f
		}
		s := sum(n.data)
		if k := len(f.sums); k == 0 || !bytes.Equal(f.sums[k-1], s) {
			f.sums, f.since = append(f.sums, s), append(f.since, step)
		}
	}
}

// allows reports whether the file may have these contents in a namespace as of
// step: those of some moment, no older than the last publication up to step.
func (f *fileHistory) allows(s []byte, step int) bool {
	oldest := 0
	for _, p := range f.published {
		if p <= step {
			oldest = p
		}
	}
	for i := range f.sums {
		gone := i+1 < len(f.sums) && f.since[i+1] <= oldest
		if !gone && bytes.Equal(f.sums[i], s) {
			return true
		}
	}
	return false
}

// TestCrash cuts the power at the end of random histories. What comes back is
// the namespace of one moment, no older than the last barrier, with contents
// that each file had, no older than when they were last made durable or moved
// over an existing name (DESIGN 6, promises 2 and 3).
func TestCrash(t *testing.T) {
	first := *seedFlag
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	for i := range *crashesFlag {
		seed := first + uint64(i)
		if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { crashOnce(t, seed) }) {
			return
		}
	}
}

func crashOnce(t *testing.T, seed uint64) {
	r := newRig(t)
	w := newWorld(r, seed)
	h := &history{files: map[tree.Ino]*fileHistory{}}
	h.note(w)
	w.published = func(n *node) {
		if f := h.files[n.ino]; f != nil {
			f.published = append(f.published, len(h.names))
		}
	}
	for range 20 + w.rng.IntN(120) {
		if err := w.step(); err != nil {
			t.Fatal(err)
		}
		h.note(w)
		w.barrier(t, h)
	}
	// The clone is taken first: closing writes.
	crashed := r.disk.Crash(int64(seed), []float64{0, 0.1, 0.5, 0.9, 1}[w.rng.IntN(5)])
	r.close(false)
	r.disk = crashed
	r.open()
	check(t, r, h)
	// What came back must also be sound for what comes next.
	if _, err := r.tree.Seal(t.Context(), tree.RootIno); err != nil {
		t.Errorf("seal after the crash: %v", err)
	}
	r.reopen()
	check(t, r, h)
}

// barrier makes things durable now and then, and notes what that promises.
func (w *world) barrier(t *testing.T, h *history) {
	step := len(h.names) - 1
	switch w.rng.IntN(12) {
	case 0:
		must(t, w.tree.Sync(t.Context()))
		h.barrier = step
		for _, n := range w.all(func(n *node) bool { return n.kind == index.File }) {
			h.files[n.ino].published = append(h.files[n.ino].published, step)
		}
	case 1:
		n := w.pick(0)
		must(t, w.tree.Fsync(t.Context(), n.ino))
		h.barrier = step
		if f := h.files[n.ino]; f != nil {
			f.published = append(f.published, step)
		}
	case 2:
		_, err := w.tree.Seal(t.Context(), w.pick(index.Dir).ino)
		must(t, err)
	}
}

func check(t *testing.T, r *rig, h *history) {
	t.Helper()
	sums := map[tree.Ino][]byte{}
	var b strings.Builder
	r.dumpNode("", tree.RootIno, &b, func(ino tree.Ino, data []byte) { sums[ino] = sum(data) })
	got := b.String()
	reason := "no moment since the last barrier had this namespace"
	for step := len(h.names) - 1; step >= h.barrier; step-- {
		if h.names[step] != got {
			continue
		}
		reason = ""
		for ino, s := range sums {
			if f := h.files[ino]; f == nil || !f.allows(s, step) {
				reason = fmt.Sprintf("file %d has contents that it did not have, or that are older than promised (step %d)", ino, step)
			}
		}
		if reason == "" {
			return
		}
	}
	t.Errorf("%s:\n%s", reason, difference(got, h.names[len(h.names)-1]))
}
