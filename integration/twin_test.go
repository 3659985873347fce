package integration_test

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
	"cafs/integration/twin"
)

// namespaceOps is the long form of TestNamespace.
const namespaceOps = 2_000_000

// TestNamespace compares random operations on names with tmpfs.
func TestNamespace(t *testing.T) {
	var flags []string
	if os.Geteuid() == 0 {
		flags = append(flags, "--allow-dev")
	}
	m := harness.New(t, harness.Options{Args: flags, Limit: max(harness.MountLimit(), time.Duration(harness.Scale(0, 24))*time.Hour)})
	dir := m.Path("twin")
	if err := unix.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	defer func() { t.Logf("%v", time.Since(began).Round(time.Second)) }()
	twin.Run(t, harness.Tmpfs(t), dir, twin.Options{
		Seed: seed(t), Ops: ops(20_000, namespaceOps, namespaceOps),
		NoDev: len(flags) == 0, Remount: m.Remount, DropCaches: func() { harness.DropCaches() },
	})
}
