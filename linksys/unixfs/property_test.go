package unixfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"

	"github.com/ipfs/go-cid"
)

func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}

func wantErr(t *testing.T, want error, f func() error) {
	t.Helper()
	if err := f(); !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

func runs(list []unixfs.Run) iter.Seq2[unixfs.Run, error] {
	return func(yield func(unixfs.Run, error) bool) {
		for _, r := range list {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// edit changes a model file at random and returns the new content with the
// chunks that were touched.
func edit(rnd *rand.Rand, p unixfs.Profile, old []byte) (data []byte, touched map[int64]bool) {
	data, touched = bytes.Clone(old), map[int64]bool{}
	cut := int64(len(old)) // what lies behind the shortest length is no longer base's
	for range 1 + rnd.IntN(3) {
		off := rnd.Int64N(int64(len(data)) + 3*p.ChunkSize)
		switch n := rnd.Int64N(4 * p.ChunkSize); rnd.IntN(4) {
		case 0: // truncate, or grow by zeros
			if off > int64(len(data)) {
				data = append(data, make([]byte, off-int64(len(data)))...)
			}
			data = data[:off]
			cut = min(cut, off)
		case 1: // a long range of one value, which becomes runs
			n *= 1 + rnd.Int64N(40)
			fallthrough
		default:
			if end := off + n; end > int64(len(data)) {
				data = append(data, make([]byte, end-int64(len(data)))...)
			}
			value := byte(rnd.IntN(3))
			for i := off; i < off+n; i++ {
				data[i] = value
				touched[i/p.ChunkSize] = true
			}
		}
	}
	for i := cut; i < min(int64(len(data)), int64(len(old))); i++ {
		touched[i/p.ChunkSize] = true
	}
	return data, touched
}

// changedRuns makes the runs for EditFile, equal neighbours joined.
func changedRuns(t *testing.T, p unixfs.Profile, data []byte, touched map[int64]bool, store blocks) (list []unixfs.Run) {
	for i := int64(0); i*p.ChunkSize < int64(len(data)); i++ {
		if !touched[i] {
			continue
		}
		chunk := data[i*p.ChunkSize : min((i+1)*p.ChunkSize, int64(len(data)))]
		b, err := p.Leaf(chunk)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.emit(b); err != nil {
			t.Fatal(err)
		}
		leaf := unixfs.LeafRoot(b, len(chunk))
		if n := len(list) - 1; n >= 0 && list[n].Leaf == leaf && list[n].First+list[n].Count == i {
			list[n].Count++
			continue
		}
		list = append(list, unixfs.Run{First: i, Count: 1, Leaf: leaf})
	}
	return list
}

// TestEditsEqualRebuilds: whatever the sequence of writes, truncations and holes,
// the file is the one built from its bytes at once, and complete in the store.
func TestEditsEqualRebuilds(t *testing.T) {
	rnd := random(t)
	for range 300 {
		p := small(rnd)
		store := blocks{}
		var data []byte
		var base unixfs.Root
		for range 20 {
			old := data
			var touched map[int64]bool
			data, touched = edit(rnd, p, old)
			list := changedRuns(t, p, data, touched, store)
			got, err := p.EditFile(t.Context(), store.load, base.Cid, uint64(len(data)), runs(list), store.emit)
			if err != nil {
				t.Fatalf("%v: from %d to %d bytes, runs %+v: %v", p, len(old), len(data), list, err)
			}
			want, err := p.BuildFile(t.Context(), bytes.NewReader(data), discard)
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Fatalf("%v: from %d to %d bytes, runs %+v:\n got %+v\nwant %+v", p, len(old), len(data), list, got, want)
			}
			if !bytes.Equal(readFile(t, store, got), data) {
				t.Fatal("other bytes")
			}
			base = got
			if rnd.IntN(30) == 0 {
				base = unixfs.Root{}
				data = nil
			}
		}
	}
}

// TestDirEditsEqualRebuilds: the same for directories, across the limit both ways.
func TestDirEditsEqualRebuilds(t *testing.T) {
	rnd := random(t)
	crossings := map[[2]unixfs.Type]int{}
	collided, twins := 0, linktest.Colliding(rnd, 6)
	for range 150 {
		p := small(rnd)
		store := blocks{}
		model := map[string]unixfs.Entry{}
		var base unixfs.Root
		var last unixfs.Type
		for range 40 {
			var changes []unixfs.Change
			grow := rnd.IntN(2)
			for range rnd.IntN(12) {
				i := rnd.IntN(40)
				e, _ := child(t, rnd, i)
				if i < len(twins) {
					e.Name = twins[i]
				}
				c := unixfs.Change{Name: e.Name, Set: rnd.IntN(3) <= grow, Entry: e}
				for name := range model {
					if rnd.IntN(2) == 0 {
						c.Name, c.Entry.Name = name, ""
					}
					break
				}
				changes = append(changes, c)
				if delete(model, c.Name); c.Set {
					e.Name = c.Name
					model[c.Name] = e
				}
			}
			from := base
			if rnd.IntN(2) == 0 {
				from.Size = 0 // unknown
			}
			got, err := p.EditDirSized(t.Context(), store.load, from, changes, store.emit)
			if err != nil {
				t.Fatal(err)
			}
			var entries []unixfs.Entry
			for _, e := range model {
				entries = append(entries, e)
			}
			want, err := p.BuildDir(t.Context(), seq(entries...), discard)
			if err != nil {
				t.Fatal(err)
			}
			if got.Size == 0 {
				got.Size = want.Size // may be unknown then
			}
			if got != want {
				t.Fatalf("%v: %+v after %d changes, want %+v", p, got, len(changes), want)
			}
			now := checkDir(t, store, got, entries)
			if model[twins[0]].Cid.Defined() && model[twins[1]].Cid.Defined() && now == unixfs.HAMT {
				collided++
			}
			crossings[[2]unixfs.Type{last, now}]++
			base, last = got, now
		}
	}
	if collided < 10 {
		t.Errorf("only %d sharded directories with names of one hash", collided)
	}
	if up, down := crossings[[2]unixfs.Type{unixfs.Dir, unixfs.HAMT}], crossings[[2]unixfs.Type{unixfs.HAMT, unixfs.Dir}]; up < 20 || down < 20 {
		t.Errorf("crossed the limit only %d times up, %d times down", up, down)
	}
}

// counting counts loads, and refuses those of leaves.
func (s blocks) counting(n *int) unixfs.Load {
	return func(ctx context.Context, c cid.Cid) ([]byte, error) {
		*n++
		if c.Type() == cid.Raw {
			return nil, fmt.Errorf("loads leaf %s", c)
		}
		return s.load(ctx, c)
	}
}

// TestSparse: the largest file there is costs one node per level and those on
// its right edge; changing one chunk of it costs one path.
func TestSparse(t *testing.T) {
	p, store := unixfs.V1_2025, blocks{}
	root, err := p.EditFile(t.Context(), nil, cid.Undef, math.MaxInt64, nil, store.emit)
	if err != nil {
		t.Fatal(err)
	}
	fastest := time.Hour
	for range 100 {
		start := time.Now()
		again, err := p.EditFile(t.Context(), nil, cid.Undef, math.MaxInt64, nil, discard)
		if err != nil || again != root {
			t.Fatalf("again: %+v, %v; first it was %+v", again, err, root)
		}
		fastest = min(fastest, time.Since(start))
	}
	t.Logf("8 EiB: %s in %v, %d blocks", root.Cid, fastest, len(store))
	if len(store) > 2+2*5 || root.Size != math.MaxInt64 {
		t.Errorf("%d blocks, %+v", len(store), root)
	}
	for _, chunk := range []int64{0, 1 << 20, 1<<43 - 2} {
		leaf, err := p.Leaf(bytes.Repeat([]byte{1}, int(p.ChunkSize)))
		if err != nil {
			t.Fatal(err)
		}
		list := []unixfs.Run{{First: chunk, Count: 1, Leaf: unixfs.LeafRoot(leaf, len(leaf.Data))}}
		loads, emitted := 0, 0
		count := func(b unixfs.Block) error { emitted++; return store.emit(b) }
		edited, err := p.EditFile(t.Context(), store.counting(&loads), root.Cid, root.Size, runs(list), count)
		if err != nil {
			t.Fatal(err)
		}
		if loads > 5 || emitted > 5 {
			t.Errorf("chunk %d: %d loads, %d new nodes", chunk, loads, emitted)
		}
		zero, err := p.ZeroLeaf()
		if err != nil {
			t.Fatal(err)
		}
		list[0].Leaf = zero
		back, err := p.EditFile(t.Context(), store.load, edited.Cid, root.Size, runs(list), discard)
		if err != nil {
			t.Fatal(err)
		}
		if back != root {
			t.Errorf("chunk %d: zeroed again it is %+v, want %+v", chunk, back, root)
		}
	}
}

// TestEditFileArguments: wrong runs and bases are refused.
func TestEditFileArguments(t *testing.T) {
	p := unixfs.V1_2025
	p.ChunkSize, p.MaxLinks = 4, 2
	store := blocks{}
	full := unixfs.Root{Cid: cid.NewCidV1(cid.Raw, []byte("\x12\x20aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")), Size: 4, Tsize: 4}
	short := full
	short.Size = 3
	for name, list := range map[string][]unixfs.Run{
		"beyond":       {{First: 3, Count: 1, Leaf: full}},
		"too many":     {{First: 1, Count: 2, Leaf: full}, {First: 2, Count: 1, Leaf: full}},
		"negative":     {{First: -1, Count: 1, Leaf: full}},
		"none":         {{First: 0, Count: 0, Leaf: full}},
		"huge":         {{First: 1, Count: math.MaxInt64, Leaf: full}},
		"overlap":      {{First: 0, Count: 2, Leaf: full}, {First: 1, Count: 1, Leaf: full}},
		"short leaf":   {{First: 0, Count: 1, Leaf: short}},
		"full at end":  {{First: 2, Count: 1, Leaf: full}},
		"run over end": {{First: 1, Count: 2, Leaf: full}},
		"no CID":       {{First: 0, Count: 1, Leaf: unixfs.Root{Size: 4, Tsize: 4}}},
		"dag-pb leaf":  {{First: 0, Count: 1, Leaf: unixfs.Root{Cid: cid.NewCidV1(cid.DagProtobuf, full.Cid.Hash()), Size: 4, Tsize: 4}}},
		"wrong Tsize":  {{First: 0, Count: 1, Leaf: unixfs.Root{Cid: full.Cid, Size: 4, Tsize: 12}}},
	} {
		if root, err := p.EditFile(t.Context(), store.load, cid.Undef, 11, runs(list), discard); err == nil {
			t.Errorf("%s: built %+v", name, root)
		}
	}
	if _, err := p.EditFile(t.Context(), nil, cid.Undef, 11, runs([]unixfs.Run{{First: 0, Count: 2, Leaf: full}}), discard); err != nil {
		t.Errorf("right runs: %v", err)
	}
	wantErr(t, unixfs.ErrProfile, func() error {
		_, err := unixfs.Profile{}.EditFile(t.Context(), nil, cid.Undef, 11, nil, discard)
		return err
	})
	broken := errors.New("broken")
	failing := func(yield func(unixfs.Run, error) bool) { yield(unixfs.Run{}, broken) }
	wantErr(t, broken, func() error {
		_, err := p.EditFile(t.Context(), store.load, cid.Undef, 11, failing, discard)
		return err
	})
	other := p
	other.ChunkSize = 3
	base, err := other.BuildFile(t.Context(), bytes.NewReader(make([]byte, 11)), store.emit)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []uint64{5, 11, 40} {
		wantErr(t, unixfs.ErrForeign, func() error {
			_, err := p.EditFile(t.Context(), store.load, base.Cid, size, nil, discard)
			return err
		})
	}
	delete(store, base.Cid)
	if _, err := other.EditFile(t.Context(), store.load, base.Cid, 12, nil, discard); err == nil {
		t.Error("edited a file whose root is missing")
	}
}

// TestLoadAndEmitFail: the n-th failure of Load or Emit is the error of the call,
// so that a missing block stays the store's error and is no missing name.
func TestLoadAndEmitFail(t *testing.T) {
	p := unixfs.V1_2025
	p.ChunkSize, p.MaxLinks, p.Fanout, p.DirLimit = 4, 2, 8, 200
	store := blocks{}
	file, err := p.BuildFile(t.Context(), &stream{n: 101}, store.emit)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := p.BuildDir(t.Context(), numbered(t, p, 40), store.emit)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := p.Leaf([]byte("abcd"))
	if err != nil {
		t.Fatal(err)
	}
	list := []unixfs.Run{{First: 3, Count: 1, Leaf: unixfs.LeafRoot(leaf, 4)}}
	var changes []unixfs.Change
	for i := range 35 {
		changes = append(changes, unixfs.Change{Name: fmt.Sprintf("file-%06d", i)})
	}
	changes = append(changes, unixfs.Change{Name: "new", Set: true, Entry: unixfs.Entry{Cid: leaf.Cid, Tsize: 4}})
	broken := errors.New("broken")
	for name, op := range map[string]func(unixfs.Load, unixfs.Emit) error{
		"edit file": func(load unixfs.Load, emit unixfs.Emit) error {
			_, err := p.EditFile(t.Context(), load, file.Cid, 90, runs(list), emit)
			return err
		},
		"grow directory": func(load unixfs.Load, emit unixfs.Emit) error {
			_, err := p.EditDir(t.Context(), load, dir.Cid, changes[35:], emit)
			return err
		},
		"shrink directory": func(load unixfs.Load, emit unixfs.Emit) error {
			_, err := p.EditDir(t.Context(), load, dir.Cid, changes, emit)
			return err
		},
		"find": func(load unixfs.Load, _ unixfs.Emit) error {
			_, err := unixfs.Find(t.Context(), load, dir.Cid, "file-000007")
			return err
		},
		"list": func(load unixfs.Load, _ unixfs.Emit) (last error) {
			for _, err := range unixfs.List(t.Context(), load, dir.Cid) {
				last = err
			}
			return last
		},
	} {
		for n := 1; ; n++ {
			calls := 0
			step := func() error {
				if calls++; calls == n {
					return broken
				}
				return nil
			}
			err := op(func(ctx context.Context, c cid.Cid) ([]byte, error) {
				if err := step(); err != nil {
					return nil, err
				}
				return store.load(ctx, c)
			}, func(unixfs.Block) error { return step() })
			if calls < n {
				if err != nil || n < 3 {
					t.Errorf("%s: %v after %d calls", name, err, calls)
				}
				break
			}
			if !errors.Is(err, broken) || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: call %d: %v", name, n, err)
			}
		}
	}
}
