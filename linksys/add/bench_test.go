package add_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cafs/linksys/add"
	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
)

const benchFile = 256 << 20 // bytes

// BenchmarkAdd adds 256 MiB from memory, and the Go source tree, into a store on
// disk, durably.
func BenchmarkAdd(b *testing.B) {
	data := linktest.Stream(1, benchFile)
	b.Run("file", func(b *testing.B) {
		b.SetBytes(benchFile)
		for b.Loop() {
			timeAdd(b, func(im *add.Importer) (unixfs.Root, error) { return im.AddFile(b.Context(), bytes.NewReader(data)) })
		}
	})
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		b.Fatal(err)
	}
	src := filepath.Join(strings.TrimSpace(string(goroot)), "src")
	b.Run("tree", func(b *testing.B) {
		for b.Loop() {
			stats := timeAdd(b, func(im *add.Importer) (unixfs.Root, error) {
				d, err := os.Open(src)
				if err != nil {
					b.Skip(err)
				}
				defer d.Close()
				return im.AddTree(b.Context(), d)
			})
			b.ReportMetric(float64(stats.Files), "files")
		}
	})
}

func timeAdd(b *testing.B, fn func(*add.Importer) (unixfs.Root, error)) add.Stats {
	b.StopTimer()
	s, _ := linktest.OpenDir(b)
	im := add.New(s, add.Options{Hidden: true})
	b.StartTimer()
	_, err := fn(im)
	stats, err2 := im.Finish(b.Context())
	b.StopTimer()
	if err := errors.Join(err, err2, s.Close()); err != nil {
		b.Fatal(err)
	}
	b.StartTimer()
	return stats
}
