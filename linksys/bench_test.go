package linksys_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	"github.com/ipld/go-ipld-prime/linking"
	cidlink "github.com/ipld/go-ipld-prime/linking/cid"
	"github.com/ipld/go-ipld-prime/node/basicnode"
	"golang.org/x/sys/unix"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/store"
	"cafs/store/disk"
)

// benchStore opens a store on disk in a new folder.
func benchStore(b testing.TB) (*store.Dir, string) {
	b.Helper()
	path := b.TempDir()
	s, err := openStore(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	return s, path
}

func openStore(path string) (*store.Dir, error) {
	f, err := disk.OS(path)
	if err != nil {
		return nil, err
	}
	return store.Open(f, store.Options{CreateIfMissing: true})
}

// forget drops the files below path from the page cache.
func forget(b testing.TB, path string) {
	b.Helper()
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkLoad loads raw leaves of 1 MiB through the LinkSystem, from its cache
// and from a warm store, next to reading a leaf's file into a buffer, and to
// hashing that too.
func BenchmarkLoad(b *testing.B) {
	s, path := benchStore(b)
	var leaves [2]cid.Cid
	for i := range leaves {
		data := stream(uint64(i), 1<<20)
		leaf, err := unixfs.V1_2025.Leaf(data)
		if err == nil {
			err = s.Put(b.Context(), leaf.Cid, data)
		}
		if err == nil {
			err = s.Sync(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
		leaves[i] = leaf.Cid
	}
	load := func(b *testing.B, cache int64) {
		sys := newSystem(b, s, linksys.Options{CacheBytes: cache})
		ls := sys.LinkSystem()
		b.SetBytes(1 << 20)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := ls.Load(linking.LinkContext{}, cidlink.Link{Cid: leaves[i%2]}, basicnode.Prototype.Bytes); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("cached", func(b *testing.B) { load(b, 0) })
	b.Run("store", func(b *testing.B) { load(b, 1) }) // a cache of one leaf never has the other
	files, err := filepath.Glob(filepath.Join(path, "*", "*.data"))
	if err != nil || len(files) != 2 {
		b.Fatal(files, err)
	}
	buf := make([]byte, 1<<20)
	for _, hash := range []bool{false, true} {
		b.Run(map[bool]string{false: "file", true: "file+sha256"}[hash], func(b *testing.B) {
			b.SetBytes(1 << 20)
			for b.Loop() {
				f, err := os.Open(files[0])
				if err == nil {
					_, err = io.ReadFull(f, buf)
				}
				if err != nil {
					b.Fatal(err)
				}
				f.Close()
				if hash {
					sha256.Sum256(buf)
				}
			}
		})
	}
}

const benchFile = 256 << 20 // bytes

// BenchmarkRead reads a file of 256 MiB from the store on disk and, for
// comparison, an ordinary file: in sequence with cold and warm page cache, and
// 4 KiB here and there.
func BenchmarkRead(b *testing.B) {
	s, path := benchStore(b)
	sys := newSystem(b, s, linksys.Options{})
	data := stream(1, benchFile)
	im := sys.NewImporter(linksys.AddOptions{})
	root, err := im.AddFile(b.Context(), bytes.NewReader(data))
	if err == nil {
		_, err = im.Finish(b.Context())
	}
	plain := filepath.Join(b.TempDir(), "plain")
	if err == nil {
		err = os.WriteFile(plain, data, 0o644)
	}
	if err == nil {
		err = syncFile(plain)
	}
	if err != nil {
		b.Fatal(err)
	}
	data = nil
	runtime.GC()
	native, err := os.Open(plain)
	if err != nil {
		b.Fatal(err)
	}
	defer native.Close()
	open := func(b *testing.B, cold bool) io.ReaderAt {
		if cold { // page cache, checksums and our caches
			s.Close()
			if s, err = openStore(path); err != nil {
				b.Fatal(err)
			}
			sys = newSystem(b, s, linksys.Options{})
			forget(b, path)
		}
		f, err := sys.OpenFile(b.Context(), root.Cid)
		if err != nil {
			b.Fatal(err)
		}
		return readerAt{f}
	}
	openNative := func(b *testing.B, cold bool) io.ReaderAt {
		if cold {
			forget(b, filepath.Dir(plain))
		}
		return native
	}
	for name, open := range map[string]func(*testing.B, bool) io.ReaderAt{"cafs": open, "native": openNative} {
		for _, cold := range []bool{true, false} {
			state := map[bool]string{true: "cold", false: "warm"}[cold]
			b.Run(name+"/sequential/"+state, func(b *testing.B) { readThrough(b, open, cold) })
			b.Run(name+"/random4k/"+state, func(b *testing.B) { readRandom(b, open, cold) })
		}
	}
}

type readerAt struct{ f *linksys.File }

func (r readerAt) ReadAt(p []byte, off int64) (int, error) {
	return r.f.ReadAt(context.Background(), p, off)
}

func readThrough(b *testing.B, open func(*testing.B, bool) io.ReaderAt, cold bool) {
	p := make([]byte, 1<<20)
	b.SetBytes(benchFile)
	var cpu time.Duration // also tells something on a busy machine
	defer func() { b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op") }()
	for b.Loop() {
		b.StopTimer()
		f := open(b, cold)
		b.StartTimer()
		cpu -= cpuTime()
		for off := int64(0); off < benchFile; off += int64(len(p)) {
			if _, err := f.ReadAt(p, off); err != nil {
				b.Fatal(err)
			}
		}
		cpu += cpuTime()
	}
}

// cpuTime is the processor time this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func readRandom(b *testing.B, open func(*testing.B, bool) io.ReaderAt, cold bool) {
	r := rand.New(rand.NewPCG(1, 2))
	p := make([]byte, 4096)
	f := open(b, cold)
	for b.Loop() {
		if _, err := f.ReadAt(p, r.Int64N(benchFile/4096)*4096); err != nil {
			b.Fatal(err)
		}
	}
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// BenchmarkAdd adds 256 MiB from memory, and the Go source tree, into a store on
// disk, durably.
func BenchmarkAdd(b *testing.B) {
	data := stream(1, benchFile)
	b.Run("file", func(b *testing.B) {
		b.SetBytes(benchFile)
		for b.Loop() {
			add(b, func(im *linksys.Importer) (unixfs.Root, error) { return im.AddFile(b.Context(), bytes.NewReader(data)) })
		}
	})
	src := filepath.Join(runtime.GOROOT(), "src")
	b.Run("tree", func(b *testing.B) {
		for b.Loop() {
			stats := add(b, func(im *linksys.Importer) (unixfs.Root, error) {
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

func add(b *testing.B, fn func(*linksys.Importer) (unixfs.Root, error)) linksys.AddStats {
	b.StopTimer()
	s, _ := benchStore(b)
	sys := linksys.New(s, linksys.Options{})
	im := sys.NewImporter(linksys.AddOptions{Hidden: true})
	b.StartTimer()
	_, err := fn(im)
	stats, err2 := im.Finish(b.Context())
	b.StopTimer()
	if err := errors.Join(err, err2, sys.Close(), s.Close()); err != nil {
		b.Fatal(err)
	}
	b.StartTimer()
	return stats
}

// BenchmarkLookup finds names in a sharded directory of 100,000 entries.
func BenchmarkLookup(b *testing.B) {
	s := newStore()
	m := entries(b, s, 100000)
	root, err := unixfs.V1_2025.BuildDir(b.Context(), seq(m), s.emit)
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for name := range m {
		names = append(names, name)
	}
	sys := newSystem(b, s, linksys.Options{CacheBytes: 256 << 20})
	b.Run("LookupDir", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, err := sys.LookupDir(b.Context(), root.Cid, names[i%len(names)]); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Resolve", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, err := sys.Resolve(b.Context(), root.Cid, names[i%len(names)]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkCar exports a file of 256 MiB and imports it, from memory to memory.
func BenchmarkCar(b *testing.B) {
	s := newStore()
	root, err := unixfs.V1_2025.BuildFile(b.Context(), bytes.NewReader(stream(1, benchFile)), s.emit)
	if err != nil {
		b.Fatal(err)
	}
	car := exportBytes(b, newSystem(b, s, linksys.Options{}), root.Cid, linksys.ExportOptions{})
	b.Run("export", func(b *testing.B) {
		b.SetBytes(benchFile)
		for b.Loop() {
			sys := newSystem(b, s, linksys.Options{})
			if _, err := sys.Export(b.Context(), io.Discard, root.Cid, linksys.ExportOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("import", func(b *testing.B) {
		b.SetBytes(benchFile)
		for b.Loop() {
			sys := newSystem(b, newStore(), linksys.Options{})
			if _, err := sys.Import(b.Context(), bytes.NewReader(car), linksys.ImportOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
