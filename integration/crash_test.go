package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// history is what a file may be after a crash: each state since the last
// fsync that returned.
type history struct {
	path   string
	states []content // the oldest is the one last made durable
	dying  *dying
	// perhaps counts the states from which on an fsync covers that returned while
	// the disk was dying.
	perhaps int
}

// dying is set before the disk is stopped. A call that returns after that, in a
// power cut would not have: what it promised does not count. nil: no disk is.
type dying struct{ atomic.Bool }

func (d *dying) yet() bool { return d != nil && d.Load() }

// content is a state of a file: its bytes, nil where it is absent. A write(2)
// reaches the daemon in parts that end with a page, so that the state may also
// be one between: the pages below some offset as in bytes, what follows as in
// before.
type content struct {
	bytes, before []byte
	from, to      int // the range that the write changed; empty for other calls
}

// is says whether b can be what a crash left of c.
func (c content) is(b []byte) bool {
	if (b == nil) != (c.bytes == nil) {
		return false
	}
	if bytes.Equal(b, c.bytes) {
		return true
	}
	const page = 4096
	for k := (c.from/page + 1) * page; k < c.to; k += page {
		if len(b) == max(k, len(c.before)) && bytes.Equal(b[:k], c.bytes[:k]) && bytes.Equal(b[k:], c.before[min(k, len(c.before)):]) {
			return true
		}
	}
	return false
}

// now is the newest state.
func (h *history) now() []byte { return h.states[len(h.states)-1].bytes }

// next adds the state that the call about to be made leads to.
func (h *history) next(b []byte) { h.states = append(h.states, content{bytes: b}) }

// durable forgets all states but the newest: an fsync has returned.
func (h *history) durable() {
	if h.dying.yet() {
		h.perhaps = len(h.states) - 1
		return
	}
	h.states = h.states[len(h.states)-1:]
}

// check compares the file with its history and starts a new one with what it
// found, which a crash has made the only state.
func (h *history) check(t *testing.T) {
	t.Helper()
	got, err := os.ReadFile(h.path)
	if errors.Is(err, fs.ErrNotExist) {
		got, err = nil, nil
	} else if got == nil {
		got = []byte{}
	}
	if err != nil {
		t.Errorf("%s: %v", h.path, err)
	}
	perhaps := h.perhaps
	h.perhaps = 0
	for i := len(h.states) - 1; i >= 0; i-- {
		if h.states[i].is(got) {
			if i < perhaps {
				t.Logf("%s: an fsync that returned while the disk was being stopped did not hold", h.path)
			}
			h.states = []content{{bytes: got}}
			return
		}
	}
	sizes := make([]int, len(h.states))
	for i, s := range h.states {
		sizes[i] = len(s.bytes)
		if s.bytes == nil {
			sizes[i] = -1
		}
	}
	t.Errorf("%s: %d bytes (nil: %v) that are none of its %d possible states (sizes %v)", h.path, len(got), got == nil, len(h.states), sizes)
	h.states = []content{{bytes: got}}
}

// work changes the file at random until a call fails, as all do when the
// daemon dies.
func (h *history) work(r *rand.Rand) {
	for {
		old := h.now()
		var err error
		switch k := r.IntN(10); {
		case old == nil || k == 0: // replace, as editors save
			b := stream(r.Uint64(), r.IntN(300_000))
			tmp := h.path + ".tmp"
			if err = os.WriteFile(tmp, b, 0o644); err == nil {
				if old == nil { // a rename over nothing promises no content
					h.next([]byte{})
					h.states = append(h.states, content{b, []byte{}, 0, len(b)})
				}
				h.next(b)
				err = os.Rename(tmp, h.path)
			}
		case k == 1:
			h.next(nil)
			err = os.Remove(h.path)
		case k < 4:
			err = fsync(h.path)
			if err == nil {
				h.durable()
			}
		case k == 4:
			n := r.IntN(len(old) + 1000)
			b := append(bytes.Clone(old[:min(n, len(old))]), make([]byte, max(0, n-len(old)))...)
			h.next(b)
			err = os.Truncate(h.path, int64(n))
		default: // write somewhere, or append
			off, p := r.IntN(len(old)+1), stream(r.Uint64(), 1+r.IntN(100_000))
			if k > 7 {
				off = len(old)
			}
			b := append(bytes.Clone(old), make([]byte, max(0, off+len(p)-len(old)))...)
			copy(b[off:], p)
			h.states = append(h.states, content{b, old, off, off + len(p)})
			err = pwrite(h.path, p, int64(off))
		}
		if err != nil {
			return
		}
	}
}

func fsync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func pwrite(path string, p []byte, off int64) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	n, err := unix.Pwrite(fd, p, off)
	if err == nil && n != len(p) {
		err = fmt.Errorf("short write: %d", n)
	}
	return errors.Join(err, unix.Close(fd))
}

// names is a folder in which 0, 1, 2 … are made in order, each in one of
// several ways.
type names struct {
	dir           string
	made, durable int // how many, and how many an fsync has covered
	dying         *dying
}

func (n *names) work(r *rand.Rand) {
	for {
		var err error
		path := filepath.Join(n.dir, fmt.Sprint(n.made))
		n.made++
		switch r.IntN(4) {
		case 0:
			err = os.Mkdir(path, 0o755)
		case 1:
			err = os.Symlink("x", path)
		case 2:
			err = os.WriteFile(path, nil, 0o644)
		case 3:
			if err = os.WriteFile(n.dir+"/tmp", nil, 0o644); err == nil {
				err = os.Rename(n.dir+"/tmp", path)
			}
		}
		if err == nil && r.IntN(20) == 0 {
			if err = fsync(n.dir); err == nil && !n.dying.yet() {
				n.durable = n.made
			}
		}
		if err != nil {
			return
		}
	}
}

// check: the names there are a prefix of those made, no shorter than the
// durable part.
func (n *names) check(t *testing.T) {
	t.Helper()
	list, err := os.ReadDir(n.dir)
	if err != nil {
		t.Error(err)
		return
	}
	count := 0
	for _, e := range list {
		if e.Name() != "tmp" {
			count++
		}
	}
	for i := range count {
		if _, err := os.Lstat(filepath.Join(n.dir, fmt.Sprint(i))); err != nil {
			t.Errorf("%d of %d names are there, and they are no prefix: %v", count, n.made, err)
			break
		}
	}
	if count < n.durable || count > n.made {
		t.Errorf("%s: %d names, must be between %d (durable) and %d (made)", n.dir, count, n.durable, n.made)
	}
	_ = os.Remove(n.dir + "/tmp")
	n.made, n.durable = count, count
}

// TestCrash (X04): the daemon is killed again and again while files and names
// change. What fsync covered is there, files are in a state they had, names
// are a prefix of what was done.
func TestCrash(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{Args: []string{"--commit-interval", "100ms"}, Limit: harness.MountLimit()})
	s := seed(t)
	r := rand.New(rand.NewPCG(uint64(s), 4))
	var files []*history
	for i := range 6 {
		files = append(files, &history{path: m.Path(fmt.Sprint("f", i)), states: []content{{}}})
	}
	dir := &names{dir: mkdir(t, m.Path("names"))}
	m.Sync()
	for round := range rounds(8, 200) {
		var wg sync.WaitGroup
		for _, h := range files {
			w := rand.New(rand.NewPCG(r.Uint64(), 0))
			wg.Go(func() { h.work(w) })
		}
		w := rand.New(rand.NewPCG(r.Uint64(), 0))
		wg.Go(func() { dir.work(w) })
		time.Sleep(time.Duration(50+r.IntN(1500)) * time.Millisecond) // the moment is the point
		m.Kill()
		wg.Wait()
		m.Mount()
		for _, h := range files {
			h.check(t)
		}
		dir.check(t)
		if t.Failed() {
			t.Fatalf("round %d\n%s", round, m.LogTail())
		}
		m.Sync()
	}
	if r := m.Cafs("verify", "--data", "--repo", m.Repo); r.Code != 0 {
		t.Errorf("verify: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
}
