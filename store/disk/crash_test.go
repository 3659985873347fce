package disk_test

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cafs/store/disk"
)

const page = 4096

// tree is every file with its content, and every folder.
func tree(t *testing.T, root disk.FS) map[string]string {
	t.Helper()
	all := map[string]string{}
	var walk func(fsys disk.FS, prefix string)
	walk = func(fsys disk.FS, prefix string) {
		entries, err := fsys.ReadDir(".")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !e.Dir {
				all[prefix+e.Name] = content(t, fsys, e.Name)
				continue
			}
			all[prefix+e.Name] = "dir"
			sub, err := fsys.Sub(e.Name)
			if err != nil {
				t.Fatal(err)
			}
			walk(sub, prefix+e.Name+"/")
		}
	}
	walk(root, "")
	return all
}

// write opens a file, creating it, and writes to it; sync says whether to sync.
func write(t *testing.T, root disk.FS, name string, off int64, text string, sync bool) {
	t.Helper()
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text), off); err != nil {
		t.Fatal(err)
	}
	if sync {
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
}

// outcomes are the different trees that crashes with many seeds leave.
func outcomes(t *testing.T, m *disk.Mem) map[string]bool {
	t.Helper()
	seen := map[string]bool{}
	for seed := range int64(200) {
		left := tree(t, m.Crash(seed, 0.5))
		if again := tree(t, m.Crash(seed, 0.5)); !maps.Equal(left, again) {
			t.Fatalf("seed %d gives two results", seed)
		}
		var text []string
		for _, name := range slices.Sorted(maps.Keys(left)) {
			c := left[name]
			if len(c) > 8 {
				c = c[:1] + c[len(c)-1:]
			}
			text = append(text, name+"="+c)
		}
		seen[strings.Join(text, " ")] = true
	}
	return seen
}

// TestCrashOutcomes lists for small histories all that a crash may leave.
func TestCrashOutcomes(t *testing.T) {
	long := strings.Repeat("x", page)
	for name, c := range map[string]struct {
		run  func(m *disk.Mem)
		want []string
	}{
		"created": {func(m *disk.Mem) {
			write(t, m, "a", 0, "new", true) // the name was not synced
		}, []string{"", "a=new"}},
		"appended": {func(m *disk.Mem) {
			write(t, m, "a", 0, "old", true)
			must(t, m.SyncDir())
			write(t, m, "a", 3, "+1", false)
			write(t, m, "a", 5, "+2", false)
		}, []string{"a=old", "a=old\x00\x00", "a=old+1", "a=old\x00\x00\x00\x00", "a=old+1\x00\x00", "a=old+1+2"}},
		"two pages": {func(m *disk.Mem) {
			write(t, m, "a", 0, long+long, true)
			must(t, m.SyncDir())
			write(t, m, "a", page-1, "yy", false)
			write(t, m, "a", 2*page-1, "z", false)
		}, []string{"a=xx", "a=xz"}},
		"replaced": {func(m *disk.Mem) {
			write(t, m, "a", 0, "old", true)
			must(t, m.SyncDir())
			write(t, m, "t", 0, "new", true)
			must(t, m.Rename("t", m, "a"))
		}, []string{"a=old", "a=new", "a=old t=new"}},
		"moved": {func(m *disk.Mem) {
			must(t, m.Mkdir("d", 0o700))
			write(t, m, "a", 0, "old", true)
			must(t, m.SyncDir())
			d, err := m.Sub("d")
			must(t, err)
			must(t, m.Rename("a", d, "a"))
		}, []string{"a=old d=dir", "d=dir d/a=old", "a=old d=dir d/a=old"}},
		"moved and source synced": {func(m *disk.Mem) {
			must(t, m.Mkdir("d", 0o700))
			write(t, m, "a", 0, "old", true)
			must(t, m.SyncDir())
			d, err := m.Sub("d")
			must(t, err)
			must(t, m.Rename("a", d, "a"))
			must(t, m.SyncDir()) // the source: cannot survive without the target
		}, []string{"d=dir d/a=old"}},
		"linked and removed": {func(m *disk.Mem) {
			write(t, m, "a", 0, "old", true)
			must(t, m.SyncDir())
			must(t, m.Link("a", m, "b"))
			must(t, m.Remove("a"))
		}, []string{"a=old", "a=old b=old", "b=old", ""}},
		"truncated": {func(m *disk.Mem) {
			write(t, m, "a", 0, "old", true)
			must(t, m.SyncDir())
			f, err := m.OpenFile("a", os.O_RDWR, 0)
			must(t, err)
			must(t, f.Truncate(0))
		}, []string{"a=old", "a=", "a=\x00\x00\x00"}},
		"named and synced": {func(m *disk.Mem) {
			name(t, m, "a", "new") // to sync the folder is not enough
			must(t, m.SyncDir())
		}, []string{"", "a=new"}},
		"named and replaced": {func(m *disk.Mem) {
			name(t, m, "a", "lost")
			write(t, m, "t", 0, "new", true)
			must(t, m.Rename("t", m, "a"))
			must(t, m.SyncDir())
			must(t, m.SyncFS())
		}, []string{"a=new"}},
		"named and all synced": {func(m *disk.Mem) {
			name(t, m, "a", "new")
			must(t, m.SyncFS())
		}, []string{"a=new"}},
		"everything synced": {func(m *disk.Mem) {
			must(t, m.Mkdir("d", 0o700))
			write(t, m, "d/a", 0, "new", false)
			must(t, m.SyncFS())
		}, []string{"d=dir d/a=new"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := disk.NewMem()
			c.run(m)
			got := outcomes(t, m)
			for _, w := range c.want {
				if !got[w] {
					t.Errorf("%q never happened", w)
				}
				delete(got, w)
			}
			for g := range got {
				t.Errorf("%q happened", g)
			}
		})
	}
}

// name makes a file without a name, syncs it and names it.
func name(t *testing.T, m *disk.Mem, name, text string) {
	t.Helper()
	f, err := m.CreateUnnamed(0o600)
	must(t, err)
	_, err = f.WriteAt([]byte(text), 0)
	must(t, errors.Join(err, f.Sync(), m.Name(f, name), f.Close()))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCrashExtremes: keeping all leaves what callers saw, keeping nothing leaves
// what was synced, after random calls.
func TestCrashExtremes(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+100; seed++ {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := disk.NewMem()
		random := func() {
			for range 30 {
				step(rng, m, nil)
			}
		}
		random()
		must(t, m.SyncFS())
		synced := tree(t, m)
		for _, keep := range []float64{0, 0.5, 1} {
			if left := tree(t, m.Crash(int64(seed), keep)); !maps.Equal(left, synced) {
				t.Fatalf("-seed %d: after SyncFS, keeping %v: %q, want %q", seed, keep, left, synced)
			}
		}
		// Calls of the step function sync the files they open, never names.
		random()
		if left, now := tree(t, m.Crash(int64(seed), 1)), tree(t, m); !maps.Equal(left, now) {
			t.Fatalf("-seed %d: keeping all", seed)
		}
		left := tree(t, m.Crash(int64(seed), 0))
		if !slices.Equal(slices.Sorted(maps.Keys(left)), slices.Sorted(maps.Keys(synced))) {
			t.Fatalf("-seed %d: keeping nothing: names %q, want %q", seed, left, synced)
		}
	}
}

// TestCapacity: room is taken by pages, given back by deletion and truncation,
// and a write without room changes nothing.
func TestCapacity(t *testing.T) {
	m := disk.NewMem()
	m.SetCapacity(2 * page)
	write(t, m, "a", 0, "x", true)
	write(t, m, "b", 0, "x", true)
	f, err := m.OpenFile("b", os.O_RDWR, 0)
	must(t, err)
	full := func() bool {
		n, err := f.WriteAt([]byte("yy"), page-1)
		if err != nil && (n != 0 || !errors.Is(err, syscall.ENOSPC)) {
			t.Errorf("write to a full disk: %d, %v", n, err)
		}
		return err != nil
	}
	if !full() {
		t.Error("a third page fits into two")
	}
	if size, err := f.Size(); size != 1 || err != nil {
		t.Errorf("size after a failed write: %d, %v", size, err)
	}
	must(t, m.Remove("a"))
	if full() {
		t.Error("no room after a file was removed")
	}
	must(t, f.Truncate(0))
	if u, err := m.Usage(); u.Free != 2*page || err != nil {
		t.Errorf("usage %+v, %v", u, err)
	}
	if _, err := m.Crash(1, 0).Stat("a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("name that was never synced: %v", err)
	}
}
