package tree_test

import (
	"flag"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
	"cafs/store/disk"
)

var (
	lengthFlag = flag.Int("length", 2, "operations in the longest sequences of TestSequences; all of 3 take an hour")
	sampleFlag = flag.Int("sample", 0, "how many of the sequences to run, drawn by -seed; 0: all")
	skipFlag   = flag.Int("skip", 0, "how many of the drawn sequences to pass over, which another run had")
)

// act is an operation of a sequence, done to the model and to the tree.
type act struct {
	name string
	do   func(w *world) (want, got error)
}

// The tree in which sequences begin: a/x is sealed, b/y published, e empty, and
// at the top are files enough for one to be left whatever is removed.
// Operations on "the file" take a/n where the sequence has made it, else a/x.
var acts = []act{
	{"create", func(w *world) (error, error) { return w.create(w.at("a"), "n", index.File) }},
	{"write", func(w *world) (error, error) { return nil, w.write(w.theFile(), 50, 100) }},
	{"write much", func(w *world) (error, error) { return nil, w.write(w.theFile(), 100, 10*chunk) }}, // too much for the index
	{"append", func(w *world) (error, error) { return nil, w.write(w.theFile(), int64(len(w.theFile().data)), 3000) }},
	{"append chunks", func(w *world) (error, error) {
		return nil, w.write(w.theFile(), int64(len(w.theFile().data)+chunk-1)/chunk*chunk, 2*chunk)
	}},
	{"truncate", func(w *world) (error, error) { return nil, w.truncate(w.theFile(), 0) }},
	{"shorten", func(w *world) (error, error) { return nil, w.truncate(w.theFile(), chunk+chunk/2) }},
	{"extend", func(w *world) (error, error) { return nil, w.truncate(w.theFile(), 5*chunk) }},
	{"allocate", func(w *world) (error, error) { return nil, w.allocate(w.theFile(), 4*chunk) }},
	{"punch", func(w *world) (error, error) { return nil, w.punch(w.theFile(), 1000, chunk) }},
	{"rename", func(w *world) (error, error) { return w.renameAt(w.theName(), "a/m", 0) }},
	{"rename to another directory", func(w *world) (error, error) { return w.renameAt(w.theName(), "b/n", 0) }},
	{"rename over", func(w *world) (error, error) { return w.renameAt(w.theName(), "b/y", 0) }},
	{"rename over, back", func(w *world) (error, error) { return w.renameAt("b/y", w.theName(), 0) }},
	{"rename directory", func(w *world) (error, error) { return w.renameAt("b", "a/b", 0) }},
	{"rename directory over", func(w *world) (error, error) { return w.renameAt("b", "e", 0) }},
	{"rename, whiteout", func(w *world) (error, error) { return w.renameAt(w.theName(), "b/n", tree.RenameWhiteout) }},
	{"exchange", func(w *world) (error, error) { return w.renameAt(w.theName(), "b/y", tree.RenameExchange) }},
	{"exchange with directory", func(w *world) (error, error) { return w.renameAt(w.theName(), "b", tree.RenameExchange) }},
	{"link", func(w *world) (error, error) { return w.link(w.theFile(), w.at("b"), "l") }},
	{"unlink", func(w *world) (error, error) { return w.unlinkAt(w.theName()) }},
	{"unlink other", func(w *world) (error, error) { return w.unlinkAt("b/y") }},
	{"mkdir", func(w *world) (error, error) { return w.create(w.at("a"), "d", index.Dir) }},
	{"rmdir", func(w *world) (error, error) { return w.root.rmdir("e"), w.tree.Rmdir(w.root.ino, "e") }},
	{"symlink", func(w *world) (error, error) { return w.create(w.at("a"), "s", index.Symlink) }},
	{"setxattr", func(w *world) (error, error) { return nil, w.setxattr(w.theFile(), "user.k", "value") }},
	{"chmod", func(w *world) (error, error) { return nil, w.chmod(w.theFile(), 0o600) }},
	{"chmod directory", func(w *world) (error, error) { return nil, w.chmod(w.at("a"), 0o700) }},
	// What happens in the background at any time.
	{"(seal)", func(w *world) (error, error) { _, err := w.tree.Seal(w.ctx, w.theFile().ino); return nil, err }},
	{"(commit tick)", func(w *world) (error, error) { return nil, w.tree.Publish(w.ctx) }},
}

// persists are the barriers that end a sequence.
var persists = []struct {
	name string
	do   func(w *world, h *states) error
}{
	{"fsync", func(w *world, h *states) error { return w.fsync(h, w.theFile()) }},
	{"fsync directory", func(w *world, h *states) error { return w.fsync(h, w.at("a")) }},
	{"sync", func(w *world, h *states) error {
		err := w.tree.Sync(w.ctx)
		h.acknowledge(w.all(func(n *node) bool { return n.kind == index.File })...)
		return err
	}},
}

func (w *world) fsync(h *states, n *node) error {
	err := w.tree.Fsync(w.ctx, n.ino)
	h.acknowledge(n)
	return err
}

// at finds a directory; one that is not there any more gives way to the root,
// so that every sequence can go on.
func (w *world) at(path string) *node {
	if n := w.find(path); n != nil && n.dir() {
		return n
	}
	return w.root
}

func (w *world) find(path string) *node {
	n := w.root
	for part := range strings.SplitSeq(path, "/") {
		if n == nil {
			return nil
		}
		n = n.entries[part]
	}
	return n
}

// theName is that of the file: what the sequence made of it, or else any other.
func (w *world) theName() string {
	for _, name := range []string{"a/n", "a/x", "a/m", "b/n", "b/y"} {
		if n := w.find(name); n != nil && n.kind == index.File {
			return name
		}
	}
	var any string
	var walk func(path string, n *node)
	walk = func(path string, n *node) {
		for _, name := range slices.Sorted(maps.Keys(n.entries)) {
			if c := n.entries[name]; c.kind == index.File && any == "" {
				any = path + name
			} else {
				walk(path+name+"/", c)
			}
		}
	}
	walk("", w.root)
	return any
}

func (w *world) theFile() *node { return w.find(w.theName()) }

// split gives the directory of a path, or the root when that is not there.
func (w *world) split(path string) (*node, string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return w.root, path
	}
	if d := w.find(path[:i]); d != nil && d.dir() {
		return d, path[i+1:]
	}
	return w.root, path[i+1:]
}

func (w *world) renameAt(from, to string, flags tree.RenameFlags) (want, got error) {
	d, name := w.split(from)
	nd, nname := w.split(to)
	return w.rename(d, name, nd, nname, flags)
}

func (w *world) unlinkAt(path string) (want, got error) {
	d, name := w.split(path)
	return d.unlink(name), w.tree.Unlink(d.ino, name)
}

// sequence is some acts and a barrier.
type sequence struct {
	acts    []act
	persist int
	seed    uint64 // of what is left to chance when the power is cut
}

func (s sequence) String() string {
	var names []string
	for _, a := range s.acts {
		names = append(names, a.name)
	}
	return strings.Join(append(names, persists[s.persist].name), ", ")
}

// sequences lists all of at most n acts, each with every barrier.
func sequences(n int) (all []sequence) {
	var extend func(acts []act)
	extend = func(before []act) {
		for _, a := range acts {
			s := append(slices.Clone(before), a)
			for p := range persists {
				all = append(all, sequence{s, p, uint64(len(all))})
			}
			if len(s) < n {
				extend(s)
			}
		}
	}
	extend(nil)
	return all
}

// TestSequences cuts the power in all short sequences of operations that end
// in a barrier: before and after every sync that reaches the disk, at other
// calls by chance, and when the barrier has returned.
func TestSequences(t *testing.T) {
	all := sequences(*lengthFlag)
	if testing.Short() {
		all = sequences(1)
	}
	if *sampleFlag > 0 {
		seed, total := *seedFlag, len(all)
		if seed == 0 {
			seed = uint64(time.Now().UnixNano())
		}
		rand.New(rand.NewPCG(seed, 0)).Shuffle(total, func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[min(*skipFlag, total):min(*skipFlag+*sampleFlag, total)]
		t.Logf("seed %d: %d of %d sequences", seed, len(all), total)
	}
	base := newBase(t)
	var cuts atomic.Int64
	spread(t, len(all), func(t *testing.T, i int) { cuts.Add(base.run(t, all[i])) })
	t.Logf("%d sequences, %d power cuts", len(all), cuts.Load())
}

// base is the tree in which sequences begin, on disk, closed.
type base struct {
	disk *disk.Mem
	root *node
}

func newBase(t *testing.T) base {
	r := openRig(t, emptyDisk(t), nil)
	defer func() { r.close(false) }()
	w := newWorld(r, 1)
	for _, name := range []string{"a", "b", "e"} {
		want, got := w.create(w.root, name, index.Dir)
		must(t, want)
		must(t, got)
	}
	for _, path := range []string{"a/x", "b/y", "k", "l"} {
		d, name := w.split(path)
		want, got := w.create(d, name, index.File)
		must(t, want)
		must(t, got)
		must(t, w.write(w.find(path), 0, 2*chunk+chunk/2))
	}
	_, err := w.tree.Seal(t.Context(), w.find("a/x").ino)
	must(t, err)
	r.close(true)
	return base{r.disk.Crash(0, 1), w.root}
}

// clone copies a model.
func (n *node) clone() *node {
	made := map[*node]*node{nil: nil}
	var copy func(n *node) *node
	copy = func(n *node) *node {
		if c, ok := made[n]; ok {
			return c
		}
		c := *n
		made[n] = &c
		c.parent, c.data, c.xattrs = copy(n.parent), slices.Clone(n.data), maps.Clone(n.xattrs)
		if n.entries != nil {
			c.entries = make(map[string]*node, len(n.entries))
		}
		for name, e := range n.entries {
			c.entries[name] = copy(e)
		}
		return &c
	}
	return copy(n)
}

func (b base) run(t *testing.T, s sequence) (cuts int64) {
	h := newStates()
	c := &crashes{h: h, disk: b.disk.Crash(0, 1), rng: rand.New(rand.NewPCG(s.seed, 3)), keeps: never}
	r := openRig(t, c.disk, c.before)
	defer func() { r.close(false) }()
	w := newWorld(r, s.seed)
	w.root = b.root.clone()
	w.published = h.replaced
	h.note(w)
	h.acknowledge(w.all(func(n *node) bool { return n.kind == index.File })...)
	c.setKeeps(atSyncs)
	for _, a := range s.acts {
		want, got := a.do(w)
		if errno(want) != errno(got) {
			t.Fatalf("%v: %s: got %v, want %v", s, a.name, got, want)
		}
		h.note(w)
	}
	must(t, persists[s.persist].do(w, h))
	c.mu.Lock()
	c.cut(0, "after the barrier")
	c.cut(0.5, "after the barrier")
	c.keeps = never
	c.mu.Unlock()
	c.check(t, s.String())
	return int64(len(c.images))
}

func (c *crashes) setKeeps(keeps func(disk.Op, *rand.Rand) []float64) {
	c.mu.Lock()
	c.keeps = keeps
	c.mu.Unlock()
}

// atSyncs cuts the power before every sync, with nothing and with some kept of
// what is not synced, and seldom at other calls.
func atSyncs(op disk.Op, rng *rand.Rand) []float64 {
	switch {
	case op.Kind == disk.OpSync || op.Kind == disk.OpSyncDir || op.Kind == disk.OpSyncFS:
		return []float64{0, 0.5}
	case op.Kind.Changes() && rng.IntN(6) == 0:
		return []float64{keepSome[rng.IntN(len(keepSome))]}
	}
	return nil
}
