package fsx

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// handle draws one of the two handles that do not append.
func (r *run) handle(f *file) int { return f.fds[r.rnd.IntN(2)] }

func (r *run) read(f *file) (string, error) {
	off, n := r.span(f)
	what := fmt.Sprintf("[%d, +%d)", off, n)
	got := make([]byte, n)
	k, err := f.pread(r.handle(f), got, off)
	if err != nil {
		return what, err
	}
	size := int64(len(f.want))
	return what, compare(got[:k], f.want[min(off, size):min(off+n, size)], off)
}

func (r *run) write(f *file) (string, error) {
	off, n := r.span(f)
	p := r.fill(n)
	what := fmt.Sprintf("[%d, +%d)", off, n)
	if err := pwriteFull(r.handle(f), p, f.base+off); err != nil {
		return what, err
	}
	f.put(p, off)
	return what, nil
}

func (r *run) append(f *file) (string, error) {
	if f.stripe() {
		return "not done: a stripe", nil
	}
	size := int64(len(f.want))
	p := r.fill(r.length(r.o.Chunk / 8))
	what := fmt.Sprintf("+%d at %d", len(p), size)
	if size+int64(len(p)) > r.max {
		return "not done: full", nil
	}
	if k, err := unix.Write(f.fds[2], p); err != nil || k != len(p) {
		return what, fmt.Errorf("write: %d, %w", k, err)
	}
	f.put(p, size)
	return what, nil
}

func (r *run) truncate(f *file) (string, error) {
	if f.stripe() {
		return "not done: a stripe", nil
	}
	size := r.offset(r.max, f)
	if r.rnd.IntN(6) == 0 {
		size = 0
	}
	var err error
	what := fmt.Sprintf("%d -> %d by descriptor", len(f.want), size)
	if r.rnd.IntN(2) == 0 {
		what = fmt.Sprintf("%d -> %d by path", len(f.want), size)
		err = unix.Truncate(f.path, size)
	} else {
		err = unix.Ftruncate(r.handle(f), size)
	}
	if err != nil {
		return what, fmt.Errorf("truncate: %w", err)
	}
	if size <= int64(len(f.want)) {
		f.want = f.want[:size:size]
	} else {
		f.grow(size)
	}
	return what, nil
}

// clear makes a range of the model zeros, without growing it.
func (f *file) clear(off, n int64) {
	size := int64(len(f.want))
	clear(f.want[min(off, size):min(off+n, size)])
}

func (r *run) punch(f *file) (string, error) {
	off, n := r.span(f)
	what := fmt.Sprintf("[%d, +%d)", off, n)
	err := unix.Fallocate(r.handle(f), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, f.base+off, n)
	if err != nil {
		return what, fmt.Errorf("punch: %w", err)
	}
	f.clear(off, n)
	return what, nil
}

func (r *run) zero(f *file) (string, error) {
	off, n := r.span(f)
	mode, what := uint32(unix.FALLOC_FL_ZERO_RANGE), fmt.Sprintf("[%d, +%d)", off, n)
	if r.rnd.IntN(2) == 0 {
		mode |= unix.FALLOC_FL_KEEP_SIZE
		what += " keep size"
	}
	err := unix.Fallocate(r.handle(f), mode, f.base+off, n)
	if errors.Is(err, unix.EOPNOTSUPP) { // tmpfs
		return what + " not supported", nil
	}
	if err != nil {
		return what, fmt.Errorf("zero range: %w", err)
	}
	f.clear(off, n)
	if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
		f.grow(off + n)
	}
	return what, nil
}

func (r *run) allocate(f *file) (string, error) {
	off, n := r.span(f)
	mode, what := uint32(0), fmt.Sprintf("[%d, +%d)", off, n)
	if r.rnd.IntN(2) == 0 {
		mode, what = unix.FALLOC_FL_KEEP_SIZE, what+" keep size"
	}
	if err := unix.Fallocate(r.handle(f), mode, f.base+off, n); err != nil {
		return what, fmt.Errorf("fallocate: %w", err)
	}
	if mode == 0 {
		f.grow(off + n)
	}
	return what, nil
}

func (r *run) copyRange(f *file) (string, error) {
	src := r.files[r.rnd.IntN(len(r.files))]
	from, n := r.span(src)
	to := r.offset(r.max, f)
	if r.rnd.IntN(2) == 0 { // whole chunks, which can be shared
		c := r.o.Chunk - 1
		from, to, n = from&^c, to&^c, (n+c)&^c
	}
	n = min(n, r.max-to)
	if src == f && from < to+n && to < from+n { // EINVAL, by definition
		return "not done: overlap", nil
	}
	what := fmt.Sprintf("[%d, +%d) of %s to %d", from, n, src.path[len(src.path)-5:], to)
	for n > 0 {
		a, b := src.base+from, f.base+to
		k, err := unix.CopyFileRange(r.handle(src), &a, r.handle(f), &b, int(n), 0)
		if err != nil {
			return what, fmt.Errorf("copy_file_range: %w", err)
		}
		left := max(0, int64(len(src.want))-from)
		if k == 0 && left > 0 || int64(k) > min(n, left) {
			return what, fmt.Errorf("copy_file_range: %d with %d bytes left", k, left)
		}
		if k == 0 {
			break
		}
		f.put(append([]byte(nil), src.want[from:from+int64(k)]...), to)
		from, to, n = from+int64(k), to+int64(k), n-int64(k)
	}
	return what, nil
}

// mapping maps the pages around a drawn range that lies inside the file.
// inner is the range as part of the mapping.
func (r *run) mapping(f *file, prot int) (m, inner []byte, off int64, err error) {
	size := int64(len(f.want))
	if size == 0 {
		return nil, nil, 0, nil
	}
	off = min(r.offset(r.max, f), size-1)
	n := r.length(size - off)
	start := (f.base + off) &^ 4095
	m, err = unix.Mmap(r.handle(f), start, int(f.base+off+n-start), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, 0, fmt.Errorf("mmap: %w", err)
	}
	return m, m[f.base+off-start:], off, nil
}

func (r *run) mmapRead(f *file) (string, error) {
	m, inner, off, err := r.mapping(f, unix.PROT_READ)
	if m == nil {
		return "not done: empty", err
	}
	err = compare(inner, f.want[off:off+int64(len(inner))], off)
	return fmt.Sprintf("[%d, +%d)", off, len(inner)), errors.Join(err, unix.Munmap(m))
}

func (r *run) mmapWrite(f *file) (string, error) {
	m, inner, off, err := r.mapping(f, unix.PROT_READ|unix.PROT_WRITE)
	if m == nil {
		return "not done: empty", err
	}
	copy(inner, r.fill(int64(len(inner))))
	f.put(inner, off)
	what := fmt.Sprintf("[%d, +%d)", off, len(inner))
	if r.rnd.IntN(2) == 0 {
		what += " msync"
		err = unix.Msync(m, unix.MS_SYNC)
	}
	return what, errors.Join(err, unix.Munmap(m))
}

// seek checks that what is said to be a hole reads as zeros, and that data
// and holes alternate up to the end.
func (r *run) seek(f *file) (string, error) {
	if f.stripe() {
		return "not done: a stripe", nil
	}
	size := int64(len(f.want))
	off := r.offset(r.max, f)
	what := fmt.Sprint(off)
	fd := r.handle(f)
	data, err := unix.Seek(fd, off, unix.SEEK_DATA)
	switch {
	case errors.Is(err, unix.ENXIO):
		data = max(off, size)
	case err != nil:
		return what, fmt.Errorf("SEEK_DATA: %w", err)
	case off >= size || data < off || data >= size:
		return what, fmt.Errorf("SEEK_DATA from %d: %d in a file of %d", off, data, size)
	}
	for i := off; i < min(data, size); i++ {
		if f.want[i] != 0 {
			return what, fmt.Errorf("SEEK_DATA from %d: %d, but there is data at %d", off, data, i)
		}
	}
	hole, err := unix.Seek(fd, off, unix.SEEK_HOLE)
	if off >= size {
		if !errors.Is(err, unix.ENXIO) {
			return what, fmt.Errorf("SEEK_HOLE from %d in a file of %d: %v, must be ENXIO", off, size, err)
		}
		return what, nil
	}
	if err != nil || hole < off || hole > size {
		return what, fmt.Errorf("SEEK_HOLE from %d in a file of %d: %d, %w", off, size, hole, err)
	}
	if (data == off) == (hole == off) {
		return what, fmt.Errorf("at %d in a file of %d: both or neither data (%d) and hole (%d)", off, size, data, hole)
	}
	return what, nil
}

func (r *run) fsync(f *file) (string, error) {
	if r.rnd.IntN(2) == 0 {
		return "data", unix.Fdatasync(r.handle(f))
	}
	return "", unix.Fsync(r.handle(f))
}

func (r *run) reopen(f *file) (string, error) {
	if err := f.close(); err != nil {
		return "", err
	}
	return "", errors.Join(f.open(0), f.check())
}

// replace is how editors save: a new file, renamed over the old one, whose
// handles see the old content to the end.
func (r *run) replace(f *file) (string, error) {
	if f.stripe() {
		return "not done: a stripe", nil
	}
	old := *f
	p := r.fill(r.length(r.max))
	what := fmt.Sprintf("by %d bytes", len(p))
	tmp := f.path + ".tmp"
	fd, err := unix.Open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return what, err
	}
	err = errors.Join(pwriteFull(fd, p, 0), unix.Close(fd), unix.Rename(tmp, f.path))
	if err != nil {
		return what, err
	}
	f.fds, f.want = nil, p
	got := make([]byte, len(old.want)+1)
	k, err := old.pread(old.fds[0], got, 0)
	if err == nil {
		err = compare(got[:k], old.want, 0)
	}
	if err != nil {
		err = fmt.Errorf("through a handle of the replaced file: %w", err)
	}
	return what, errors.Join(err, old.close(), f.open(0), f.check())
}

func (r *run) seal(f *file) (string, error) {
	if r.o.Seal == nil {
		return "not done", nil
	}
	r.o.Seal(f.path)
	return "", f.check()
}

// dropPages has the kernel forget the pages of the file that are written back.
func (r *run) dropPages(f *file) (string, error) {
	return "", errors.Join(unix.Fadvise(r.handle(f), 0, 0, unix.FADV_DONTNEED), f.check())
}

func (r *run) dropCaches(f *file) (string, error) {
	if r.o.DropCaches == nil || r.rnd.IntN(4) != 0 { // all of the machine's
		return "not done", nil
	}
	r.o.DropCaches()
	return "", f.check()
}

func (r *run) remount(*file) (string, error) {
	if r.o.Remount == nil || r.rnd.IntN(8) != 0 { // expensive
		return "not done", nil
	}
	for _, f := range r.files {
		if err := f.close(); err != nil {
			return "", err
		}
	}
	r.o.Remount()
	for _, f := range r.files {
		if err := errors.Join(f.open(0), f.check()); err != nil {
			return "", err
		}
	}
	return "", nil
}

// pread reads p full, or to the end of the file.
func (f *file) pread(fd int, p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		k, err := unix.Pread(fd, p[n:], f.base+off+int64(n))
		if err != nil {
			return n, fmt.Errorf("pread: %w", err)
		}
		if k == 0 {
			break
		}
		n += k
	}
	return n, nil
}

func pwriteFull(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		k, err := unix.Pwrite(fd, p, off)
		if err != nil {
			return fmt.Errorf("pwrite: %w", err)
		}
		p, off = p[k:], off+int64(k)
	}
	return nil
}
