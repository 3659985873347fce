package integration_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"cafs/integration/harness"
)

// TestMemory: what the daemon holds is bounded by its budget, not by what is
// copied, edited or walked.
func TestMemory(t *testing.T) {
	harness.NeedDaemon(t)
	const mib = 1 << 20
	m := harness.New(t, harness.Options{Limit: harness.MountLimit()})
	limit := func(what string, got, max int64) {
		t.Helper()
		t.Logf("%s: %d MiB", what, got/mib)
		if got > max {
			t.Errorf("%s: %d MiB resident, at most %d are allowed", what, got/mib, max/mib)
		}
	}
	size := int64(harness.Scale(768<<20, 10<<30))
	f, err := os.Create(m.Path("large"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	piece := make([]byte, 4*mib)
	for off := int64(0); off < size; off += int64(len(piece)) {
		copy(piece, stream(uint64(off), 64)) // each chunk differs, so that none is found in the store
		copy(piece[2*mib:], stream(uint64(off)+1, 64))
		copy(piece[mib:], stream(uint64(off)+2, 64))
		copy(piece[3*mib:], stream(uint64(off)+3, 64))
		if _, err := f.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	limit("copied in", m.PeakRSS(), 600*mib)
	r := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		if _, err := f.WriteAt(piece[:4096], r.Int64N(size-4096)); err != nil {
			t.Fatal(err)
		}
	}
	limit("edited at 3000 places", m.PeakRSS(), 600*mib)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range harness.Scale(10_000, 200_000) {
		if i%1000 == 0 {
			mkdir(t, m.Path(fmt.Sprint("d", i/1000)))
		}
		if err := os.WriteFile(m.Path(fmt.Sprint("d", i/1000), fmt.Sprint(i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m.Remount()
	if err := filepath.WalkDir(m.Dir, func(path string, d os.DirEntry, err error) error {
		if err == nil {
			_, err = d.Info()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	limit("walked", m.PeakRSS(), 600*mib)
	if harness.DropCaches() {
		limit("walked, caches dropped", m.RSS(), 300*mib)
	}
}
