package integration_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDurabilityPage: every test that the pages of promises name is there. A
// name without a package is of the package named before it.
func TestDurabilityPage(t *testing.T) {
	for _, page := range []string{"durability.md", "posix.md"} {
		t.Run(page, func(t *testing.T) { testPage(t, filepath.Join("..", "doc", page)) })
	}
}

func testPage(t *testing.T, page string) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`(?:([a-z/]+): )?(Test[A-Za-z]+)`").FindAllStringSubmatch(string(text), -1)
	if len(names) < 20 {
		t.Fatalf("only %d names: the test looks at nothing", len(names))
	}
	pkg := ""
	for _, n := range names {
		if n[1] != "" {
			pkg = n[1]
		}
		files, err := filepath.Glob(filepath.Join("..", pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(b), "\nfunc "+n[2]+"(t *testing.T) {")
		}
		if !found {
			t.Errorf("%s has no %s", pkg, n[2])
		}
	}
}
