package tree_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cafs/mount/repo"
	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

// scaleFiles is how many files BenchmarkScale has, by the environment:
// CAFS_BENCH_FILES=1000000 is what doc/performance.md shows.
func scaleFiles() int {
	if n, err := strconv.Atoi(os.Getenv("CAFS_BENCH_FILES")); err == nil {
		return n
	}
	return 20_000
}

// population is a tree of files, each in a directory with 999 others.
type population struct {
	b    *testing.B
	path string
	repo *repo.Repo
	tree *tree.Tree
	dirs []tree.Ino
	made atomic.Int64 // files made by writers
}

const perDir = 1000

func (p *population) name(i int) (tree.Ino, string) {
	return p.dirs[i/perDir], strconv.Itoa(i % perDir)
}

func (p *population) open() {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	var err error
	p.repo, err = repo.Open(context.Background(), p.path, repo.Options{Create: &repo.Config{}, Logger: log})
	must(p.b, err)
	p.tree, _, err = p.repo.OpenTree(context.Background(), repo.TreeOptions{})
	must(p.b, err)
}

func populate(b *testing.B, files int) *population {
	p := &population{b: b, path: filepath.Join(b.TempDir(), "repo")}
	p.open()
	b.Cleanup(func() { must(b, p.repo.Close()) })
	for i := range files {
		if i%perDir == 0 {
			d, err := p.tree.Create(tree.Cred{}, tree.RootIno, fmt.Sprint("d", i/perDir), tree.Node{Kind: index.Dir, Perm: 0o755})
			must(b, err)
			p.dirs = append(p.dirs, d.Ino)
		}
		dir, name := p.name(i)
		f, err := p.tree.Create(tree.Cred{}, dir, name, tree.Node{Kind: index.File, Perm: 0o644})
		must(b, err)
		p.tree.Forget(f.Ino, 1)
	}
	must(b, p.tree.Sync(context.Background()))
	return p
}

// read is a look-up, its attributes and a read.
func (p *population) read(r *rand.Rand, buf []byte, files int) error {
	dir, name := p.name(r.IntN(files))
	a, err := p.tree.Lookup(dir, name)
	if err != nil {
		return err
	}
	defer p.tree.Forget(a.Ino, 1)
	if _, err := p.tree.Getattr(a.Ino); err != nil {
		return err
	}
	_, err = p.tree.Read(context.Background(), a.Ino, buf, 0)
	if err == io.EOF {
		err = nil
	}
	return err
}

// write makes a file, writes 100 bytes to it and renames it, in one of the
// directories.
func (p *population) write(r *rand.Rand, buf []byte) error {
	dir := p.dirs[r.IntN(len(p.dirs))]
	name := fmt.Sprint("w", p.made.Add(1))
	a, err := p.tree.Create(tree.Cred{}, dir, name, tree.Node{Kind: index.File, Perm: 0o644})
	if err != nil {
		return err
	}
	defer p.tree.Forget(a.Ino, 1)
	if _, err := p.tree.Write(context.Background(), a.Ino, buf[:100], 0, nil); err != nil {
		return err
	}
	return p.tree.Rename(context.Background(), tree.Cred{}, dir, name, dir, name+"r", 0)
}

// BenchmarkScale has many goroutines read and write at once: lookups, getattrs
// and reads to creations, writes and renames as 90 to 10, 50 to 50 and 10 to
// 90. It reports the reads and writes per second, of three operations each, and
// the longest that a write took.
func BenchmarkScale(b *testing.B) {
	files := scaleFiles()
	p := populate(b, files)
	const span = time.Second
	for _, reads := range []int{90, 50, 10} {
		for _, workers := range []int{1, 4, 16, 64, 256, 1024, 4096} {
			b.Run(fmt.Sprintf("files=%d/reads=%d/goroutines=%d", files, reads, workers), func(b *testing.B) {
				for range b.N {
					p.mix(b, reads, workers, span)
				}
			})
		}
	}
}

func (p *population) mix(b *testing.B, reads, workers int, span time.Duration) {
	var did [2]atomic.Int64
	var longest atomic.Int64 // of a write, in nanoseconds
	var failed atomic.Pointer[error]
	stop := make(chan struct{})
	var wg sync.WaitGroup
	start := time.Now()
	for w := range workers {
		wg.Go(func() {
			r, buf := rand.New(rand.NewPCG(uint64(w), 1)), make([]byte, 4096)
			for failed.Load() == nil {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				if r.IntN(100) < reads {
					err = p.read(r, buf, len(p.dirs)*perDir)
					did[0].Add(1)
				} else {
					at := time.Now()
					err = p.write(r, buf)
					did[1].Add(1)
					for took := int64(time.Since(at)); ; {
						if old := longest.Load(); took <= old || longest.CompareAndSwap(old, took) {
							break
						}
					}
				}
				if err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	time.Sleep(span)
	close(stop)
	wg.Wait()
	if err := failed.Load(); err != nil {
		b.Fatal(*err)
	}
	took := time.Since(start).Seconds()
	b.ReportMetric(float64(did[0].Load())/took, "reads/s")
	b.ReportMetric(float64(did[1].Load())/took, "writes/s")
	b.ReportMetric(float64(longest.Load())/1e6, "longest-write-ms")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkSize measures operations in trees of different sizes, and in one
// directory, and how long opening takes and what memory it needs.
func BenchmarkSize(b *testing.B) {
	for _, files := range []int{1000, 100_000, 1_000_000} {
		if files > max(scaleFiles(), 100_000) {
			continue
		}
		p := populate(b, files)
		r, buf := rand.New(rand.NewPCG(1, 2)), make([]byte, 4096)
		b.Run(fmt.Sprintf("files=%d/read", files), func(b *testing.B) {
			for b.Loop() {
				must(b, p.read(r, buf, files))
			}
		})
		b.Run(fmt.Sprintf("files=%d/write", files), func(b *testing.B) {
			for b.Loop() {
				must(b, p.write(r, buf))
			}
		})
		b.Run(fmt.Sprintf("files=%d/open", files), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				must(b, p.repo.Close())
				b.StartTimer()
				p.open()
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "heap-MiB")
		})
	}
	dir := populate(b, 1)
	made := 0
	for _, files := range []int{1000, 100_000, 1_000_000} {
		if files > max(scaleFiles(), 100_000) {
			continue
		}
		for ; made < files; made++ {
			a, err := dir.tree.Create(tree.Cred{}, dir.dirs[0], fmt.Sprint("x", made), tree.Node{Kind: index.File, Perm: 0o644})
			must(b, err)
			dir.tree.Forget(a.Ino, 1)
		}
		r, buf := rand.New(rand.NewPCG(1, 2)), make([]byte, 4096)
		b.Run(fmt.Sprintf("directory=%d/lookup", files), func(b *testing.B) {
			for b.Loop() {
				a, err := dir.tree.Lookup(dir.dirs[0], fmt.Sprint("x", r.IntN(files)))
				must(b, err)
				dir.tree.Forget(a.Ino, 1)
			}
		})
		b.Run(fmt.Sprintf("directory=%d/write", files), func(b *testing.B) {
			for b.Loop() {
				must(b, dir.write(r, buf))
			}
		})
	}
}

// BenchmarkSparse measures reads and writes of 4 KiB in sparse files of
// different sizes.
func BenchmarkSparse(b *testing.B) {
	p := populate(b, 1)
	ctx, r, buf := context.Background(), rand.New(rand.NewPCG(1, 2)), make([]byte, 4096)
	for _, size := range []int64{1 << 20, 1 << 30, 100 << 30} {
		a, err := p.tree.Create(tree.Cred{}, p.dirs[0], fmt.Sprint("s", size), tree.Node{Kind: index.File, Perm: 0o644})
		must(b, err)
		_, err = p.tree.Setattr(ctx, a.Ino, tree.SetAttr{Mask: tree.SetSize, Size: size})
		must(b, err)
		b.Run(fmt.Sprintf("size=%d/write", size), func(b *testing.B) {
			for b.Loop() {
				_, err := p.tree.Write(ctx, a.Ino, buf, r.Int64N(size>>12)<<12, nil)
				must(b, err)
			}
		})
		must(b, p.tree.Sync(ctx))
		b.Run(fmt.Sprintf("size=%d/read", size), func(b *testing.B) {
			for b.Loop() {
				_, err := p.tree.Read(ctx, a.Ino, buf, r.Int64N(size>>12)<<12)
				must(b, err)
			}
		})
	}
}
