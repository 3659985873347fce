package integration_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/fsx"
	"cafs/integration/harness"
)

var opsFlag = flag.Int("ops", 0, "operations of TestDataPath or TestNamespace in all; 0: as many as their forms have")

// ops is how many of the long form's operations a part of a test makes, of
// which there are total in all parts.
func ops(n, long, total int) int {
	if *opsFlag > 0 {
		return max(1, int(int64(*opsFlag)*int64(long)/int64(total)))
	}
	return harness.Scale(n, long)
}

// dataPathOps is the long form of TestDataPath: 10 million operations.
const dataPathOps = 10_000_000

// TestDataPath compares random reads and writes of every kind with byte
// slices, for large chunks and for small ones, where the same happens to fewer
// bytes: alone with remounts in between, then from several processes at once,
// some on files of their own, some on stripes of one file.
func TestDataPath(t *testing.T) {
	s := seed(t)
	for _, c := range []struct {
		chunk       int64
		alone, each int // operations
	}{
		{1 << 20, ops(3_000, 30_000, dataPathOps), ops(700, 5_000, dataPathOps)},
		{1 << 16, ops(4_000, 200_000, dataPathOps), ops(2_000, 1_623_334, dataPathOps)},
	} {
		t.Run(fmt.Sprintf("chunks of %d", c.chunk), func(t *testing.T) {
			m := harness.New(t, harness.Options{
				Args:  []string{"--profile", fmt.Sprintf("unixfs-v1-2025,chunker=size-%d", c.chunk)},
				Limit: max(harness.MountLimit(), time.Duration(harness.Scale(0, 24))*time.Hour),
			})
			began := time.Now()
			fsx.Run(t, m.Dir, fsx.Options{Chunk: c.chunk, Seed: s, Ops: c.alone, Remount: m.Remount, Seal: sealer(t),
				DropCaches: func() { harness.DropCaches() }})
			t.Logf("alone: %d operations in %v", c.alone, time.Since(began).Round(time.Second))
			began = time.Now()
			together(t, m, fsx.Options{Chunk: c.chunk, Seed: s, Ops: c.each})
			t.Logf("together: %d times %d operations in %v", processes, c.each, time.Since(began).Round(time.Second))
		})
	}
}

// sealer asks for an address, which seals.
func sealer(t testing.TB) func(path string) {
	return func(path string) {
		if !harness.Plain() {
			cidOf(t, path)
		}
	}
}

// processes is how many there are in together.
const processes = 6

// together runs processes, every other one on a stripe of one file.
func together(t *testing.T, m *harness.Mount, o fsx.Options) {
	shared := m.Path("shared")
	stripe := 5*o.Chunk + 1_000 // neighbours share a page and a chunk
	write(t, shared, nil)
	if err := unix.Truncate(shared, processes/2*stripe); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range processes {
		w := worker{Dir: mkdir(t, m.Path(fmt.Sprint(i))), Options: o}
		w.Options.Seed += int64(i) + 1
		if i%2 == 1 {
			w.Options.Stripe = fsx.Stripe{Path: shared, Base: int64(i/2) * stripe}
		}
		wg.Go(func() {
			if out, err := w.run(); err != nil {
				t.Errorf("process %d: %v\n%s", i, err, out)
			}
		})
	}
	wg.Wait()
}

// worker is the work of another process. Options has no hooks.
type worker struct {
	Dir     string
	Options fsx.Options
}

// workerEnv has a worker as JSON.
const workerEnv = "CAFS_FSX_WORKER"

func (w worker) run() ([]byte, error) {
	text, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	// It does one thing at a time.
	return process("TestDataPathWorker", workerEnv+"="+string(text), "GOMAXPROCS=1", "GOGC=400").CombinedOutput()
}

// TestDataPathWorker is one of the processes of TestDataPath.
func TestDataPathWorker(t *testing.T) {
	text := os.Getenv(workerEnv)
	if text == "" {
		t.Skip("only as a process of TestDataPath")
	}
	var w worker
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	w.Options.Seal = sealer(t)
	fsx.Run(t, w.Dir, w.Options)
}
