package integration_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"cafs/integration/harness"
)

// TestDamageRepo (C06): each file of a repository in turn is emptied, halved,
// has a bit flipped or is removed. Mounting refuses, with a message that names
// the file or its folder and what to do, or it succeeds; then every name is
// there, and reads give what was written or EIO.
func TestDamageRepo(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedCommand(t, "cp")
	m := harness.New(t, harness.Options{Limit: harness.MountLimit()})
	want := map[string][]byte{
		"small": []byte("small"), "d/block": stream(1, 1<<20), "d/blocks": stream(2, 3<<20+5), "d/e/late": stream(3, 200_000),
	}
	for name, b := range want {
		write(t, m.Path(name), b)
	}
	cidOf(t, m.Path("d/blocks"))
	m.Sync()
	m.Umount()
	for _, name := range filesOf(t, m.Repo) {
		for how, damage := range map[string]func([]byte) []byte{
			"emptied": func([]byte) []byte { return []byte{} },
			"halved":  func(b []byte) []byte { return b[:len(b)/2] },
			"flipped": func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b },
			"removed": func([]byte) []byte { return nil },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				repo := filepath.Join(harness.Scratch(t), "r")
				command(t, "/", "cp", "-a", m.Repo, repo)
				b, err := os.ReadFile(filepath.Join(repo, name))
				if err != nil {
					t.Fatal(err)
				}
				if len(b) == 0 && how != "removed" {
					t.Skip("is empty")
				}
				if b = damage(b); b == nil {
					err = os.Remove(filepath.Join(repo, name))
				} else {
					rewrite(t, filepath.Join(repo, name), b)
				}
				if err != nil {
					t.Fatal(err)
				}
				damaged(t, m, repo, name, want)
			})
		}
	}
}

// filesOf lists the files of a repository, without those that hold nothing.
func filesOf(t *testing.T, repo string) (names []string) {
	err := filepath.WalkDir(repo, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(repo, path)
		if base := filepath.Base(name); base != "ballast" && base != "log" {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func damaged(t *testing.T, m *harness.Mount, repo, name string, want map[string][]byte) {
	r := m.Cafs("mount", "-b", "--repo", repo, m.Dir)
	if r.Code != 0 {
		if !strings.Contains(r.Stderr, filepath.Base(name)) && !strings.Contains(r.Stderr, filepath.Dir(name)) || !strings.Contains(r.Stderr, "hint:") {
			t.Errorf("refused without naming the file and a remedy: exit %d: %s", r.Code, r.Stderr)
		}
		return
	}
	for path, b := range want {
		got, err := os.ReadFile(m.Path(path))
		if err == nil && !bytes.Equal(got, b) {
			t.Errorf("%s: %d bytes that were not written", path, len(got))
		}
		if err != nil && !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if r := m.Cafs("umount", m.Dir); r.Code != 0 && r.Code != 5 && r.Code != 10 {
		t.Errorf("umount: exit %d: %s", r.Code, r.Stderr)
	}
}

// TestRecover: with the index gone, nothing mounts; recover makes the tree of
// the newest commit that is whole, with all attributes, and keeps the others.
func TestRecover(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	write(t, m.Path("d/f"), stream(1, 3<<20))
	if err := os.Chmod(m.Path("d/f"), 0o640); err != nil {
		t.Fatal(err)
	}
	if r := m.Cafs("recover", "--repo", m.Repo); r.Code == 0 {
		t.Errorf("recover of a mounted repository: %s%s", r.Stdout, r.Stderr)
	}
	m.MustCafs("snapshot", "create", "one", "--repo", m.Repo)
	write(t, m.Path("d/f"), stream(2, 3<<20))
	c := cidOf(t, m.Path("d/f"))
	m.MustCafs("snapshot", "create", "two", "--repo", m.Repo)
	m.Umount()
	if r := m.Cafs("recover", "--repo", m.Repo); r.Code == 0 {
		t.Errorf("recover of a sound repository: %s%s", r.Stdout, r.Stderr)
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(m.Repo, "index")), os.Mkdir(filepath.Join(m.Repo, "index"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := m.TryMount(); err == nil {
		t.Error("a repository that lost its index is mounted as a new one")
	}
	m.MustCafs("recover", "--repo", m.Repo)
	m.Mount()
	wantFile(t, m.Path("d/f"), stream(2, 3<<20))
	if got := cidOf(t, m.Path("d/f")); got != c {
		t.Errorf("CID %s, was %s", got, c)
	}
	if info, err := os.Stat(m.Path("d/f")); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode: %v, %v", info, err)
	}
	m.MustCafs("restore", "one", "--repo", m.Repo)
	wantFile(t, m.Path("d/f"), stream(1, 3<<20))
	m.Umount()

	// The newest commit lacks a block, and a file of the index is damaged.
	two, err := os.ReadFile(filepath.Join(m.Repo, "commits"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(two)), "\n")
	last := strings.Fields(lines[len(lines)-1])[1]
	if err := os.Remove(blockFile(t, m.Repo, last)); err != nil {
		t.Fatal(err)
	}
	manifests, _ := filepath.Glob(filepath.Join(m.Repo, "index", "MANIFEST*"))
	for _, name := range manifests {
		rewrite(t, name, nil)
	}
	r := m.Cafs("recover", "--repo", m.Repo)
	if r.Code != 0 || !strings.Contains(r.Stderr, last) {
		t.Errorf("recover without the last commit %s: exit %d: %s", last, r.Code, r.Stderr)
	}
	m.Mount()
	if info, err := os.Stat(m.Path("d/f")); err != nil || info.Size() != 3<<20 {
		t.Errorf("%v, %v", info, err)
	}
}
