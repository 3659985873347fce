package add_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/linksys/add"
	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
	"cafs/store"
)

func write(t testing.TB, dir, name, data string) {
	t.Helper()
	p := filepath.Join(dir, name)
	err := os.MkdirAll(filepath.Dir(p), 0o755)
	if err == nil {
		err = os.WriteFile(p, []byte(data), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// mixed makes the input "dir mixed" of unixfs/testdata/cids.tsv.
func mixed(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "hello.txt", "hello\n")
	write(t, dir, ".hidden", "h")
	write(t, dir, "sub/big", string(linktest.Stream(7, 2097153)))
	write(t, dir, "sub/deep/zero", "")
	write(t, dir, "sub/a b#c%?\u00e9", "x")
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "empty"), 0o755),
		os.Symlink("hello.txt", filepath.Join(dir, "link")),
		os.Symlink("/no/such/target", filepath.Join(dir, "dangling")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func addTree(t testing.TB, s store.Putter, dir string, o add.Options) (unixfs.Root, add.Stats, error) {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	im := add.New(s, o)
	root, err := im.AddTree(t.Context(), d)
	if err != nil {
		return root, add.Stats{}, err
	}
	stats, err := im.Finish(t.Context())
	return root, stats, err
}

// TestAddReadBack adds a tree and compares every byte, name and target with it.
func TestAddReadBack(t *testing.T) {
	dir := mixed(t)
	write(t, dir, "cut/by content", string(linktest.Stream(1, 3<<20)))
	p, err := unixfs.ParseProfile("unixfs-v1-2025,chunker=buzhash")
	if err != nil {
		t.Fatal(err)
	}
	for _, profile := range []unixfs.Profile{unixfs.V1_2025, unixfs.V0_2015, p} {
		s := linktest.NewStore()
		sys := linktest.NewSystem(t, s, linksys.Options{})
		root, _, err := addTree(t, s, dir, add.Options{Profile: profile, Hidden: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := sys.Complete(t.Context(), root.Cid); err != nil {
			t.Error(err)
		}
		err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, _ := filepath.Rel(dir, p)
			target, err := sys.Resolve(t.Context(), root.Cid, strings.TrimPrefix(rel, "."+string(filepath.Separator)))
			if rel == "." {
				target, err = linksys.Target{Cid: root.Cid}, nil
			}
			if err != nil {
				return err
			}
			return same(t, sys, p, d, target.Cid)
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func same(t *testing.T, sys *linksys.System, p string, d fs.DirEntry, c cid.Cid) error {
	info, err := sys.Stat(t.Context(), c)
	if err != nil {
		return err
	}
	switch {
	case d.IsDir():
		n := 0
		for _, err := range sys.ReadDir(t.Context(), c) {
			if err != nil {
				return err
			}
			n++
		}
		if list, err := os.ReadDir(p); err != nil || len(list) != n {
			return fmt.Errorf("%s: %d entries of %d, %v", p, n, len(list), err)
		}
	case d.Type() == fs.ModeSymlink:
		if want, err := os.Readlink(p); err != nil || want != info.Target {
			return fmt.Errorf("%s: target %q, want %q, %v", p, info.Target, want, err)
		}
	default:
		f, err := sys.OpenFile(t.Context(), c)
		if err != nil {
			return err
		}
		got, err := io.ReadAll(f.Reader(t.Context()))
		if want, _ := os.ReadFile(p); err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("%s: %d bytes of %d, %v", p, len(got), len(want), err)
		}
	}
	return nil
}

// TestAddStats: one byte in front of 8 MiB cut by content stores little new, and
// the counts add up.
func TestAddStats(t *testing.T) {
	s := linktest.NewStore()
	p, err := unixfs.ParseProfile("unixfs-v1-2025,chunker=buzhash")
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 8<<20)
	r := linktest.NewRand(t)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	add := func(data []byte) add.Stats {
		var progress atomic.Int64
		im := add.New(s, add.Options{Profile: p, Stats: true, Progress: func(n int64) { progress.Add(n) }})
		if _, err := im.AddFile(t.Context(), bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
		stats, err := im.Finish(t.Context())
		if err != nil || stats.Logical != int64(len(data)) || progress.Load() != stats.Logical {
			t.Fatalf("%+v, %v", stats, err)
		}
		return stats
	}
	first := add(data)
	var bytesStored int64
	for e := range s.All(t.Context()) {
		bytesStored += e.Size
	}
	if first.Unique != bytesStored || first.Stored != bytesStored {
		t.Errorf("%+v, but the store holds %d", first, bytesStored)
	}
	if again := add(data); again.Unique != first.Unique || again.Stored != 0 {
		t.Errorf("again: %+v", again)
	}
	if shifted := add(append([]byte{1}, data...)); shifted.Stored > int64(len(data))/10 {
		t.Errorf("one byte in front stored %d new bytes", shifted.Stored)
	}
}

// TestAddSpecial: what is no file is left out and told; symbolic links are never
// followed; names and errors carry the path.
func TestAddSpecial(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "sub/file", "x")
	if err := syscall.Mkfifo(filepath.Join(dir, "sub/fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	write(t, outside, "secret", "secret")
	if err := os.Symlink(outside, filepath.Join(dir, "out")); err != nil {
		t.Fatal(err)
	}
	s := linktest.NewStore()
	sys := linktest.NewSystem(t, s, linksys.Options{})
	var skipped []string
	root, stats, err := addTree(t, s, dir, add.Options{Skipped: func(p string) { skipped = append(skipped, p) }})
	if err != nil || len(skipped) != 1 || skipped[0] != "sub/fifo" || stats.Symlinks != 1 || stats.Files != 1 || stats.Dirs != 2 {
		t.Errorf("%v, skipped %q, %+v", err, skipped, stats)
	}
	target, err := sys.Resolve(t.Context(), root.Cid, "out")
	if info, err2 := sys.Stat(t.Context(), target.Cid); err != nil || err2 != nil || info.Target != outside {
		t.Errorf("symbolic link: %+v, %v, %v", info, err, err2)
	}
	only := t.TempDir() // Kubo leaves out what has no entries, but not what only had such
	if err := os.Mkdir(filepath.Join(only, "a"), 0o755); err != nil {
		t.Fatal(err)
	}
	want, _, err := addTree(t, s, only, add.Options{})
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Join(only, "a/b/.hidden"), 0o755), os.MkdirAll(filepath.Join(only, "empty"), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := addTree(t, s, only, add.Options{NoEmptyDirs: true}); err != nil || got != want {
		t.Errorf("empty directories left out: %+v, %v; want %+v", got, err, want)
	}
	if there, _ := s.Has(t.Context(), linktest.MustCid(t, cid.Raw, []byte("secret"))); there {
		t.Error("a symbolic link was followed")
	}
}

// TestAddPreserve: modes and times of files, directories and links come back.
func TestAddPreserve(t *testing.T) {
	dir := mixed(t)
	mtime := time.Unix(1600000000, 987654321).UTC()
	for _, name := range []string{"hello.txt", "sub/deep", "."} {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.Chmod(p, 0o741), os.Chtimes(p, mtime, mtime)); err != nil {
			t.Fatal(err)
		}
	}
	s := linktest.NewStore()
	sys := linktest.NewSystem(t, s, linksys.Options{})
	o := add.Options{PreserveMode: true, PreserveMtime: true}
	root, _, err := addTree(t, s, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	check := func(c cid.Cid, err error) {
		t.Helper()
		info, err2 := sys.Stat(t.Context(), c)
		if err != nil || err2 != nil || info.Mode != 0o741 || !info.Mtime.Equal(mtime) {
			t.Errorf("%+v, %v, %v", info, err, err2)
		}
	}
	for _, name := range []string{"hello.txt", "sub/deep", ""} {
		target, err := sys.Resolve(t.Context(), root.Cid, name)
		check(target.Cid, err)
	}
	link, err := sys.Resolve(t.Context(), root.Cid, "link")
	if info, err2 := sys.Stat(t.Context(), link.Cid); err != nil || err2 != nil || info.Mode != 0 || info.Mtime.IsZero() {
		t.Errorf("a symbolic link has no mode, but a time: %+v, %v, %v", info, err, err2)
	}
	f, err := os.Open(filepath.Join(dir, "hello.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	one, err := add.New(s, o).AddFile(t.Context(), f)
	check(one.Cid, err)
}

// failing fails the n-th put.
type failing struct {
	*store.Mem
	left atomic.Int64
}

var errDisk = errors.New("disk on fire")

func (f *failing) Put(ctx context.Context, c cid.Cid, b []byte) error {
	if f.left.Add(-1) == 0 {
		return errDisk
	}
	return f.Mem.Put(ctx, c, b)
}

// TestAddFails: whichever put fails, the add fails with that error, ends, and
// leaves no descriptor open.
func TestAddFails(t *testing.T) {
	dir := mixed(t)
	before := countFiles(t)
	n := int64(1)
	for ; ; n++ {
		s := &failing{Mem: store.NewMem()}
		s.left.Store(n)
		_, _, err := addTree(t, s, dir, add.Options{Hidden: true})
		if err == nil {
			break
		}
		if !errors.Is(err, errDisk) {
			t.Fatalf("put %d failed: %v", n, err)
		}
	}
	if n < 10 {
		t.Errorf("only %d puts", n)
	}
	if after := countFiles(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
	im := add.New(linktest.NewStore(), add.Options{})
	_, err := im.AddFile(t.Context(), io.MultiReader(bytes.NewReader(make([]byte, 5<<20)), iotestErr{}))
	linktest.WantErr(t, "failing reader", err, errDisk)
}

type iotestErr struct{}

func (iotestErr) Read([]byte) (int, error) { return 0, errDisk }

func countFiles(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}
