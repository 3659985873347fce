// Package integration_test runs the cafs binary on real mounts and looks at
// it from outside: each test is an outcome that users care about. The oracles
// are what Linux does on tmpfs and ext4, byte slices, golden CIDs, and the
// tools themselves (diff, rsync, git fsck, sqlite's integrity_check).
package integration_test

import (
	"flag"
	"os"
	"os/exec"
	"testing"
	"time"

	"cafs/integration/harness"
)

var seedFlag = flag.Int64("seed", 0, "seed of the random tests; 0: a new one, which is printed")

// seed returns the seed of a random test and prints it.
func seed(t *testing.T) int64 {
	t.Helper()
	s := *seedFlag
	if s == 0 {
		s = time.Now().UnixNano()
	}
	t.Logf("seed %d (repeat with -seed %d)", s, s)
	return s
}

var roundsFlag = flag.Int("rounds", 0, "rounds of the tests that crash things again and again; 0: as many as their forms have")

// rounds is how often a test crashes things: n times, or long in the long form.
func rounds(n, long int) int {
	if *roundsFlag > 0 {
		return *roundsFlag
	}
	return harness.Scale(n, long)
}

// process is another process of this program that runs one test, which does
// nothing without this environment.
func process(test string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.v", "-test.timeout=0")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

func TestMain(m *testing.M) {
	flag.Parse()
	harness.Main(m)
}
