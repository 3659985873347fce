package integration_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
	"cafs/integration/twin"
)

// TestNamespace compares random operations on names with tmpfs.
func TestNamespace(t *testing.T) {
	var flags []string
	if os.Geteuid() == 0 {
		flags = append(flags, "--allow-dev") // or opening a device file is EACCES
	}
	m := harness.New(t, harness.Options{Args: flags})
	dir := m.Path("twin")
	if err := unix.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	twin.Run(t, harness.Tmpfs(t), dir, twin.Options{
		Seed: seed(t), Ops: harness.Scale(20_000, 2_000_000),
		Remount: m.Remount, DropCaches: func() { harness.DropCaches() },
	})
}
