package integration_test

import (
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"cafs/integration/fsx"
	"cafs/integration/harness"
)

// TestDataPath compares random reads and writes of every kind with byte
// slices, alone with remounts in between, then from several threads on files
// of their own in one mount.
func TestDataPath(t *testing.T) {
	m := harness.New(t, harness.Options{})
	s := seed(t)
	o := fsx.Options{
		MaxSize: 5 << 20,
		Seal: func(path string) {
			if !harness.Plain() {
				cidOf(t, path)
			}
		},
		DropCaches: func() { harness.DropCaches() },
	}
	t.Run("alone", func(t *testing.T) {
		o := o
		o.Seed, o.Ops, o.Remount = s, harness.Scale(6_000, 1_000_000), m.Remount
		fsx.Run(t, m.Dir, o)
	})
	t.Run("together", func(t *testing.T) {
		o := o
		o.Ops, o.DropCaches, o.Seal = harness.Scale(2_000, 1_000_000), nil, nil
		var wg sync.WaitGroup
		for i := range 4 {
			dir := m.Path(fmt.Sprint(i))
			if err := unix.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			o := o
			o.Seed = s + int64(i)
			wg.Go(func() {
				t.Run(fmt.Sprint(i), func(t *testing.T) { fsx.Run(t, dir, o) })
			})
		}
		wg.Wait()
	})
}
