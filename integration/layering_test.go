package integration_test

import (
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// goList runs go list in the module's root and returns the lines it prints.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v", args, err)
	}
	return strings.Fields(string(out))
}

// layers are the packages from top to bottom. A package may import those of
// its own layer and of the layers below it, never one above.
var layers = []string{"cafs/cmd/cafs", "cafs/mount", "cafs/mount/tree", "cafs/linksys", "cafs/store", "cafs/shard"}

// layer returns the index of the deepest layer whose path is a prefix of pkg.
func layer(pkg string) int {
	found := -1
	for i, l := range layers {
		if (pkg == l || strings.HasPrefix(pkg, l+"/")) && (found < 0 || len(l) > len(layers[found])) {
			found = i
		}
	}
	return found
}

// TestLayering keeps imports pointing down.
func TestLayering(t *testing.T) {
	seen := 0
	for _, pkg := range goList(t, "./...") {
		if strings.HasPrefix(pkg, "cafs/integration") {
			continue
		}
		from := layer(pkg)
		if from < 0 {
			t.Errorf("%s is in no layer: a new folder at the top level needs a reason, and a row in this test", pkg)
			continue
		}
		for _, imp := range goList(t, "-f", `{{join .Imports "\n"}}`, pkg) {
			if !strings.HasPrefix(imp, "cafs/") {
				continue
			}
			seen++
			if to := layer(imp); to < from {
				t.Errorf("%s imports %s, which is above it", pkg, imp)
			}
		}
	}
	if seen == 0 {
		t.Error("no import between packages of the module was seen: the test looks at nothing")
	}
}

// TestForbiddenImports keeps what a package may not even reach.
func TestForbiddenImports(t *testing.T) {
	rules := []struct {
		forbidden string
		direct    bool     // only what the package itself imports counts, not what it reaches
		allowed   []string // the packages (with those below them) that may
		among     []string // the packages looked at
		why       string
	}{
		{"github.com/hanwen/go-fuse/", true, []string{"cafs/mount", "cafs/integration"}, []string{"./..."},
			"the tree, the store and the commands are tested without a kernel"},
		{"github.com/hanwen/go-fuse/", true, nil, []string{"./mount/tree/..."},
			"the tree does not know the kernel"},
		{"github.com/cockroachdb/pebble", true, []string{"cafs/mount/tree/index"}, []string{"./..."},
			"the index is the only place that knows its database"},
		{"github.com/ipld/go-ipld-prime", false, nil, []string{"./store/..."},
			"a store keeps bytes by hash; it knows no nodes"},
		{"cafs/integration", false, []string{"cafs/integration"}, []string{"./..."},
			"nobody imports the tests"},
		{"os", true, nil, []string{"./linksys/unixfs"},
			"the encoders are pure functions and open no files"},
	}
	for _, r := range rules {
		list := "{{.Imports}}"
		if !r.direct {
			list = "{{.Deps}}"
		}
		for _, pkg := range goList(t, r.among...) {
			if slices.ContainsFunc(r.allowed, func(a string) bool { return pkg == a || strings.HasPrefix(pkg, a+"/") }) {
				continue
			}
			for _, imp := range goList(t, "-f", list, pkg) {
				imp = strings.Trim(imp, "[]")
				if imp == r.forbidden || strings.Contains(r.forbidden, "/") && strings.HasPrefix(imp, r.forbidden) {
					t.Errorf("%s imports %s: %s", pkg, imp, r.why)
				}
			}
		}
	}
}

// direct are the modules that the binary's own code imports. Each new one
// needs its reason in ARCHITECTURE.md.
var direct = []string{
	"github.com/cockroachdb/pebble/v2",
	"github.com/dustin/go-humanize",
	"github.com/hanwen/go-fuse/v2",
	"github.com/ipfs/boxo",
	"github.com/ipfs/go-cid",
	"github.com/ipfs/go-unixfsnode",
	"github.com/ipld/go-car/v2",
	"github.com/ipld/go-codec-dagpb",
	"github.com/ipld/go-ipld-prime",
	"github.com/multiformats/go-multihash",
	"github.com/prometheus/client_golang",
	"github.com/schollz/progressbar/v3",
	"github.com/spaolacci/murmur3",
	"github.com/urfave/cli/v2",
	"golang.org/x/sync",
	"golang.org/x/sys",
}

// TestDirectDependencies lists the modules that our own packages import, apart
// from tests, and fails on one that is not in the list.
func TestDirectDependencies(t *testing.T) {
	module := map[string]string{} // of each package in reach
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Module", "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p struct {
			ImportPath string
			Module     *struct{ Path string }
		}
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.Module != nil {
			module[p.ImportPath] = p.Module.Path
		}
	}
	found := map[string]bool{}
	for _, imp := range goList(t, "-f", `{{join .Imports "\n"}}`, "./...") {
		if m := module[imp]; m != "" && m != "cafs" {
			found[m] = true
		}
	}
	var names []string
	for m := range found {
		names = append(names, m)
		if !slices.Contains(direct, m) {
			t.Errorf("new direct dependency %s", m)
		}
	}
	slices.Sort(names)
	t.Logf("direct dependencies:\n%s", strings.Join(names, "\n"))
}
