package integration_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/fsx"
	"cafs/integration/harness"
)

// TestDataPath compares random reads and writes of every kind with byte
// slices, alone with remounts in between, then from several processes on files
// of their own in one mount. The long form makes ten million operations.
func TestDataPath(t *testing.T) {
	m := harness.New(t, harness.Options{Limit: max(harness.MountLimit(), time.Duration(harness.Scale(0, 24))*time.Hour)})
	s := seed(t)
	t.Run("alone", func(t *testing.T) {
		fsx.Run(t, m.Dir, fsx.Options{
			MaxSize: 5 << 20, Seed: s, Ops: harness.Scale(6_000, 2_000_000), Remount: m.Remount,
			Seal: func(path string) {
				if !harness.Plain() {
					cidOf(t, path)
				}
			},
			DropCaches: func() { harness.DropCaches() },
		})
	})
	t.Run("together", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 4 {
			dir := m.Path(fmt.Sprint(i))
			if err := unix.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestDataPathWorker$", "-test.v", "-test.timeout=0", "-seed", strconv.FormatInt(s+int64(i), 10))
			cmd.Env = append(os.Environ(), workerDir+"="+dir)
			wg.Go(func() {
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("worker %d: %v\n%s", i, err, out)
				}
			})
		}
		wg.Wait()
	})
}

// workerDir is where a process started by TestDataPath works.
const workerDir = "CAFS_FSX_DIR"

// TestDataPathWorker is one of the processes of TestDataPath.
func TestDataPathWorker(t *testing.T) {
	dir := os.Getenv(workerDir)
	if dir == "" {
		t.Skip("only as a process of TestDataPath")
	}
	fsx.Run(t, dir, fsx.Options{MaxSize: 5 << 20, Seed: seed(t), Ops: harness.Scale(2_000, 2_000_000)})
}
