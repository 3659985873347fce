package index_test

import (
	"errors"
	"io/fs"
	"testing"

	"cafs/mount/tree/index"
	"cafs/store/disk"
)

func TestSmoke(t *testing.T) {
	mem := disk.NewMem()
	for i := range 3 {
		db, err := index.Open(mem, index.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b := db.NewBatch()
		b.SetInode(index.Ino(i+1), &index.Inode{Kind: index.File, Perm: 0o644, Nlink: 1})
		b.SetDirent(1, index.Dirent{Name: "a", Ino: 2, Kind: index.File, Cookie: 3})
		b.AddSegment(7, 10)
		if err := b.CommitSync(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.Close()
		if _, err := db.Inode(index.Ino(i + 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Inode(99); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for s, err := range db.Segments() {
			if err != nil || s.Live != int64(i+1)*10 {
				t.Fatal(s, err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	es, _ := mem.ReadDir(".")
	for _, e := range es {
		inf, _ := mem.Stat(e.Name)
		t.Log(e.Name, inf.Size)
	}
}
