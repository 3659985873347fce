package disk_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cafs/store/disk"
)

var firstSeed = flag.Uint64("seed", 0, "first seed of the random tests")

// implementations are what all tests of the contract run on.
func implementations(t *testing.T) map[string]disk.FS {
	kernel, err := disk.OS(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kernel.Close() })
	return map[string]disk.FS{
		"os":    kernel,
		"mem":   disk.NewMem(),
		"fault": disk.NewFault(disk.NewMem(), func(disk.Op) error { return nil }),
	}
}

// result is the error number of an error, or its sentinel.
func result(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.EOF):
		return "EOF"
	}
	return err.Error()
}

// step makes one random call and tells all that came of it.
func step(rng *rand.Rand, root disk.FS, subs []disk.FS) string {
	name := func() string {
		n := string("abc"[rng.IntN(3)])
		if rng.IntN(3) == 0 {
			n = "d" + fmt.Sprint(rng.IntN(2)) + "/" + n
		}
		return n
	}
	folder := func() disk.FS {
		if i := rng.IntN(len(subs) + 2); i < len(subs) {
			return subs[i]
		}
		return root
	}
	switch rng.IntN(11) {
	case 0:
		n := name()
		return fmt.Sprint("remove ", n, result(folder().Remove(n)))
	case 1, 2:
		from, to := name(), name()
		return fmt.Sprint("rename ", from, " ", to, result(folder().Rename(from, folder(), to)))
	case 3:
		from, to := name(), name()
		return fmt.Sprint("link ", from, " ", to, result(folder().Link(from, folder(), to)))
	case 4:
		n := []string{"d0", "d1", "a", "d0/a", "x/y"}[rng.IntN(5)]
		return fmt.Sprint("mkdir ", n, result(root.Mkdir(n, 0o700)))
	case 5:
		n := []string{".", "d0", "a"}[rng.IntN(3)]
		entries, err := folder().ReadDir(n)
		slices.SortFunc(entries, func(a, b disk.Dirent) int { return strings.Compare(a.Name, b.Name) })
		return fmt.Sprint("readdir ", n, entries, result(err))
	case 6:
		n := name()
		info, err := folder().Stat(n)
		if info.Dir {
			info.Size = 0 // is the file system's affair
		}
		return fmt.Sprint("stat ", n, info, result(err))
	}
	n := name()
	flags := []int{os.O_RDWR, os.O_RDWR | os.O_CREATE, os.O_RDWR | os.O_CREATE | os.O_EXCL,
		os.O_RDWR | os.O_TRUNC, os.O_RDONLY, os.O_WRONLY | os.O_CREATE}[rng.IntN(6)]
	at := folder()
	if info, err := at.Stat(n); err == nil && info.Dir && flags == os.O_RDONLY {
		return "the kernel opens folders, too"
	}
	f, err := at.OpenFile(n, flags, 0o600)
	if err != nil {
		return fmt.Sprint("open ", n, flags, result(err))
	}
	defer f.Close()
	return fmt.Sprint("open ", n, flags, fileSteps(rng, f))
}

func fileSteps(rng *rand.Rand, f disk.File) string {
	var out strings.Builder
	for range 4 {
		off, n := rng.Int64N(20000), rng.IntN(10000)
		switch rng.IntN(6) {
		case 0, 1:
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(off) + byte(i) | 1
			}
			n, err := f.WriteAt(p, off)
			fmt.Fprint(&out, " write ", off, n, result(err))
		case 2, 3:
			p := make([]byte, n)
			n, err := f.ReadAt(p, off)
			fmt.Fprintf(&out, " read %d %d %x %s", off, n, p[:n], result(err))
		case 4:
			fmt.Fprint(&out, " truncate ", off, result(f.Truncate(off)))
		case 5:
			fmt.Fprint(&out, " allocate ", off, result(f.Allocate(off, int64(n)+1, rng.IntN(2) == 0)))
		}
		size, err := f.Size()
		fmt.Fprint(&out, " size ", size, result(err))
	}
	fmt.Fprint(&out, result(f.WriteOut(0, 4096)), result(f.Sync()))
	return out.String()
}

// TestSame makes the same random calls on the kernel and on its models and
// compares what every one of them returns.
func TestSame(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+30; seed++ {
		var want []string
		var names []string
		for name, root := range implementations(t) {
			rng := rand.New(rand.NewPCG(seed, 0))
			if err := errors.Join(root.Mkdir("s0", 0o700), root.Mkdir("s1", 0o700)); err != nil {
				t.Fatal(err)
			}
			var subs []disk.FS
			for _, n := range []string{"s0", "s1"} {
				sub, err := root.Sub(n)
				if err != nil {
					t.Fatal(err)
				}
				subs = append(subs, sub)
			}
			var got []string
			for range 200 {
				got = append(got, step(rng, root, subs))
			}
			names = append(names, name)
			if want == nil {
				want = got
			}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("-seed %d, call %d:\n%s: %.300s\n%s: %.300s", seed, i, names[0], want[i], name, got[i])
				}
			}
			for _, s := range subs {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestContract has what random calls do not reach.
func TestContract(t *testing.T) {
	for name, root := range implementations(t) {
		t.Run(name, func(t *testing.T) {
			for _, bad := range []string{"", "..", "a/../b", "/a", "a/", "a//b", "./a", "a\x00b"} {
				_, err := root.OpenFile(bad, os.O_RDWR|os.O_CREATE, 0o600)
				if !errors.Is(err, syscall.EINVAL) {
					t.Errorf("open %q: %v", bad, err)
				}
			}
			if _, err := root.Stat("absent"); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, syscall.ENOENT) {
				t.Errorf("stat of an absent name: %v", err)
			}
			if err := root.Mkdir("d", 0o700); err != nil {
				t.Fatal(err)
			}
			if err := root.Mkdir("d", 0o700); !errors.Is(err, fs.ErrExist) || !errors.Is(err, syscall.EEXIST) {
				t.Errorf("second mkdir: %v", err)
			}
			sub, err := root.Sub("d")
			if err != nil {
				t.Fatal(err)
			}
			if err := root.Rename("d", root, "moved"); err != nil {
				t.Fatal(err)
			}
			f, err := sub.OpenFile("f", os.O_RDWR|os.O_CREATE, 0o640)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := root.Stat("moved/f"); err != nil || info.Dir || info.Mode.Perm() != 0o640 {
				t.Errorf("file made through the handle of a moved folder: %+v, %v", info, err)
			}
			if err := root.Remove("moved"); !errors.Is(err, syscall.ENOTEMPTY) {
				t.Errorf("remove of a full folder: %v", err)
			}
			if err := sub.Remove("f"); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("x"), 1); err != nil {
				t.Errorf("write to an unlinked file: %v", err)
			}
			if err := errors.Join(sub.SyncDir(), root.SyncFS(), f.Close(), sub.Close()); err != nil {
				t.Error(err)
			}
			if err := sub.Close(); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("second close: %v", err)
			}
			if _, err := sub.Stat("f"); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("use after close: %v", err)
			}
			if u, err := root.Usage(); err != nil || u.Total < u.Free || u.Free < u.Avail || u.Total <= 0 {
				t.Errorf("usage %+v, %v", u, err)
			}
			unnamed(t, root)
			other := disk.NewMem()
			if err := root.Rename("moved", other, "x"); !errors.Is(err, syscall.EXDEV) {
				t.Errorf("rename to another file system: %v", err)
			}
		})
	}
}

// unnamed: a file without a name gets one, over nothing that is there, and goes
// with its handle otherwise.
func unnamed(t *testing.T, root disk.FS) {
	u := root.(disk.Unnamed)
	f, err := u.CreateUnnamed(0o640)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Log(err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	before, err := root.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("content"), 0); err != nil {
		t.Fatal(err)
	}
	if err := u.Name(f, "moved"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a name that is taken: %v", err)
	}
	if err := u.Name(f, "absent/name"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	if err := u.Name(f, "named"); err != nil {
		t.Fatal(err)
	}
	other, err := u.CreateUnnamed(0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Close(), other.Close()); err != nil {
		t.Fatal(err)
	}
	after, err := root.ReadDir(".")
	if err != nil || len(after) != len(before)+1 {
		t.Errorf("names %v, then %v, %v", before, after, err)
	}
	if info, err := root.Stat("named"); err != nil || info.Size != 7 || info.Mode != 0o640 {
		t.Errorf("the named file: %+v, %v", info, err)
	}
	if err := u.Name(f, "again"); !errors.Is(err, fs.ErrClosed) && !errors.Is(err, syscall.EBADF) && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name for a closed file: %v", err)
	}
}

// TestFaultHelpers: calls are counted over all handles, and fail as told.
func TestFaultHelpers(t *testing.T) {
	var ops []disk.Op
	fault := disk.FailAt(2, syscall.EIO, disk.OpSync)
	mem := disk.NewMem()
	root := disk.NewFault(mem, func(op disk.Op) error {
		ops = append(ops, op)
		if op.Kind == disk.OpWrite && op.N == 3 {
			return &disk.ShortWrite{N: 2, Err: syscall.ENOSPC}
		}
		return fault(op)
	})
	f, err := root.OpenFile("f", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	sync := func() error { _, err := f.WriteAt([]byte("abc"), 0); return errors.Join(err, f.Sync()) }
	if err := errors.Join(f.Sync(), root.SyncDir()); err != nil {
		t.Fatal(err)
	}
	if err := sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("second sync: %v", err)
	}
	// The pages of a failed sync are clean: another sync does not save them.
	if err := f.Sync(); err != nil {
		t.Errorf("third sync: %v", err)
	}
	if got := content(t, mem.Crash(0, 1), "f"); strings.Trim(got, "\x00") != "" {
		t.Errorf("after a failed sync: %q", got)
	}
	if err := sync(); err != nil {
		t.Fatal(err)
	}
	if got := content(t, mem.Crash(0, 0), "f"); got != "abc" {
		t.Errorf("written again: %q", got)
	}
	for i, op := range ops {
		if op.N != int64(i+1) {
			t.Errorf("call %d has number %d", i+1, op.N)
		}
	}

	// A failed flush of the file system is told to every handle, once, and to one
	// that is opened later if none was told before.
	root = disk.NewFault(disk.NewMem(), disk.FailAt(1, syscall.EIO, disk.OpSyncFS))
	open := func() disk.File {
		f, err := root.OpenFile("f", os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	before := open()
	_, err = before.WriteAt([]byte("abc"), 0)
	if syncErr := root.SyncFS(); err != nil || !errors.Is(syncErr, syscall.EIO) {
		t.Fatal(err, syncErr)
	}
	between := open()
	for _, f := range []disk.File{before, between} {
		if first, second := f.Sync(), f.Sync(); !errors.Is(first, syscall.EIO) || second != nil {
			t.Errorf("after a failed flush: %v, and then %v", first, second)
		}
	}
	if err := open().Sync(); err != nil {
		t.Errorf("opened after that was told: %v", err)
	}

	short := disk.NewFault(disk.NewMem(), disk.FailAt(1, &disk.ShortWrite{N: 2, Err: syscall.ENOSPC}, disk.OpWrite))
	if f, err = short.OpenFile("f", os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := f.WriteAt([]byte("abc"), 0)
	size, _ := f.Size()
	if n != 2 || size != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("short write: %d bytes, size %d, %v", n, size, err)
	}
}

func content(t *testing.T, root disk.FS, name string) string {
	t.Helper()
	f, err := root.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, size)
	if _, err := f.ReadAt(p, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return string(p)
}
