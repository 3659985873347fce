package repo_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/mount/repo"
)

func mkdir(t *testing.T, path ...string) string {
	t.Helper()
	p := filepath.Join(path...)
	if err := os.MkdirAll(p, 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// realTemp is a temporary folder by its real path.
func realTemp(t *testing.T) string {
	t.Helper()
	d, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestResolve(t *testing.T) {
	d := realTemp(t)
	mkdir(t, d, "real", "sub")
	for name, target := range map[string]string{"link": "real", "up": "real/../real/sub", "dangling": "nowhere", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(d, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ in, want string }{
		{"real", "real"},
		{"link", "real"},
		{"link/sub", "real/sub"},
		{"up/x/y", "real/sub/x/y"},
		{"link/../real", "real"},
		{"missing/deep", "missing/deep"},
		{"dangling", ""},
		{"dangling/x", ""},
		{"loop", ""},
	} {
		got, err := repo.Resolve(filepath.Join(d, c.in))
		if c.want == "" {
			if err == nil {
				t.Errorf("Resolve(%s) = %s, want an error", c.in, got)
			}
		} else if want := filepath.Join(d, c.want); err != nil || got != want {
			t.Errorf("Resolve(%s) = %s, %v, want %s", c.in, got, err, want)
		}
	}
}

func TestCheckNesting(t *testing.T) {
	d := realTemp(t)
	mkdir(t, d, "a", "repo")
	for _, c := range []struct {
		repo, dir string
		nested    bool
	}{
		{"a/repo", "a/repo", true},
		{"a/repo", "a", true},
		{"a/repo", ".", true},
		{"a/repo", "a/repo/m", true},
		{"a/repo", "a/repo/x/m", true},
		{"a/repo", "a/repo2", false}, // the name only begins alike
		{"a/repo", "a/re", false},
		{"a/repo", "b", false},
		{"new/repo", "new", true}, // neither exists
		{"new/repo", "new/repo/..m", true},
		{"new/repo", "new/m", false},
	} {
		err := repo.CheckNesting(filepath.Join(d, c.repo), filepath.Join(d, c.dir))
		if errors.Is(err, repo.ErrNested) != c.nested {
			t.Errorf("repository %s, mountpoint %s: %v, want nested %v", c.repo, c.dir, err, c.nested)
		}
	}
}

func TestInit(t *testing.T) {
	d := t.TempDir()
	r := filepath.Join(d, "r")
	if _, err := repo.ReadConfig(r); !errors.Is(err, repo.ErrNotRepo) {
		t.Errorf("config of a missing folder: %v", err)
	}
	if err := repo.Init(r, repo.Config{Profile: "unixfs-v1-2025,chunker=buzhash"}); err == nil {
		t.Error("a tree that cuts by content was allowed")
	}
	mkdir(t, r, repo.BlocksName) // an Init that was interrupted
	write(t, filepath.Join(r, "config.new"), `{"versi`)
	if err := repo.Init(r, repo.Config{Shard: "next-to-last/3"}); err != nil {
		t.Fatal(err)
	}
	got, err := repo.ReadConfig(r)
	want := repo.Config{Version: repo.Version, Profile: repo.DefaultProfile, Shard: "/repo/flatfs/shard/v1/next-to-last/3"}
	if err != nil || got != want {
		t.Errorf("config %+v, %v, want %+v", got, err, want)
	}
	if err := repo.Init(r, repo.Config{}); !errors.Is(err, repo.ErrExists) {
		t.Errorf("second Init: %v", err)
	}
	if info, err := os.Stat(r); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode of the repository: %v, %v", info.Mode(), err)
	}
	other := mkdir(t, d, "other")
	write(t, filepath.Join(other, "letter.txt"), "")
	if err := repo.Init(other, repo.Config{}); err == nil || !strings.Contains(err.Error(), "letter.txt") {
		t.Errorf("Init of a folder with files: %v", err)
	}
	if err := repo.Init(filepath.Join(d, "no", "parent"), repo.Config{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Init without a parent: %v", err)
	}
}

func TestReadConfigDamaged(t *testing.T) {
	for text, want := range map[string]error{
		`{"version":2,"new":true}`: repo.ErrVersion,
		`{"version":0}`:            repo.ErrDamaged,
		`{"profile":"x"}`:          repo.ErrDamaged,
		"":                         repo.ErrDamaged,
		"\x00\x00\x00\x00":         repo.ErrDamaged,
	} {
		r := t.TempDir()
		write(t, filepath.Join(r, repo.ConfigName), text)
		_, err := repo.ReadConfig(r)
		if !errors.Is(err, want) || !strings.Contains(err.Error(), filepath.Join(r, repo.ConfigName)) {
			t.Errorf("config %q: %v, want %v and the file's name", text, err, want)
		}
		if _, err := repo.Open(context.Background(), r, repo.Options{Create: &repo.Config{}}); !errors.Is(err, want) {
			t.Errorf("Open with config %q: %v, want %v", text, err, want)
		}
	}
	// A repository that lost its config is not taken for an empty folder.
	r := t.TempDir()
	write(t, filepath.Join(mkdir(t, r, repo.IndexName), "MANIFEST"), "")
	if _, err := repo.ReadConfig(r); !errors.Is(err, repo.ErrDamaged) {
		t.Errorf("config lost: %v", err)
	}
	if err := repo.Init(r, repo.Config{}); !errors.Is(err, repo.ErrDamaged) {
		t.Errorf("Init after the config was lost: %v", err)
	}
}

func TestOpen(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "r")
	if _, err := repo.Open(ctx, path, repo.Options{}); !errors.Is(err, repo.ErrNotRepo) {
		t.Fatalf("Open of nothing: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("Open of nothing made something")
	}
	r, err := repo.Open(ctx, path, repo.Options{Create: &repo.Config{}, Holder: repo.Holder{State: repo.StateMounted, Mountpoint: "/m"}})
	if err != nil {
		t.Fatal(err)
	}
	var locked *repo.LockedError
	if _, err := repo.Open(ctx, path, repo.Options{}); !errors.As(err, &locked) || locked.Holder.PID != os.Getpid() || locked.Holder.Mountpoint != "/m" {
		t.Errorf("second Open: %v", err)
	}
	sum, _ := mh.Sum([]byte("x"), mh.SHA2_256, -1)
	want := repo.Root{Cid: cid.NewCidV1(cid.Raw, sum), Name: "näme\n", Time: time.Unix(1700000000, 5).UTC()}
	if err := r.Store.Put(ctx, want.Cid, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := r.AddRoot(ctx, want); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r, err = repo.Open(ctx, path, repo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Unclean {
		t.Error("unclean after Close")
	}
	var roots []repo.Root
	for root, err := range r.Roots() {
		if err != nil {
			t.Fatal(err)
		}
		roots = append(roots, root)
	}
	if !slices.Equal(roots, []repo.Root{want}) {
		t.Errorf("roots %v, want %v", roots, want)
	}
	if b, err := r.Store.Get(ctx, want.Cid); err != nil || string(b) != "x" {
		t.Errorf("block after reopening: %q, %v", b, err)
	}
}

// TestOpenMissingFolder: each folder of a repository that is lost is named.
func TestOpenMissingFolder(t *testing.T) {
	ctx := context.Background()
	for _, name := range []string{repo.BlocksName, repo.IndexName} {
		path := filepath.Join(t.TempDir(), "r")
		if err := repo.Init(path, repo.Config{}); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := repo.Open(ctx, path, repo.Options{}); !errors.Is(err, repo.ErrDamaged) || !strings.Contains(err.Error(), filepath.Join(path, name)) {
			t.Errorf("without %s: %v", name, err)
		}
		if _, held, err := repo.LockedBy(path); held || err != nil {
			t.Errorf("without %s: locked after a failed Open: %v, %v", name, held, err)
		}
	}
}
