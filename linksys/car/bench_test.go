package car_test

import (
	"bytes"
	"io"
	"testing"

	"cafs/linksys"
	"cafs/linksys/car"
	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
)

const benchFile = 256 << 20 // bytes

// BenchmarkCar exports a file of 256 MiB and imports it, from memory to memory.
func BenchmarkCar(b *testing.B) {
	s := linktest.NewStore()
	root, err := unixfs.V1_2025.BuildFile(b.Context(), bytes.NewReader(linktest.Stream(1, benchFile)), s.Emit)
	if err != nil {
		b.Fatal(err)
	}
	file := exportBytes(b, linktest.NewSystem(b, s, linksys.Options{}), root.Cid, car.ExportOptions{})
	b.Run("export", func(b *testing.B) {
		b.SetBytes(benchFile)
		for b.Loop() {
			sys := linktest.NewSystem(b, s, linksys.Options{})
			if _, err := car.Export(b.Context(), sys, io.Discard, root.Cid, car.ExportOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("import", func(b *testing.B) {
		b.SetBytes(benchFile)
		for b.Loop() {
			sys := linktest.NewSystem(b, linktest.NewStore(), linksys.Options{})
			if _, err := car.Import(b.Context(), sys, bytes.NewReader(file), car.ImportOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
