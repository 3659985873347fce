package repo_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/ipfs/go-cid"

	"cafs/linksys"
	"cafs/linksys/add"
	"cafs/linksys/car"
	"cafs/mount/repo"
)

func openNew(t *testing.T) *repo.Repo {
	t.Helper()
	r, err := repo.Open(t.Context(), filepath.Join(t.TempDir(), "r"), repo.Options{Create: &repo.Config{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func rootsOf(t *testing.T, r *repo.Repo) (all []cid.Cid) {
	t.Helper()
	for root, err := range r.Roots() {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, root.Cid)
	}
	return all
}

// TestCars: a CAR brings its root along only when all of it is there, and when
// that is wanted.
func TestCars(t *testing.T) {
	from := openNew(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 3<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	root, _, err := from.Import(t.Context(), d, repo.ImportOptions{Recursive: true, NoRoot: true, Options: add.Options{NoSync: true}})
	if err != nil || len(rootsOf(t, from)) != 0 {
		t.Fatalf("%v, roots %v", err, rootsOf(t, from))
	}
	export := func(scope linksys.Scope) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), "car"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if _, err := from.ExportCar(t.Context(), f, root.Cid, car.ExportOptions{Selection: linksys.Selection{Scope: scope}}); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, tc := range []struct {
		scope   linksys.Scope
		noRoots bool
		roots   int
		err     error
	}{
		{linksys.ScopeAll, false, 1, nil},
		{linksys.ScopeAll, true, 0, nil},
		{linksys.ScopeBlock, false, 0, linksys.ErrIncomplete},
		{linksys.ScopeBlock, true, 0, nil},
	} {
		f := export(tc.scope)
		if _, err := f.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		to := openNew(t)
		_, err := to.ImportCar(t.Context(), f, repo.CarOptions{Name: "n", NoRoots: tc.noRoots})
		if got := rootsOf(t, to); !errors.Is(err, tc.err) || len(got) != tc.roots {
			t.Errorf("%+v: roots %v, %v", tc, got, err)
		}
	}
}
