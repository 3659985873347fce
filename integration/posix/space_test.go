package posix_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// TestSparse: files far larger than the disk, written here and there, take the
// space of what was written, on disk and in st_blocks.
func TestSparse(t *testing.T) {
	harness.NeedDaemon(t) // ext4 ends at 16 TiB
	m := setup(t)
	place := func(i int64) []byte { return bytes.Repeat([]byte{byte(i%255 + 1)}, 5000) }
	for name, c := range map[string]struct{ size, step int64 }{
		"1 TiB":     {1 << 40, 1<<34 + 777},
		"8 EiB - 1": {math.MaxInt64, 1<<59 - 12345},
	} {
		path := m.Path(name)
		fd := open(t, path, unix.O_RDWR|unix.O_CREAT)
		written := int64(0)
		for off := int64(0); off >= 0 && off < c.size-5000; off += c.step {
			must(t, second(unix.Pwrite(fd, place(off), off)))
			written++
		}
		must(t, unix.Ftruncate(fd, c.size))
		want(t, "truncate to less than nothing", unix.Ftruncate(fd, -1), unix.EINVAL)
		must(t, unix.Fsync(fd))
		unix.Close(fd)
		for range 2 {
			st := stat(t, path)
			if st.Size != c.size || st.Blocks < written*5000/512 || st.Blocks > written*(12<<10)/512 {
				t.Errorf("%s: %d bytes, %d blocks of 512 bytes for %d writes of 5000 bytes", name, st.Size, st.Blocks, written)
			}
			fd := open(t, path, unix.O_RDONLY)
			got := make([]byte, 5000)
			for off := int64(0); off >= 0 && off < c.size-5000; off += c.step {
				if _, err := unix.Pread(fd, got, off); err != nil || !bytes.Equal(got, place(off)) {
					t.Errorf("%s at %d: %v", name, off, err)
				}
				data, err := unix.Seek(fd, off+12288, unix.SEEK_DATA)
				if next := off + c.step; err == nil && (data > next || data < next-8192) {
					t.Errorf("%s behind %d: the next data at %d, must be %d", name, off, data, next)
				}
			}
			unix.Close(fd)
			m.Remount()
		}
		if used := diskUse(t, m.Repo); used > 128<<20 { // half of it is kept for removals on a full disk
			t.Errorf("%s: the repository has %d bytes", name, used)
		}
	}
}

// diskUse sums the space of the files below dir, in bytes.
func diskUse(t testing.TB, dir string) (n int64) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			n += st.Blocks * 512
		}
		return nil
	}))
	return n
}

// TestCopyShares: copy_file_range of whole files and of aligned parts copies
// addresses, not bytes.
func TestCopyShares(t *testing.T) {
	harness.NeedDaemon(t)
	m := setup(t)
	const size = 24<<20 + 333
	data := make([]byte, size)
	for i, x := 0, uint64(1); i < size; i++ {
		x = x*6364136223846793005 + 1442695040888963407
		data[i] = byte(x >> 56)
	}
	must(t, os.WriteFile(m.Path("src"), data, 0o644))
	m.Sync()
	before := diskUse(t, m.Repo)
	src := open(t, m.Path("src"), unix.O_RDONLY)
	for name, c := range map[string]struct{ from, to, n int64 }{
		"whole": {0, 0, size}, "moved": {2 << 20, 5 << 20, 10 << 20}, "odd": {1<<20 + 1, 1<<20 + 1, 6 << 20},
	} {
		dst := open(t, m.Path(name), unix.O_RDWR|unix.O_CREAT)
		from, to := c.from, c.to
		for left := c.n; left > 0; {
			n, err := unix.CopyFileRange(src, &from, dst, &to, int(left), 0)
			if err != nil || n == 0 {
				t.Fatalf("%s: %d, %v", name, n, err)
			}
			left -= int64(n)
		}
		must(t, unix.Fsync(dst))
		unix.Close(dst)
		content(t, m.Path(name), append(make([]byte, c.to), data[c.from:c.from+c.n]...))
	}
	unix.Close(src)
	m.Sync()
	if grown := diskUse(t, m.Repo) - before; grown > 5<<20 { // the odd ends, twice
		t.Errorf("40 MiB of copies take %d bytes", grown)
	}
	m.Remount()
	content(t, m.Path("whole"), data)
}

// TestFallocate: each mode of fallocate(2), its errors, and what becomes of the
// size, the content and the space.
func TestFallocate(t *testing.T) {
	m := setup(t)
	path := m.Path("f")
	const keep, punch, zero = unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE
	must(t, os.WriteFile(path, bytes.Repeat([]byte("x"), 3<<20), 0o644))
	fd := open(t, path, unix.O_RDWR)
	model := bytes.Repeat([]byte("x"), 3<<20)
	for _, c := range []struct {
		mode   uint32
		off, n int64
		err    error
		grow   bool
	}{
		{0, 0, 4 << 20, nil, true},
		{keep, 5 << 20, 1 << 20, nil, false},
		{keep | punch, 1000, 2 << 20, nil, false},
		{keep | zero, 2<<20 + 500_000, 3 << 20, nil, false},
		{zero, 3 << 20, 2 << 20, nil, true},
		{punch, 0, 1, unix.EOPNOTSUPP, false},
		{0, -1, 1, unix.EINVAL, false},
		{0, 0, 0, unix.EINVAL, false},
		{0, math.MaxInt64, 1, unix.EFBIG, false},
		{0x4000, 0, 1, unix.EOPNOTSUPP, false},
	} {
		want(t, "fallocate", unix.Fallocate(fd, c.mode, c.off, c.n), c.err)
		if c.err != nil {
			continue
		}
		if c.grow && c.off+c.n > int64(len(model)) {
			model = append(model, make([]byte, c.off+c.n-int64(len(model)))...)
		}
		if c.mode&(punch|zero) != 0 {
			clear(model[min(c.off, int64(len(model))):min(c.off+c.n, int64(len(model)))])
		}
		content(t, path, model)
	}
	unix.Close(fd)
	before := stat(t, path).Blocks
	fd = open(t, path, unix.O_RDWR)
	unix.Close(fd)
	m.Remount()
	content(t, path, model)
	fd = open(t, path, unix.O_RDWR)
	must(t, unix.Fallocate(fd, keep|punch, 0, 8<<20))
	if after := stat(t, path).Blocks; after >= before || after > 64 && !harness.Plain() { // ext4 keeps what is allocated behind the end
		t.Errorf("a file of holes has %d blocks, had %d", after, before)
	}
	pipe := make([]int, 2)
	must(t, unix.Pipe2(pipe, unix.O_CLOEXEC))
	want(t, "fallocate of a pipe", unix.Fallocate(pipe[1], 0, 0, 1), unix.ESPIPE)
	if !harness.Plain() {
		var st unix.Statfs_t
		must(t, unix.Statfs(m.Dir, &st))
		err := unix.Fallocate(fd, 0, 0, int64(st.Blocks)*st.Bsize*2)
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("more than the disk has: %v, want %v", err, unix.ENOSPC)
		}
	}
}

// TestPrivateMapping: what is written to a private mapping stays there, and
// what others write to the file shows where the mapping was not written.
func TestPrivateMapping(t *testing.T) {
	m := setup(t)
	must(t, os.WriteFile(m.Path("f"), bytes.Repeat([]byte("a"), 3*4096), 0o644))
	fd := open(t, m.Path("f"), unix.O_RDWR)
	p, err := unix.Mmap(fd, 0, 3*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	must(t, err)
	p[0] = 'p'
	must(t, second(unix.Pwrite(fd, []byte("w"), 4096)))
	if p[4096] != 'w' || p[8192] != 'a' {
		t.Errorf("page 1 has %q, page 2 %q", p[4096], p[8192])
	}
	must(t, unix.Munmap(p))
	model := bytes.Repeat([]byte("a"), 3*4096)
	model[4096] = 'w'
	content(t, m.Path("f"), model)
}

// TestMappingBeside: what is written to a page through a mapping stays, while
// another part of the page is copied, punched and written.
func TestMappingBeside(t *testing.T) {
	m := setup(t)
	src := open(t, m.Path("src"), unix.O_RDWR|unix.O_CREAT)
	dst := open(t, m.Path("dst"), unix.O_RDWR|unix.O_CREAT)
	must(t, second(unix.Pwrite(src, bytes.Repeat([]byte("s"), 4096), 0)))
	must(t, second(unix.Pwrite(dst, make([]byte, 2*4096), 0)))
	page, err := unix.Mmap(dst, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	for name, change := range map[string]func(off int64) error{
		"copy_file_range": func(off int64) error {
			from := int64(0)
			return second(unix.CopyFileRange(src, &from, dst, &off, 100, 0))
		},
		"punch": func(off int64) error {
			return unix.Fallocate(dst, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, 100)
		},
		"pwrite": func(off int64) error { return second(unix.Pwrite(dst, []byte("w"), off)) },
	} {
		stop, done := make(chan bool), make(chan error, 1)
		go func() {
			for i := int64(0); ; i++ {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				if err := change(i % 1000); err != nil {
					done <- err
					return
				}
			}
		}()
		lost := 0
		for i := range 300 {
			at := 2000 + i%2000
			page[at] = byte(i)
			must(t, unix.Msync(page, unix.MS_SYNC))
			if got := []byte{0}; second(unix.Pread(dst, got, int64(at))) != nil || got[0] != byte(i) {
				lost++
			}
		}
		close(stop)
		if err := <-done; err != nil || lost > 0 {
			t.Errorf("beside %s: %d of 300 bytes lost, %v", name, lost, err)
		}
	}
	must(t, unix.Munmap(page))
}

// TestZeroedBeside: what is zeroed stays zero while somebody writes to another
// part of the page through a mapping, and the kernel writes that page out.
func TestZeroedBeside(t *testing.T) {
	m := setup(t)
	fd := open(t, m.Path("f"), unix.O_RDWR|unix.O_CREAT)
	must(t, second(unix.Pwrite(fd, make([]byte, 4096), 0)))
	page, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	for name, mode := range map[string]uint32{
		"punch": unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE,
		"zero":  unix.FALLOC_FL_ZERO_RANGE,
	} {
		stop, done := make(chan bool), make(chan error, 2)
		for g := range 2 {
			go func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						done <- nil
						return
					default:
					}
					page[2000+1000*g+i%1000] = byte(i)
					if err := unix.SyncFileRange(fd, 0, 4096, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER); err != nil {
						done <- err
						return
					}
				}
			}()
		}
		back, n := 0, 1000
		for range n {
			must(t, second(unix.Pwrite(fd, bytes.Repeat([]byte("o"), 1000), 0)))
			must(t, unix.Fallocate(fd, mode, 0, 1000))
			must(t, unix.Fadvise(fd, 0, 4096, unix.FADV_DONTNEED))
			got := make([]byte, 1000)
			must(t, second(unix.Pread(fd, got, 0)))
			if !bytes.Equal(got, make([]byte, 1000)) {
				back++
			}
		}
		close(stop)
		if err := errors.Join(<-done, <-done); err != nil || back > 0 {
			t.Errorf("%s: came back %d times of %d, %v", name, back, n, err)
		}
	}
	must(t, unix.Munmap(page))
}

// TestHolePages: data and holes are told in pages.
func TestHolePages(t *testing.T) {
	m := setup(t)
	fd := open(t, m.Path("f"), unix.O_RDWR|unix.O_CREAT)
	must(t, second(unix.Pwrite(fd, []byte("ten bytes."), 5000)))
	must(t, second(unix.Pwrite(fd, bytes.Repeat([]byte("x"), 100), 20_000)))
	must(t, second(unix.Pwrite(fd, []byte("end"), 40_000)))
	must(t, unix.Ftruncate(fd, 50_003))
	check := func(size int64) {
		for _, c := range []struct {
			whence    int
			off, want int64
		}{
			{unix.SEEK_DATA, 0, 4096}, {unix.SEEK_DATA, 4096, 4096}, {unix.SEEK_DATA, 5015, 5015}, {unix.SEEK_DATA, 8192, 16384},
			{unix.SEEK_DATA, 20_450, 20_450}, {unix.SEEK_DATA, 20_480, 36_864}, {unix.SEEK_DATA, 40_960, -1}, {unix.SEEK_DATA, size, -1},
			{unix.SEEK_HOLE, 0, 0}, {unix.SEEK_HOLE, 4096, 8192}, {unix.SEEK_HOLE, 4999, 8192}, {unix.SEEK_HOLE, 8191, 8192},
			{unix.SEEK_HOLE, 10_000, 10_000}, {unix.SEEK_HOLE, 16_384, 20_480}, {unix.SEEK_HOLE, 40_001, min(40_960, size)}, {unix.SEEK_HOLE, size, -1},
		} {
			if c.off > size {
				continue
			}
			got, err := unix.Seek(fd, c.off, c.whence)
			if c.want < 0 {
				want(t, "seek to the end", err, unix.ENXIO)
			} else if err != nil || got != c.want {
				t.Errorf("size %d: seek %d from %d: %d, %v; want %d", size, c.whence, c.off, got, err, c.want)
			}
		}
	}
	check(50_003)
	must(t, unix.Ftruncate(fd, 40_003))
	check(40_003)
}
