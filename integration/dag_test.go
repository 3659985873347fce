package integration_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ipld/go-car/v2"

	"cafs/integration/harness"
)

// mixed makes the tree "dir mixed" of golden/cids.tsv.
func mixed(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(harness.Scratch(t), "mixed")
	write(t, dir+"/hello.txt", []byte("hello\n"))
	write(t, dir+"/.hidden", []byte("h"))
	write(t, dir+"/sub/big", stream(7, 2097153))
	write(t, dir+"/sub/deep/zero", nil)
	write(t, dir+"/sub/a b#c%?\u00e9", []byte("x"))
	mkdir(t, dir+"/empty")
	for name, target := range map[string]string{"link": "hello.txt", "dangling": "/no/such/target"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// blocksOf reads a CAR with go-car's reader, which checks every hash.
func blocksOf(t *testing.T, path string) (root string, n int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := car.NewBlockReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for ; ; n++ {
		if _, err := r.Next(); errors.Is(err, io.EOF) {
			return r.Roots[0].String(), n
		} else if err != nil {
			t.Fatalf("%s, block %d: %v", path, n, err)
		}
	}
}

// TestDag: the commands on linked data do the same whether the repository is
// mounted or not, and whatever their files are: plain ones, pipes, or files on
// the mount itself.
func TestDag(t *testing.T) {
	harness.NeedDaemon(t)
	root := golden(t)["dir mixed hidden=true,empty-dirs=true"]
	if root == "" {
		t.Fatal("no golden CID of the tree")
	}
	src, big := mixed(t), stream(7, 2097153)
	for _, mounted := range []bool{true, false} {
		t.Run(map[bool]string{true: "mounted", false: "free"}[mounted], func(t *testing.T) {
			m := harness.New(t, harness.Options{})
			work := harness.Scratch(t)
			if !mounted {
				m.Umount()
			}
			cafs := func(args ...string) string { t.Helper(); return m.MustCafs(append(args, "--repo", m.Repo)...) }
			raw := func(args ...string) harness.Result { return m.Cafs(append(args, "--repo", m.Repo)...) }
			if got := cafs("add", "-rq", src); got != root {
				t.Fatalf("add: %s, Kubo has %s", got, root)
			}
			file := cafs("dag", "resolve", root+"/sub/big")
			if got := cafs("dag", "get", file+"/"); !strings.HasPrefix(got, `{"Data":`) || !json.Valid([]byte(got)) {
				t.Errorf("dag get: %.60s", got)
			}
			var size struct{ Blocks, Bytes int }
			if err := json.Unmarshal([]byte(cafs("dag", "stat", "--json", root)), &size); err != nil || size.Blocks < 10 || size.Bytes < len(big) {
				t.Errorf("dag stat: %+v, %v", size, err)
			}
			if got := raw("cat", "--range", "1048570-1048580", root+"/sub/big"); got.Stdout != string(big[1048570:1048581]) {
				t.Errorf("cat --range: %q, %s", got.Stdout, got.Stderr)
			}

			one, two := filepath.Join(work, "1.car"), filepath.Join(work, "2.car")
			write(t, one, []byte(raw("dag", "export", root).Stdout))
			cafs("dag", "export", "--car-version", "2", "-o", two, root)
			for _, path := range []string{one, two} {
				if r, n := blocksOf(t, path); r != root || n != size.Blocks {
					t.Errorf("%s: root %s, %d blocks of %d", path, r, n, size.Blocks)
				}
			}
			part := filepath.Join(work, "part.car")
			cafs("dag", "export", "-o", part, "--entity-bytes", "0:9", root+"/sub/big")
			if _, n := blocksOf(t, part); n != 4 { // two directories, the file's root, its first leaf
				t.Errorf("--entity-bytes: %d blocks", n)
			}
			if r := raw("dag", "export", "-o", part+"2", root+"/none"); r.Code != 8 || exists(part+"2") {
				t.Errorf("export of nothing: exit %d, %s, file left: %v", r.Code, r.Stderr, exists(part+"2"))
			}
			if mounted {
				cafs("dag", "export", "-o", m.Path("own.car"), root)
				wantFile(t, m.Path("own.car"), read(t, one))
			}
			importAll(t, m, mounted, root, one, two, part)
		})
	}
}

// importAll brings CARs into a second repository, and back from the own mount.
func importAll(t *testing.T, m *harness.Mount, mounted bool, root, one, two, part string) {
	other := harness.New(t, harness.Options{})
	if !mounted {
		other.Umount()
	}
	cafs := func(args ...string) harness.Result { return other.Cafs(append(args, "--repo", other.Repo)...) }
	if r := cafs("dag", "import", part); r.Code != 8 || !strings.Contains(r.Stderr, "incomplete") {
		t.Errorf("import of a part: exit %d, %s", r.Code, r.Stderr)
	}
	if r := cafs("dag", "import", "--no-pin", part); r.Code != 0 || strings.TrimSpace(r.Stdout) != root {
		t.Errorf("import --no-pin of a part: exit %d, %s", r.Code, r.Stderr)
	}
	bad := bytes.Clone(read(t, one))
	bad[len(bad)-1] ^= 1
	write(t, one+".bad", bad)
	if r := cafs("dag", "import", one+".bad"); r.Code == 0 || r.Stdout != "" {
		t.Errorf("import of damaged bytes: exit %d, roots %s", r.Code, r.Stdout)
	}
	for _, path := range []string{one, two} {
		if r := cafs("dag", "import", path); r.Code != 0 || strings.TrimSpace(r.Stdout) != root {
			t.Errorf("import %s: exit %d, %s%s", path, r.Code, r.Stdout, r.Stderr)
		}
	}
	if got := cafs("cat", root+"/sub/big"); got.Stdout != string(stream(7, 2097153)) {
		t.Errorf("cat after import: %d bytes, %s", len(got.Stdout), got.Stderr)
	}
	if mounted {
		if got := m.MustCafs("dag", "import", "--repo", m.Repo, m.Path("own.car")); got != root {
			t.Errorf("import from the own mount: %s", got)
		}
		if _, err := os.Stat(other.Path(".cafs/ipfs", root, "hello.txt")); err != nil {
			t.Error(err)
		}
	}
}

// TestDedup: one byte put in front of a file that is cut by content stores
// little that is new, and --stats says so.
func TestDedup(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	m.Umount()
	n := harness.Scale(16<<20, 100<<20)
	data := noise(n)
	dir := harness.Scratch(t)
	add := func(name string, data []byte) (stats struct{ Logical, Unique, Stored int }) {
		t.Helper()
		write(t, filepath.Join(dir, name), data)
		var line struct{ Stats any }
		line.Stats = &stats
		out := m.MustCafs("add", "--json", "--stats", "--chunker", "buzhash", "--repo", m.Repo, filepath.Join(dir, name))
		if err := json.Unmarshal([]byte(out), &line); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return stats
	}
	if s := add("a", data); s.Logical != n || s.Stored != s.Unique || s.Stored < n {
		t.Errorf("first: %+v", s)
	}
	if s := add("b", append([]byte{1}, data...)); s.Logical != n+1 || s.Unique < n || s.Stored > n/20 {
		t.Errorf("one byte in front of %d stored %d new bytes: %+v", n, s.Stored, s)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// noise returns bytes without a pattern, the same each time.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}
