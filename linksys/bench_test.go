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
	"cafs/linksys/add"
	"cafs/linksys/linktest"
	"cafs/linksys/unixfs"
	"cafs/store"
)

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

// BenchmarkLoad loads raw leaves of 1 MiB through the LinkSystem of a System with
// its usual cache of 64 MiB, from a warm store: what is on disk is in the page
// cache. "cached" loads leaves in turn that fit into the System's cache, and gets
// the bytes that are there. "store" loads so many in turn that the cache never
// has the next one: the file is read into new memory, which is the caller's for
// good, and checked against page checksums; "store+sha256" against the hash,
// because the store has not seen the block before. "file" opens the file and
// reads it into one buffer, "file+sha256" hashes that: what Load is held against.
func BenchmarkLoad(b *testing.B) {
	s, path := linktest.OpenDir(b)
	leaves := make([]cid.Cid, 192)
	for i := range leaves {
		data := linktest.Stream(uint64(i), 1<<20)
		leaf, err := unixfs.V1_2025.Leaf(data)
		if err == nil {
			err = s.Put(b.Context(), leaf.Cid, data)
		}
		if err != nil {
			b.Fatal(err)
		}
		leaves[i] = leaf.Cid
	}
	if err := s.Sync(b.Context()); err != nil {
		b.Fatal(err)
	}
	load := func(s *store.Dir, n int) func(int) error {
		sys := linktest.NewSystem(b, s, linksys.Options{})
		ls := sys.LinkSystem()
		one := func(i int) error {
			_, err := ls.Load(linking.LinkContext{}, cidlink.Link{Cid: leaves[i%n]}, basicnode.Prototype.Bytes)
			return err
		}
		for i := range n { // checks them, and fills the cache
			if err := one(i); err != nil {
				b.Fatal(err)
			}
		}
		return one
	}
	cached, all := load(s, 32), load(s, len(leaves))
	b.Run("cached", func(b *testing.B) { measure(b, cached) })
	b.Run("store", func(b *testing.B) { measure(b, all) })
	b.Run("store+sha256", func(b *testing.B) {
		fresh := s
		var ls linking.LinkSystem
		measure(b, func(i int) error {
			if i%len(leaves) == 0 { // a store that has seen no block yet
				b.StopTimer()
				fresh.Close()
				var err error
				if fresh, err = linktest.Reopen(path); err != nil {
					return err
				}
				ls = linktest.NewSystem(b, fresh, linksys.Options{}).LinkSystem()
				b.StartTimer()
			}
			_, err := ls.Load(linking.LinkContext{}, cidlink.Link{Cid: leaves[i%len(leaves)]}, basicnode.Prototype.Bytes)
			return err
		})
		fresh.Close()
	})
	files, err := filepath.Glob(filepath.Join(path, "*", "*.data"))
	if err != nil || len(files) != len(leaves) {
		b.Fatal(files, err)
	}
	buf := make([]byte, 1<<20)
	for _, hash := range []bool{false, true} {
		b.Run(map[bool]string{false: "file", true: "file+sha256"}[hash], func(b *testing.B) {
			measure(b, func(i int) error {
				f, err := os.Open(files[i%len(files)])
				if err != nil {
					return err
				}
				defer f.Close()
				if _, err = io.ReadFull(f, buf); err == nil && hash {
					sha256.Sum256(buf)
				}
				return err
			})
		})
	}
}

// measure also reports processor time, which tells something on a busy machine.
func measure(b *testing.B, do func(i int) error) {
	b.SetBytes(1 << 20)
	b.ReportAllocs()
	before := cpuTime()
	for i := 0; b.Loop(); i++ {
		if err := do(i); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-us/op")
}

const benchFile = 256 << 20 // bytes

// BenchmarkRead reads a file of 256 MiB from the store on disk and, for
// comparison, an ordinary file: in sequence with cold and warm page cache, and
// 4 KiB here and there.
func BenchmarkRead(b *testing.B) {
	s, path := linktest.OpenDir(b)
	sys := linktest.NewSystem(b, s, linksys.Options{})
	data := linktest.Stream(1, benchFile)
	im := add.New(s, add.Options{})
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
			if s, err = linktest.Reopen(path); err != nil {
				b.Fatal(err)
			}
			sys = linktest.NewSystem(b, s, linksys.Options{})
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

// BenchmarkLookup finds names in a sharded directory of 100,000 entries.
func BenchmarkLookup(b *testing.B) {
	s := linktest.NewStore()
	m := linktest.Entries(b, s, 100000)
	root, err := unixfs.V1_2025.BuildDir(b.Context(), linktest.Seq(m), s.Emit)
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for name := range m {
		names = append(names, name)
	}
	sys := linktest.NewSystem(b, s, linksys.Options{CacheBytes: 256 << 20})
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
