package index_test

import (
	"errors"
	"fmt"
	"testing"

	"cafs/mount/tree/index"
	"cafs/store/disk"
)

func openBench(b *testing.B) *index.DB {
	fs, err := disk.OS(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	db, err := index.Open(fs, index.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(db.Close(), fs.Close()); err != nil {
			b.Error(err)
		}
	})
	return db
}

// create fills a batch as the creation of a file does.
func create(b *index.Batch, i int) {
	now := index.Timespec{Sec: 1_700_000_000 + int64(i), Nsec: uint32(i)}
	ino := index.Ino(i + 2)
	b.SetInode(ino, &index.Inode{Kind: index.File, Perm: 0o644, Uid: 1000, Gid: 1000, Nlink: 1,
		Atime: now, Mtime: now, Ctime: now, Btime: now, Parent: 1, Cookie: uint64(i + 1)})
	b.SetDirent(1, index.Dirent{Name: fmt.Sprintf("file-%07d", i), Ino: ino, Kind: index.File, Cookie: uint64(i + 1)})
	b.SetInode(1, &index.Inode{Kind: index.Dir, Perm: 0o755, Nlink: 2, Mtime: now, Next: uint64(i + 2), Unsealed: true})
}

func BenchmarkCommit4Keys(b *testing.B) {
	db := openBench(b)
	batch := db.NewBatch()
	defer batch.Close()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		create(batch, i)
		if err := batch.Commit(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSync(b *testing.B) {
	db := openBench(b)
	batch := db.NewBatch()
	defer batch.Close()
	for i := 0; b.Loop(); i++ {
		create(batch, i)
		if err := batch.CommitSync(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSync32Writers(b *testing.B) {
	db := openBench(b)
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		batch := db.NewBatch()
		defer batch.Close()
		for i := 0; pb.Next(); i++ {
			create(batch, i)
			if err := batch.CommitSync(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkLookup reads records of a directory of 100,000 files, once from the
// memtable and once from tables.
func BenchmarkLookup(b *testing.B) {
	const files = 100_000
	db := openBench(b)
	batch := db.NewBatch()
	defer batch.Close()
	names := make([]string, files)
	for i := range files {
		create(batch, i)
		names[i] = fmt.Sprintf("file-%07d", i)
		if err := batch.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	run := func(name string, look func(i int) error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := look(i * 7919 % files); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for range 2 {
		run("Inode", func(i int) error { _, err := db.Inode(index.Ino(i + 2)); return err })
		run("Dirent", func(i int) error { _, err := db.Dirent(1, names[i]); return err })
		run("Absent", func(i int) error {
			if _, err := db.Dirent(2, names[i]); err == nil {
				return fmt.Errorf("%s found", names[i])
			}
			return nil
		})
		run("Dirents100", func(i int) error {
			n := 0
			for _, err := range db.Dirents(1, uint64(i)) {
				if n++; err != nil || n == 100 {
					return err
				}
			}
			return nil
		})
		if err := db.Compact(); err != nil {
			b.Fatal(err)
		}
	}
}
