package integration_test

import (
	"bytes"
	"encoding/base32"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ipfs/go-cid"

	"cafs/integration/harness"
)

// blockFile returns where a repository keeps the block of a CID.
func blockFile(t *testing.T, repo, c string) string {
	t.Helper()
	id, err := cid.Decode(c)
	if err != nil {
		t.Fatal(err)
	}
	name := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(id.Hash())
	return filepath.Join(repo, "blocks", name[len(name)-3:len(name)-1], name+".data")
}

// TestDamage (C05, D17): a block whose bytes are wrong, cut off or gone makes
// reads of its part of the file that needs it fail with EIO, is named in the
// log with the path, and does nothing else. verify finds it.
func TestDamage(t *testing.T) {
	harness.NeedDaemon(t)
	const chunk = 1 << 20
	damages := map[string]func(t *testing.T, path string){
		"flipped": func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)/2] ^= 1
			rewrite(t, path, b)
		},
		"other bytes": func(t *testing.T, path string) { rewrite(t, path, stream(99, chunk)) },
		"zeros":       func(t *testing.T, path string) { rewrite(t, path, make([]byte, chunk)) },
		"short":       func(t *testing.T, path string) { rewrite(t, path, stream(2, chunk)[:1000]) },
		"empty":       func(t *testing.T, path string) { rewrite(t, path, nil) },
		"gone": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			m := harness.New(t, harness.Options{})
			bad, good := stream(1, 3*chunk), stream(2, 3*chunk)
			write(t, m.Path("d/bad"), bad)
			write(t, m.Path("d/good"), good)
			write(t, m.Path("leaf"), bad[chunk:2*chunk]) // shares the damaged block
			leaf := cidOf(t, m.Path("leaf"))
			cidOf(t, m.Dir) // seals all
			if r := m.Cafs("verify", "--data", "--repo", m.Repo); r.Code != 0 {
				t.Errorf("verify of a sound repository: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
			}
			m.Umount()
			damage(t, blockFile(t, m.Repo, leaf))
			m.Mount()
			wantFile(t, m.Path("d/good"), good)
			f, err := os.Open(m.Path("d/bad"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			// A page is checked by itself, so that one that is whole may be read.
			// What is read is never wrong.
			buf := make([]byte, 4096)
			for _, off := range []int64{0, chunk, chunk + chunk/2, 2*chunk - 4096, 2*chunk + 123_456} {
				n, err := f.ReadAt(buf, off)
				whole, hit := off < chunk || off >= 2*chunk, off == chunk+chunk/2
				switch {
				case hit && !errors.Is(err, syscall.EIO):
					t.Errorf("reading the damaged page: %d, %v, must be EIO", n, err)
				case whole && err != nil:
					t.Errorf("reading %d, where nothing is damaged: %v", off, err)
				case err == nil && !bytes.Equal(buf, bad[off:off+4096]):
					t.Errorf("reading %d: wrong bytes", off)
				}
			}
			if _, err := os.ReadFile(m.Path("d/bad")); !errors.Is(err, syscall.EIO) {
				t.Errorf("the whole damaged file: %v, must be EIO", err)
			}
			if _, err := os.ReadFile(m.Path("leaf")); !errors.Is(err, syscall.EIO) {
				t.Errorf("the other file with that block: %v, must be EIO", err)
			}
			if log := m.Log(); !strings.Contains(log, leaf) || !strings.Contains(log, "d/bad") {
				t.Errorf("the log does not name the block %s and the path d/bad:\n%s", leaf, m.LogTail())
			}
			write(t, m.Path("d/new"), []byte("life goes on"))
			m.Sync()
			r := m.Cafs("verify", "--data", "--repo", m.Repo)
			for _, want := range []string{"/d/bad", "/leaf"} {
				if r.Code != 5 || !strings.Contains(r.Stdout, leaf) || !strings.Contains(r.Stdout, want+"\n") || strings.Contains(r.Stdout, "good") {
					t.Errorf("verify: exit %d, and it must name %s and %s: %s%s", r.Code, leaf, want, r.Stdout, r.Stderr)
				}
			}
			f.Close()
			// The whole block written again heals.
			write(t, m.Path("again"), bad[chunk:2*chunk])
			if got := cidOf(t, m.Path("again")); got != leaf {
				t.Errorf("CID %s, must be %s", got, leaf)
			}
			m.Remount()
			wantFile(t, m.Path("again"), bad[chunk:2*chunk])
		})
	}
}

// rewrite replaces the bytes of a block's file.
func rewrite(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestVerifyRepair: what is damaged is repaired from another repository, while
// the damaged one is mounted; without that it is moved aside and stays lost.
func TestVerifyRepair(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	want := stream(1, 3<<20)
	write(t, m.Path("d/f"), want)
	write(t, m.Path("leaf"), want[1<<20:2<<20])
	f, leaf := cidOf(t, m.Path("d/f")), blockFile(t, m.Repo, cidOf(t, m.Path("leaf")))
	m.MustCafs("snapshot", "create", "one", "--repo", m.Repo)
	m.Umount()
	backup := filepath.Join(harness.Scratch(t), "backup")
	command(t, "/", "cp", "-a", m.Repo, backup)
	m.Mount()
	rewrite(t, leaf, nil)
	rewrite(t, blockFile(t, m.Repo, f), []byte("node"))

	r := m.Cafs("verify", "--data", "--repair", "--repo", m.Repo)
	for _, word := range []string{f, "damaged, quarantined", "/d/f\n", "snapshot one"} {
		if r.Code != 5 || !strings.Contains(r.Stdout, word) {
			t.Errorf("exit %d, and the output must have %q: %s%s", r.Code, word, r.Stdout, r.Stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(m.Repo, "quarantine", filepath.Base(leaf))); err != nil {
		t.Error(err)
	}
	if r := m.Cafs("verify", "--repo", m.Repo); r.Code != 5 || !strings.Contains(r.Stdout, "missing\t/d/f\n") {
		t.Errorf("verify of a repository that lacks a block: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	// The node has to come back before it is known which leaf of it is missing.
	if err := os.Remove(m.Path("leaf")); err != nil {
		t.Fatal(err)
	}
	m.MustCafs("verify", "--data", "--repair", "--from", backup, "--repo", m.Repo)
	m.MustCafs("verify", "--data", "--repo", m.Repo)
	m.Remount()
	wantFile(t, m.Path("d/f"), want)
}
