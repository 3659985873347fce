// Package fsx exercises the data path of a file system with random operations
// on a few files and compares every byte with slices in memory, after the
// fsx of old: what is written through one handle, mapping or path must be
// what all others read.
package fsx

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Options of Run.
type Options struct {
	Seed  int64
	Ops   int   // how many operations
	Chunk int64 // in which the file system cuts files, in bytes, a power of two; offsets are often near its multiples. A file has up to 5 of them
	Files int   // how many files; default 2

	// Stripe, unless zero, is the part of one file that belongs to this run;
	// others have the parts beside it, at the same time. The file has its final
	// size, so that what changes the size of a file or its identity is not done.
	Stripe Stripe

	// Hooks that change nothing visible; nil where they cannot be had. Remount
	// is called with every handle closed and every mapping gone.
	Remount    func()            `json:"-"`
	DropCaches func()            `json:"-"`
	Seal       func(path string) `json:"-"`
}

// Stripe is a part of a file, as long as a file may get.
type Stripe struct {
	Path string
	Base int64 // where it begins, in bytes
}

// file is one file, or a stripe of one, and the model of its content.
type file struct {
	path string
	base int64 // of the stripe; offsets elsewhere count from it
	size int64 // of the file with all its stripes; 0: that of want
	want []byte
	got  []byte // what check reads
	fds  []int  // two that read and write, one that appends; always open
}

func (f *file) stripe() bool { return f.size > 0 }

type run struct {
	t     testing.TB
	o     Options
	max   int64 // size of a file, in bytes
	rnd   *rand.Rand
	files []*file
	log   []string
	n     int
}

// step is one kind of operation; weight is how often it is drawn.
type step struct {
	name   string
	weight int
	do     func(*run, *file) (what string, err error)
}

var steps = []step{
	{"read", 20, (*run).read},
	{"write", 20, (*run).write},
	{"append", 6, (*run).append},
	{"truncate", 6, (*run).truncate},
	{"punch", 5, (*run).punch},
	{"zero", 5, (*run).zero},
	{"allocate", 3, (*run).allocate},
	{"copy", 6, (*run).copyRange},
	{"mmap read", 5, (*run).mmapRead},
	{"mmap write", 6, (*run).mmapWrite},
	{"seek", 4, (*run).seek},
	{"fsync", 3, (*run).fsync},
	{"reopen", 3, (*run).reopen},
	{"replace", 2, (*run).replace},
	{"seal", 2, (*run).seal},
	{"drop pages", 3, (*run).dropPages},
	{"drop caches", 1, (*run).dropCaches},
	{"remount", 1, (*run).remount},
}

// Run makes files in dir, which must exist, and runs the operations. It stops
// at the first difference and prints what led to it.
func Run(t testing.TB, dir string, o Options) {
	t.Helper()
	if o.Files == 0 {
		o.Files = 2
	}
	r := &run{t: t, o: o, max: 5 * o.Chunk, rnd: rand.New(rand.NewPCG(uint64(o.Seed), 0))}
	flags := unix.O_CREAT | unix.O_TRUNC
	if o.Stripe.Path != "" {
		var st unix.Stat_t
		if err := unix.Stat(o.Stripe.Path, &st); err != nil {
			t.Fatal(err)
		}
		r.files, flags = []*file{{path: o.Stripe.Path, base: o.Stripe.Base, size: st.Size, want: make([]byte, r.max)}}, 0
	} else {
		for i := range o.Files {
			r.files = append(r.files, &file{path: filepath.Join(dir, fmt.Sprintf("fsx-%d", i))})
		}
	}
	for _, f := range r.files {
		if err := f.open(flags); err != nil {
			r.fail(err)
		}
	}
	defer func() {
		for _, f := range r.files {
			f.close()
		}
	}()
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	for r.n = 0; r.n < o.Ops; r.n++ {
		s := r.draw(total)
		f := r.files[r.rnd.IntN(len(r.files))]
		what, err := s.do(r, f)
		r.log = append(r.log, fmt.Sprintf("%d: %s %s %s", r.n, s.name, filepath.Base(f.path), what))
		if err == nil {
			err = f.checkSize()
		}
		if err == nil && r.n%64 == 63 {
			err = f.check()
		}
		if err != nil {
			r.fail(err)
		}
	}
	for _, f := range r.files {
		if err := f.check(); err != nil {
			r.fail(err)
		}
	}
}

func (r *run) draw(total int) step {
	n := r.rnd.IntN(total)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			return s
		}
	}
	panic("unreachable")
}

func (r *run) fail(err error) {
	r.t.Helper()
	r.t.Fatalf("fsx: seed %d, operation %d: %v\nbefore it:\n%s",
		r.o.Seed, r.n, err, strings.Join(r.log[max(0, len(r.log)-40):], "\n"))
}

// offset draws an offset below limit, often on or next to a boundary of
// chunks, pages or the file.
func (r *run) offset(limit int64, f *file) int64 {
	var off int64
	switch r.rnd.IntN(8) {
	case 0:
		off = int64(len(f.want))
	case 1:
		off = int64(r.rnd.IntN(3)) - 1 + r.rnd.Int64N(limit/r.o.Chunk+1)*r.o.Chunk
	case 2:
		off = int64(r.rnd.IntN(int(limit>>12)+1)) << 12
	default:
		off = r.rnd.Int64N(limit)
	}
	return min(max(off, 0), limit-1)
}

// length draws a length of at least 1, mostly small.
func (r *run) length(limit int64) int64 {
	var n int64
	switch r.rnd.IntN(6) {
	case 0:
		n = 1 + r.rnd.Int64N(r.o.Chunk+2)
	case 1:
		n = r.o.Chunk >> r.rnd.IntN(9)
	case 2:
		n = 1 + r.rnd.Int64N(16)
	default:
		n = 1 + r.rnd.Int64N(20_000)
	}
	return max(1, min(n, limit))
}

// span draws a range inside the greatest size a file may get.
func (r *run) span(f *file) (off, n int64) {
	off = r.offset(r.max, f)
	return off, r.length(r.max - off)
}

// fill makes bytes that differ between operations; now and then zeros, which
// a file system may turn into holes.
func (r *run) fill(n int64) []byte {
	p := make([]byte, n)
	if r.rnd.IntN(10) == 0 {
		return p
	}
	x := r.rnd.Uint64() | 1
	for i := range p {
		x = x*6364136223846793005 + 1442695040888963407
		p[i] = byte(x >> 56)
	}
	return p
}

func (f *file) open(flags int) error {
	for _, extra := range []int{unix.O_RDWR | flags, unix.O_RDWR, unix.O_RDWR | unix.O_APPEND} {
		fd, err := unix.Open(f.path, extra|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return fmt.Errorf("open %s: %w", f.path, err)
		}
		f.fds = append(f.fds, fd)
	}
	return nil
}

func (f *file) close() error {
	var first error
	for _, fd := range f.fds {
		if err := unix.Close(fd); err != nil && first == nil {
			first = fmt.Errorf("close: %w", err)
		}
	}
	f.fds = nil
	return first
}

// grow makes the model at least size bytes long.
func (f *file) grow(size int64) {
	if n := size - int64(len(f.want)); n > 0 {
		f.want = append(f.want, make([]byte, n)...)
	}
}

func (f *file) put(p []byte, off int64) {
	f.grow(off + int64(len(p)))
	copy(f.want[off:], p)
}

func (f *file) checkSize() error {
	var st unix.Stat_t
	if err := unix.Stat(f.path, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if want := cmp.Or(f.size, int64(len(f.want))); st.Size != want {
		return fmt.Errorf("%s: size is %d, must be %d", f.path, st.Size, want)
	}
	return nil
}

func (f *file) check() error {
	fd, err := unix.Open(f.path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", f.path, err)
	}
	defer unix.Close(fd)
	n := len(f.want)
	if !f.stripe() {
		n++ // a byte too many would show
	}
	f.got = slices.Grow(f.got[:0], n)[:n]
	k, err := f.pread(fd, f.got, 0)
	if err != nil {
		return err
	}
	return compare(f.got[:k], f.want, 0)
}

// compare says where got, which lies at off in the file, is not want.
func compare(got, want []byte, off int64) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes at %d, must be %d", len(got), off, len(want))
	}
	first, last := -1, 0
	for i := range got {
		if got[i] != want[i] {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	return fmt.Errorf("content differs between %d and %d: first byte is %#x, must be %#x",
		off+int64(first), off+int64(last), got[first], want[first])
}
