package content_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store/disk"
)

// benchRepo is a repository in a folder of the temporary directory, with the
// default profile and limits.
func benchRepo(b *testing.B) *repo {
	d, err := disk.OS(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	r, err := newRepo(b, d, nil, unixfs.V1_2025, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.close)
	return r
}

// BenchmarkWrite writes a file of 256 MiB and publishes it.
func BenchmarkWrite(b *testing.B) {
	const size = 256 << 20
	for _, c := range []struct {
		name   string
		n      int
		random bool
	}{{"sequential-1M", 1 << 20, false}, {"sequential-128K", 128 << 10, false}, {"sequential-4K", 4 << 10, false}, {"random-4K", 4 << 10, true}} {
		b.Run(c.name, func(b *testing.B) {
			r := benchRepo(b)
			ctx := context.Background()
			p := make([]byte, c.n)
			rng := rand.NewChaCha8([32]byte{1})
			count := size / c.n
			if c.random {
				count /= 4
			}
			b.SetBytes(int64(count * c.n))
			b.ReportAllocs()
			for i := range b.N {
				f := r.files.New(index.Ino(i + 1))
				for k := range count {
					_, _ = rng.Read(p[:min(64, len(p))]) // blocks must differ; never fails
					off := int64(k) * int64(c.n)
					if c.random {
						off = rand.Int64N(size/int64(c.n)) * int64(c.n)
					}
					if err := f.WriteAt(ctx, p, off); err != nil {
						b.Fatal(err)
					}
				}
				if err := r.publish(ctx, index.Ino(i+1), f, 512); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAppendSync appends 4 KiB and makes them durable, as fsync does.
func BenchmarkAppendSync(b *testing.B) {
	r := benchRepo(b)
	ctx := context.Background()
	f := r.files.New(1)
	p := make([]byte, 4096)
	for i := range b.N {
		if err := f.WriteAt(ctx, p, int64(i)*4096); err != nil {
			b.Fatal(err)
		}
		if err := r.publish(ctx, 1, f, 32<<10); err != nil {
			b.Fatal(err)
		}
		if err := r.db.Sync(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead reads 4 KiB at random of a file in memory, in staging, in
// blocks of the overlay, and in a base.
func BenchmarkRead(b *testing.B) {
	const size = 32 << 20
	ctx := context.Background()
	for _, where := range []string{"memory", "staged", "block", "base"} {
		b.Run(where, func(b *testing.B) {
			r := benchRepo(b)
			f := r.files.New(1)
			p := make([]byte, 4096)
			for i := range size / 4096 {
				off := int64(i) * 4096
				if where == "memory" || where == "staged" {
					off = size - 4096 - off // backwards, so that no chunk is hashed
				}
				p[0], p[1], p[2] = byte(i), byte(i>>8), byte(i>>16)
				if err := f.WriteAt(ctx, p, off); err != nil {
					b.Fatal(err)
				}
			}
			if where != "memory" {
				if err := r.publish(ctx, 1, f, 0); err != nil {
					b.Fatal(err)
				}
			}
			if where == "base" {
				sealNow(b, r, f)
			}
			b.SetBytes(4096)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := f.ReadAt(ctx, p, rand.Int64N(size/4096)*4096); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func sealNow(tb testing.TB, r *repo, f *content.File) {
	tb.Helper()
	c := f.Cut()
	root, err := r.seal(context.Background(), c)
	if err != nil {
		tb.Fatal(err)
	}
	if !c.Rebase(root) {
		tb.Fatal("rebase was refused")
	}
}

// BenchmarkSmallFile writes 4 KiB to a new file and publishes it with 255 others.
func BenchmarkSmallFile(b *testing.B) {
	r := benchRepo(b)
	ctx := context.Background()
	p := make([]byte, 4096)
	b.ReportAllocs()
	var files []*content.File
	for i := range b.N {
		f := r.files.New(index.Ino(i + 1))
		if err := f.WriteAt(ctx, p, 0); err != nil {
			b.Fatal(err)
		}
		files = append(files, f)
		if len(files) == 256 {
			cuts := make([]*content.Cut, len(files))
			for k, f := range files {
				cuts[k] = f.Cut()
			}
			if err := r.files.Stage(ctx, 512, cuts...); err != nil {
				b.Fatal(err)
			}
			for k, c := range cuts {
				if err := r.commit(index.Ino(i-255+k+1), c); err != nil {
					b.Fatal(err)
				}
				files[k].Release()
			}
			files = files[:0]
		}
	}
}
