package integration_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

// pkg is a package as go list knows it.
type pkg struct {
	ImportPath string
	Imports    []string // by the package itself, tests apart
	Deps       []string // all it reaches
	Module     *struct{ Path string }
}

// packages returns all packages in reach of the module, by import path.
var packages = sync.OnceValues(func() (map[string]pkg, error) {
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Deps,Module", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	all := map[string]pkg{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all[p.ImportPath] = p
	}
})

// ours are the packages of this module.
func ours(t *testing.T) []pkg {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var list []pkg
	for path, p := range all {
		if within(path, "cafs") {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b pkg) int { return strings.Compare(a.ImportPath, b.ImportPath) })
	if len(list) < 10 {
		t.Fatalf("only %d packages: the test looks at nothing", len(list))
	}
	return list
}

// within says whether path is root or lies below it.
func within(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// layers are the packages from top to bottom. A package may import those of
// its own layer and of the layers below it, never one above.
var layers = []string{"cafs/cmd/cafs", "cafs/mount", "cafs/mount/tree", "cafs/linksys", "cafs/store", "cafs/shard"}

// layer returns the index of the deepest layer that path belongs to, or -1.
func layer(path string) int {
	found := -1
	for i, l := range layers {
		if within(path, l) && (found < 0 || len(l) > len(layers[found])) {
			found = i
		}
	}
	return found
}

// TestLayering keeps imports pointing down.
func TestLayering(t *testing.T) {
	for _, p := range ours(t) {
		if within(p.ImportPath, "cafs/integration") {
			continue
		}
		from := layer(p.ImportPath)
		if from < 0 {
			t.Errorf("%s is in no layer: a new folder at the top level needs a reason, and a row in this test", p.ImportPath)
		}
		for _, imp := range p.Imports {
			if within(imp, "cafs") && layer(imp) < from {
				t.Errorf("%s imports %s, which is above it", p.ImportPath, imp)
			}
		}
	}
}

// TestForbiddenImports keeps packages from what they must do without.
func TestForbiddenImports(t *testing.T) {
	rules := []struct {
		forbidden string   // this package or those below it
		reach     bool     // reaching it through others counts too
		among     string   // our packages that the rule is for
		except    []string // among them
		why       string
	}{
		{"github.com/hanwen/go-fuse/v2", false, "cafs", []string{"cafs/mount", "cafs/integration"},
			"commands and libraries are tested without a kernel"},
		{"github.com/hanwen/go-fuse/v2", true, "cafs/mount/tree", nil,
			"the tree does not know the kernel"},
		{"github.com/cockroachdb/pebble/v2", false, "cafs", []string{"cafs/mount/tree/index"},
			"the index alone knows its database"},
		{"github.com/ipld/go-ipld-prime", true, "cafs/store", []string{"cafs/store/adapter"},
			"a store keeps bytes by hash and knows no nodes; its adapters exist for those who do"},
		{"cafs/store/adapter", true, "cafs/cmd", nil,
			"the adapters are for other programs"},
		{"cafs/integration", true, "cafs", []string{"cafs/integration"},
			"nobody imports the tests"},
		{"os", false, "cafs/linksys/unixfs", nil,
			"the encoders are pure functions and open no files"},
	}
	for _, r := range rules {
		for _, p := range ours(t) {
			if !within(p.ImportPath, r.among) || slices.ContainsFunc(r.except, func(e string) bool { return within(p.ImportPath, e) }) {
				continue
			}
			list := p.Imports
			if r.reach {
				list = p.Deps
			}
			for _, imp := range list {
				// A standard package is forbidden itself, not those below it.
				if imp == r.forbidden || strings.Contains(r.forbidden, "/") && within(imp, r.forbidden) {
					t.Errorf("%s imports %s: %s", p.ImportPath, imp, r.why)
					break
				}
			}
		}
	}
}

// TestDirectDependencies prints the modules that our packages import, tests
// apart, and fails on one that ARCHITECTURE.md gives no reason for.
func TestDirectDependencies(t *testing.T) {
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, p := range ours(t) {
		for _, imp := range p.Imports {
			if m := all[imp].Module; m != nil && m.Path != "cafs" && !slices.Contains(found, m.Path) {
				found = append(found, m.Path)
			}
		}
	}
	slices.Sort(found)
	t.Logf("direct dependencies:\n%s", strings.Join(found, "\n"))
	for _, m := range found {
		name := strings.TrimPrefix(m, "github.com/")
		if i := strings.LastIndex(name, "/v"); i > 0 {
			name = name[:i]
		}
		if !strings.Contains(string(text), name) {
			t.Errorf("%s is a direct dependency, and ARCHITECTURE.md does not say what for", name)
		}
	}
}
