package disk_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"cafs/store/disk"

	"golang.org/x/sys/unix"
)

// TestReadPast: around the page cache or through it, the bytes and the end of a
// file are those of ReadAt; also where the kernel refuses, as on tmpfs.
func TestReadPast(t *testing.T) {
	folders := []string{t.TempDir()}
	if shm, err := os.MkdirTemp("/dev/shm", "cafs-past-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(shm) })
		folders = append(folders, shm)
	}
	const page = 4096
	data := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{1}).Read(data)
	for _, dir := range folders {
		fsys, err := disk.OS(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer fsys.Close()
		for _, size := range []int{0, 1, page - 1, page, page + 1, 3*page - 7, len(data)} {
			path := filepath.Join(dir, fmt.Sprint(size))
			if err := os.WriteFile(path, data[:size], 0o644); err != nil {
				t.Fatal(err)
			}
			for _, cold := range []bool{false, true} {
				if cold {
					evict(t, path)
				}
				f, err := fsys.OpenFile(fmt.Sprint(size), os.O_RDONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				past, ok := f.(disk.PastReader)
				if !ok {
					t.Fatal("files of the kernel have no ReadPast")
				}
				for _, n := range []int{page, 2 * page, len(data), len(data) + page, 100} { // 100: no whole page
					p := make([]byte, 64<<10, 64<<10+n)[64<<10:][:n] // whole pages, or the read goes the other way
					if n >= 32<<10 {
						p = make([]byte, n)
					}
					for _, off := range []int64{0, page} {
						got, err := past.ReadPast(p, off)
						want := min(max(size-int(off), 0), n)
						if got != want || (got < n) != (err == io.EOF) || err != nil && err != io.EOF || !bytes.Equal(p[:got], data[min(int(off), size):][:got]) {
							t.Errorf("%s: size %d, cold %v: %d bytes at %d: %d, %v", dir, size, cold, n, off, got, err)
						}
					}
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// evict drops a file from the page cache, after writing it out.
func evict(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}
