package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	"github.com/multiformats/go-multibase"
	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// golden returns the CIDs that Kubo printed for the default profile, by input.
func golden(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("../linksys/unixfs/testdata/cids.tsv")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) == 4 && f[0] == "unixfs-v1-2025" {
			out[strings.TrimSpace(f[1]+" "+f[2])] = f[3]
		}
	}
	if len(out) < 20 {
		t.Fatalf("only %d golden CIDs", len(out))
	}
	return out
}

// ways make a file with the given content, each by another sequence of calls.
var ways = map[string]func(path string, b []byte) error{
	"one write": func(path string, b []byte) error { return os.WriteFile(path, b, 0o644) },
	"writes of 4 KiB": func(path string, b []byte) error {
		return edit(path, func(f *os.File) error { return pieces(len(b), 4096, func(i, j int) error { return put(f, b, i, j) }) })
	},
	"odd writes, with fsyncs": func(path string, b []byte) error {
		return edit(path, func(f *os.File) error {
			return pieces(len(b), 333_333, func(i, j int) error { return errors.Join(put(f, b, i, j), f.Sync()) })
		})
	},
	"backwards": func(path string, b []byte) error {
		return edit(path, func(f *os.File) error {
			const n = 50_000
			for i := (len(b) - 1) / n * n; i >= 0 && len(b) > 0; i -= n {
				if err := put(f, b, i, min(i+n, len(b))); err != nil {
					return err
				}
			}
			return nil
		})
	},
	"appended in 100 parts": func(path string, b []byte) error {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			return err
		}
		return pieces(len(b), max(1, len(b)/100), func(i, j int) error {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			_, err = f.Write(b[i:j])
			return errors.Join(err, f.Close())
		})
	},
	"rewritten five times": func(path string, b []byte) error {
		for i := range 5 {
			if err := os.WriteFile(path, stream(uint64(100+i), len(b)+i*1000), 0o644); err != nil {
				return err
			}
		}
		return os.WriteFile(path, b, 0o644)
	},
	"edited and back": func(path string, b []byte) error {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return err
		}
		return edit(path, func(f *os.File) error {
			for _, off := range []int{0, len(b) / 2, len(b) - 1} {
				if off < 0 || off >= len(b) {
					continue
				}
				_, err := f.WriteAt([]byte{^b[off]}, int64(off))
				if err := errors.Join(err, f.Sync(), put(f, b, off, off+1)); err != nil {
					return err
				}
			}
			return nil
		})
	},
	"cut and grown": func(path string, b []byte) error {
		return edit(path, func(f *os.File) error {
			err := errors.Join(put(f, b, 0, len(b)), f.Truncate(int64(len(b)/3)), f.Truncate(int64(len(b)+5000)), f.Truncate(int64(len(b))))
			return errors.Join(err, put(f, b, len(b)/3, len(b)))
		})
	},
}

func edit(path string, change func(*os.File) error) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(change(f), f.Close())
}

func put(f *os.File, b []byte, i, j int) error {
	_, err := f.WriteAt(b[i:j], int64(i))
	return err
}

func pieces(size, n int, do func(i, j int) error) error {
	for i := 0; i < size; i += n {
		if err := do(i, min(i+n, size)); err != nil {
			return err
		}
	}
	return nil
}

// TestFileAddresses (C01): the same bytes have one CID, whatever wrote them,
// and it is Kubo's.
func TestFileAddresses(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	want := golden(t)
	seen := 0
	for input, c := range want {
		var s, n int
		if k, err := fmt.Sscanf(input, "file stream(%d,%d)", &s, &n); k != 2 || err != nil || !strings.HasSuffix(input, ")") {
			continue // has options, or is a folder
		}
		if n > harness.Scale(11<<20, 2<<30) {
			continue
		}
		seen++
		b := stream(uint64(s), n)
		for way, do := range ways {
			path := m.Path(fmt.Sprintf("%d-%d %s", s, n, way))
			if err := do(path, b); err != nil {
				t.Fatalf("%s, %s: %v", input, way, err)
			}
			if got := cidOf(t, path); got != c {
				t.Errorf("%s, %s: %s, must be %s", input, way, got, c)
			}
			wantFile(t, path, b)
		}
		path := m.Path(fmt.Sprintf("%d-%d one write", s, n))
		if got := m.MustCafs("cid", path); got != c {
			t.Errorf("cafs cid of %s: %s, must be %s", input, got, c)
		}
		outside := filepath.Join(harness.Scratch(t), "f")
		write(t, outside, b)
		if got := m.MustCafs("add", "-q", "--repo", m.Repo, outside); got != c { // into a live repository
			t.Errorf("cafs add of %s: %s, must be %s", input, got, c)
		}
	}
	if seen < 8 {
		t.Errorf("only %d golden files", seen)
	}
}

// TestFolderAddresses (D06): a folder's CID depends on what is in it and on
// nothing else: growing over the limit where folders are split, and shrinking
// back, gives Kubo's CID at each size.
func TestFolderAddresses(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	want := golden(t)
	dir := mkdir(t, m.Path("numbered"))
	name := func(i int) string { return fmt.Sprintf("%s/file-%06d", dir, i) }
	check := func(n int, when string) {
		t.Helper()
		c, ok := want[fmt.Sprintf("dir numbered(%d)", n)]
		if !ok {
			t.Fatalf("no golden folder of %d", n)
		}
		if got := cidOf(t, dir); got != c {
			t.Errorf("%d entries, %s: %s, must be %s", n, when, got, c)
		}
	}
	sizes := []int{0, 1, 2, 255, 1000, 4765, 4766, 4767, 4768, 5000}
	made := 0
	for _, n := range sizes {
		for ; made < n; made++ {
			write(t, name(made), []byte(fmt.Sprint(made)))
		}
		check(n, "grown")
	}
	m.Remount()
	check(5000, "remounted")
	for i := len(sizes) - 2; i >= 0; i-- {
		for ; made > sizes[i]; made-- {
			if err := os.Remove(name(made - 1)); err != nil {
				t.Fatal(err)
			}
		}
		check(sizes[i], "shrunk")
	}
	t.Run("mixed", func(t *testing.T) {
		dir := mkdir(t, m.Path("mixed"))
		mkdir(t, dir+"/empty")
		write(t, dir+"/sub/big", stream(7, 2097153))
		write(t, dir+"/sub/deep/zero", nil)
		write(t, dir+"/sub/a b#c%?\u00e9", []byte("x"))
		write(t, dir+"/.hidden", []byte("h"))
		write(t, dir+"/hello.txt", []byte("hello\n"))
		if err := errors.Join(os.Symlink("hello.txt", dir+"/link"), os.Symlink("/no/such/target", dir+"/dangling")); err != nil {
			t.Fatal(err)
		}
		c := want["dir mixed hidden=true,empty-dirs=true"]
		if got := cidOf(t, dir); got != c || c == "" {
			t.Errorf("%s, must be %s", got, c)
		}
		// Attributes are not content (C03).
		if err := errors.Join(os.Chmod(dir+"/hello.txt", 0o600), os.Chtimes(dir+"/sub/big", time.Unix(1, 2), time.Unix(3, 4)), unix.Setxattr(dir+"/sub", "user.x", []byte("y"), 0)); err != nil {
			t.Fatal(err)
		}
		if got := cidOf(t, dir); got != c {
			t.Errorf("after chmod, touch and setxattr: %s, must be %s", got, c)
		}
		if got := m.MustCafs("add", "-r", "-q", "--repo", m.Repo, dir); lastLine(got) != c {
			t.Errorf("cafs add -r: %s, must be %s", got, c)
		}
	})
}

func lastLine(s string) string { return s[strings.LastIndexByte(s, '\n')+1:] }

// TestView (C08, C09, R23): what a CID names can be browsed, by every spelling
// of the CID; nonsense is no such file; nothing there can be changed or moved.
func TestView(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	big := stream(7, 3<<20+1)
	write(t, m.Path("d/sub/big"), big)
	write(t, m.Path("d/small"), []byte("small\n"))
	dir, file, raw := cidOf(t, m.Path("d")), cidOf(t, m.Path("d/sub/big")), cidOf(t, m.Path("d/small"))
	ipfs := m.Path(".cafs/ipfs")
	command(t, "/", "diff", "-r", m.Path("d"), filepath.Join(ipfs, dir))
	wantFile(t, filepath.Join(ipfs, dir, "sub/big"), big)
	wantFile(t, filepath.Join(ipfs, file), big)
	wantFile(t, m.Path(".cafs/block", raw), []byte("small\n"))
	if got := cidOf(t, filepath.Join(ipfs, dir, "sub")); got != cidOf(t, m.Path("d/sub")) {
		t.Errorf("ipfs.cid in the view: %s", got)
	}
	c, err := cid.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, base := range []multibase.Encoding{multibase.Base32, multibase.Base32Upper, multibase.Base36, multibase.Base58BTC, multibase.Base64url, multibase.Base16} {
		name, err := c.StringOfBase(base)
		if err != nil {
			t.Fatal(err)
		}
		wantFile(t, filepath.Join(ipfs, name), []byte("small\n"))
	}
	added := m.MustCafs("add", "-q", "--repo", m.Repo, "--profile", "unixfs-v0-2015", m.Path("d/sub/big")) // a CIDv0
	if !strings.HasPrefix(added, "Qm") {
		t.Errorf("cafs add --profile unixfs-v0-2015: %s", added)
	}
	wantFile(t, filepath.Join(ipfs, added), big)
	list := command(t, "/", "ls", ipfs)
	if !strings.Contains(list, added) {
		t.Errorf("%s was added and is not listed among the roots:\n%s", added, list)
	}
	if list := command(t, "/", "ls", "-a", m.Dir); strings.Contains(list, ".cafs") {
		t.Errorf("the view is listed in the root:\n%s", list)
	}
	for path, want := range map[string]error{
		"ipfs/nonsense": syscall.ENOENT, "ipfs/" + raw[:20]: syscall.ENOENT, "ipfs/" + dir + "/no": syscall.ENOENT, "no": syscall.ENOENT,
		"ipfs/" + file + "/x": syscall.ENOTDIR,
		// A block that no store has is damage, not a missing name.
		"ipfs/bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvykr": syscall.EIO,
	} {
		if _, err := os.ReadFile(m.Path(".cafs", path)); !errors.Is(err, want) {
			t.Errorf("%s: %v, must be %v", path, err, want)
		}
	}
	for what, err := range map[string]error{
		"write":        os.WriteFile(filepath.Join(ipfs, dir, "small"), nil, 0o644),
		"create":       os.WriteFile(filepath.Join(ipfs, "new"), nil, 0o644),
		"mkdir":        os.Mkdir(m.Path(".cafs/new"), 0o755),
		"remove":       os.Remove(filepath.Join(ipfs, dir, "small")),
		"rename .cafs": os.Rename(m.Path(".cafs"), m.Path("x")),
		"rename out":   os.Rename(filepath.Join(ipfs, dir, "small"), m.Path("out")),
		"rename in":    os.Rename(m.Path("d/small"), filepath.Join(ipfs, "in")),
		"link out":     os.Link(filepath.Join(ipfs, dir, "small"), m.Path("out")),
		"make .cafs":   os.Mkdir(m.Path(".cafs"), 0o755),
	} {
		// For others than root the kernel looks at the modes first.
		checked := os.Geteuid() != 0 && errors.Is(err, syscall.EACCES)
		if !errors.Is(err, syscall.EROFS) && !errors.Is(err, syscall.EXDEV) && !checked && !(what == "make .cafs" && errors.Is(err, syscall.EEXIST)) {
			t.Errorf("%s: %v, must be EROFS or EXDEV", what, err)
		}
	}
	wantFile(t, m.Path("d/small"), []byte("small\n"))
	command(t, "/", "cp", "-a", m.Dir+"/.", filepath.Join(harness.Scratch(t), "copy"))
}

// TestOffline: without a mount, the commands read what was added.
func TestOffline(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	src := filepath.Join(harness.Scratch(t), "src")
	write(t, src+"/sub/big", stream(7, 3<<20+1))
	write(t, src+"/small", []byte("small\n"))
	command(t, "/", "cp", "-a", src, m.Path("d"))
	dir, small := cidOf(t, m.Path("d")), cidOf(t, m.Path("d/small"))
	m.Umount()
	repo := []string{"--repo", m.Repo}
	run := func(args ...string) string { t.Helper(); return m.MustCafs(append(args, repo...)...) }
	if got := run("ls", dir); got != "small\nsub" && got != "small\nsub/" {
		t.Errorf("ls: %q", got)
	}
	if got := run("cat", dir+"/small"); got != "small" {
		t.Errorf("cat: %q", got)
	}
	if got := m.Cafs(append([]string{"cat", dir + "/sub/big"}, repo...)...); !bytes.Equal([]byte(got.Stdout), stream(7, 3<<20+1)) {
		t.Error("cat of a large file")
	}
	out := filepath.Join(harness.Scratch(t), "out")
	run("get", "-o", out, dir)
	command(t, "/", "diff", "-r", src, out)
	if got := run("stat", dir+"/small"); !strings.Contains(got, small) {
		t.Errorf("stat: %s", got)
	}
	if got := run("block", "get", small); got != "small" {
		t.Errorf("block get: %q", got)
	}
	if got := run("block", "ls"); len(strings.Fields(got)) < 6 {
		t.Errorf("block ls: %s", got)
	}
	file := filepath.Join(harness.Scratch(t), "block")
	write(t, file, []byte("a block"))
	c := run("block", "put", file)
	if got := run("block", "get", c); got != "a block" {
		t.Errorf("block put, then get: %q", got)
	}
	missing := "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvykr"
	for _, args := range [][]string{{"cat", missing}, {"cat", dir + "/no"}, {"cat", "nonsense"}, {"block", "get", missing}} {
		r := m.Cafs(append(args, repo...)...)
		if r.Code == 0 || !strings.Contains(r.Stderr, args[len(args)-1][:8]) {
			t.Errorf("%v: exit %d, and the message must name what is missing: %s", args, r.Code, r.Stderr)
		}
	}
	m.Mount()
}
