package mount_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ipfs/go-cid"
	"github.com/multiformats/go-multibase"
	"golang.org/x/sys/unix"
)

func cidOf(t *testing.T, path string) cid.Cid {
	t.Helper()
	buf := make([]byte, 256)
	n, err := unix.Lgetxattr(path, "ipfs.cid", buf)
	if err != nil {
		t.Fatalf("ipfs.cid of %s: %v", path, err)
	}
	c, err := cid.Decode(string(buf[:n]))
	if err != nil {
		t.Fatalf("ipfs.cid of %s: %q: %v", path, buf[:n], err)
	}
	return c
}

func same(t *testing.T, what, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes, %v; want %d", what, len(got), err, len(want))
	}
	if st, err := os.Stat(path); err != nil || st.Size() != int64(len(want)) {
		t.Errorf("%s: stat: %v, %v; want size %d", what, st, err, len(want))
	}
}

// TestView: content of the tree, seen by its addresses.
func TestView(t *testing.T) {
	m := mountTest(t, serveOptions{})
	big := make([]byte, 3<<20+5)
	rand.NewChaCha8([32]byte{1}).Read(big)
	small := []byte("hello\n")
	for _, err := range []error{
		os.MkdirAll(m.path("d", "sub"), 0o755),
		os.WriteFile(m.path("d", "big"), big, 0o644),
		os.WriteFile(m.path("d", "sub", "small"), small, 0o644),
		os.Symlink("sub/small", m.path("d", "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, leaf := cidOf(t, m.path("d")), cidOf(t, m.path("d", "sub", "small"))
	at := func(names ...string) string { return m.path(append([]string{".cafs", "ipfs"}, names...)...) }

	t.Run("content", func(t *testing.T) {
		same(t, "big", at(dir.String(), "big"), big)
		same(t, "small", at(dir.String(), "sub", "small"), small)
		same(t, "through a link", at(dir.String(), "link"), small)
		same(t, "file CID", at(leaf.String()), small)
		same(t, "block", m.path(".cafs", "block", leaf.String()), small)
		if out, err := exec.Command("diff", "-r", "--no-dereference", m.path("d"), at(dir.String())).CombinedOutput(); err != nil {
			t.Errorf("diff of the tree and the view: %v\n%s", err, out)
		}
		if got := cidOf(t, at(dir.String(), "sub", "small")); got != leaf {
			t.Errorf("ipfs.cid in the view: %s, want %s", got, leaf)
		}
	})
	t.Run("forms of a CID", func(t *testing.T) {
		for _, base := range []multibase.Encoding{multibase.Base32, multibase.Base32Upper, multibase.Base36, multibase.Base58BTC, multibase.Base16} {
			text, err := leaf.StringOfBase(base)
			if err != nil {
				t.Fatal(err)
			}
			same(t, text, at(text), small)
		}
		v0 := cid.NewCidV0(dir.Hash()).String()
		same(t, v0, at(v0, "sub", "small"), small)
		cbor := cid.NewCidV1(0x71, leaf.Hash()).String()
		same(t, "unknown codec", at(cbor), small)
	})
	t.Run("dag-json", func(t *testing.T) {
		text, err := os.ReadFile(m.path(".cafs", "dag", dir.String()))
		var node struct{ Links []struct{ Name string } }
		if err == nil {
			err = json.Unmarshal(text, &node)
		}
		if err != nil || len(node.Links) != 3 || node.Links[0].Name != "big" {
			t.Errorf("dag-json of a directory: %v, %s", err, text)
		}
		if st, err := os.Stat(m.path(".cafs", "dag", dir.String())); err != nil || st.Size() != int64(len(text)) {
			t.Errorf("size of dag-json: %v, %v; want %d", st, err, len(text))
		}
	})
	t.Run("what is not there", func(t *testing.T) {
		missing := cid.NewCidV1(cid.Raw, cid.NewCidV1(cid.Raw, bytes.Replace(leaf.Hash(), leaf.Hash()[2:6], []byte("miss"), 1)).Hash())
		for path, want := range map[string]error{
			at("nonsense"):                            unix.ENOENT,
			at(dir.String(), "none"):                  unix.ENOENT,
			at(leaf.String(), "below"):                unix.ENOTDIR,
			m.path(".cafs", "none"):                   unix.ENOENT,
			m.path("d", ".cafs"):                      unix.ENOENT,
			at(missing.String()):                      unix.EIO,
			m.path(".cafs/block/" + missing.String()): unix.EIO,
		} {
			if _, err := os.Lstat(path); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", path, err, want)
			}
		}
		if !strings.Contains(m.log(), missing.String()) {
			t.Errorf("the log does not name the missing block %s", missing)
		}
	})
	t.Run("read-only", func(t *testing.T) {
		in := at(dir.String())
		for what, c := range map[string]struct{ got, want error }{
			"mkdir":            {unix.Mkdir(filepath.Join(in, "x"), 0o755), unix.EROFS},
			"unlink":           {unix.Unlink(filepath.Join(in, "big")), unix.EROFS},
			"truncate":         {unix.Truncate(filepath.Join(in, "big"), 0), unix.EROFS},
			"chmod":            {unix.Chmod(in, 0o777), unix.EROFS},
			"setxattr":         {unix.Setxattr(in, "user.x", nil, 0), unix.EROFS},
			"rename within":    {unix.Rename(filepath.Join(in, "big"), filepath.Join(in, "x")), unix.EROFS},
			"rename out":       {unix.Rename(filepath.Join(in, "big"), m.path("x")), unix.EXDEV},
			"rename in":        {unix.Rename(m.path("d"), filepath.Join(in, "x")), unix.EXDEV},
			"link out":         {unix.Link(filepath.Join(in, "big"), m.path("x")), unix.EXDEV},
			"rmdir .cafs":      {unix.Rmdir(m.path(".cafs")), unix.EROFS},
			"rename of .cafs":  {unix.Rename(m.path(".cafs"), m.path("x")), unix.EROFS},
			"rename to .cafs":  {unix.Rename(m.path("d"), m.path(".cafs")), unix.EROFS},
			"mkdir .cafs":      {unix.Mkdir(m.path(".cafs"), 0o755), unix.EEXIST},
			"mknod .cafs/x":    {unix.Mknod(m.path(".cafs", "x"), unix.S_IFREG, 0), unix.EROFS},
			"write to a block": {os.WriteFile(m.path(".cafs", "block", leaf.String()), small, 0o644).(*fs.PathError).Err, unix.EROFS},
		} {
			if c.got != c.want && !refused(c.got) {
				t.Errorf("%s: %v, want %v", what, c.got, c.want)
			}
		}
		same(t, "afterwards", at(dir.String(), "big"), big)
		if out, err := exec.Command("cp", at(dir.String(), "big"), m.path("copy")).CombinedOutput(); err != nil {
			t.Fatalf("cp out of the view: %v\n%s", err, out)
		}
		same(t, "copied out", m.path("copy"), big)
	})
	t.Run("listings", func(t *testing.T) {
		names := func(path string) (list []string) {
			entries, err := os.ReadDir(path)
			if err != nil {
				t.Error(err)
			}
			for _, e := range entries {
				list = append(list, e.Name())
			}
			return list
		}
		if got := names(m.Dir); slices.Contains(got, ".cafs") {
			t.Errorf("the root lists %q", got)
		}
		if got := names(m.path(".cafs")); !slices.Equal(got, []string{"at", "block", "dag", "ipfs", "snapshots"}) {
			t.Errorf(".cafs lists %q", got)
		}
		// The root's CID changes; a listing the kernel kept would be old.
		for i := range 3 {
			if err := os.Mkdir(m.path(fmt.Sprint("new", i)), 0o755); err != nil {
				t.Fatal(err)
			}
			if got, want := names(at()), []string{cidOf(t, m.Dir).String()}; !slices.Equal(got, want) {
				t.Errorf(".cafs/ipfs lists %q, want %q", got, want)
			}
		}
	})
	t.Run("inodes", func(t *testing.T) {
		ino := func() uint64 {
			var st unix.Stat_t
			if err := unix.Stat(at(dir.String(), "sub"), &st); err != nil {
				t.Fatal(err)
			}
			return st.Ino
		}
		before := ino()
		fd, err := unix.Open(at(dir.String()), unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(dents(t, fd, 4096), func(d dent) bool { return d.name == "sub" && d.ino == before })
		unix.Close(fd)
		if i < 0 {
			t.Errorf("the listing does not have inode %d for sub", before)
		}
		m.remount()
		if after := ino(); after != before {
			t.Errorf("inode %d before, %d after mounting again", before, after)
		}
	})
}

// TestViewLargeDir lists a sharded directory whole, also when two go through it
// at once and when one goes back.
func TestViewLargeDir(t *testing.T) {
	m := mountTest(t, serveOptions{})
	const files = 8000
	want := make(map[string]bool, files)
	if err := os.Mkdir(m.path("d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		name := fmt.Sprintf("entry number %d", i)
		if err := os.WriteFile(m.path("d", name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		want[name] = true
	}
	dir := m.path(".cafs", "ipfs", cidOf(t, m.path("d")).String())
	var fds [2]int
	var got [2][]dent
	for i := range fds {
		var err error
		if fds[i], err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fds[i])
	}
	for more := true; more; {
		more = false
		for i, fd := range fds {
			part := dents(t, fd, 16<<10)
			got[i] = append(got[i], part...)
			more = more || len(part) > 0
		}
	}
	for i, list := range got {
		seen := make(map[string]bool)
		for _, d := range list {
			if seen[d.name] || !want[d.name] && d.name != "." && d.name != ".." {
				t.Fatalf("reader %d: entry %q, there before: %v", i, d.name, seen[d.name])
			}
			seen[d.name] = true
		}
		if len(seen) != files+2 {
			t.Errorf("reader %d: %d entries, want %d", i, len(seen), files+2)
		}
	}
	middle := got[0][len(got[0])/2]
	unix.Seek(fds[0], middle.off, 0)
	if part := dents(t, fds[0], 4096); len(part) == 0 || part[0] != got[0][len(got[0])/2+1] {
		t.Errorf("going back behind %q gives %v", middle.name, part[:min(1, len(part))])
	}
}
