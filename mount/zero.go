package mount

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"cafs/mount/tree"
)

// Somebody may have a mapping of a page of which others zero a part. The kernel
// writes its dirty pages out whenever it likes, and zeroes its own copy of that
// part only after the answer to FALLOCATE: what it writes out in between, by
// sync_file_range(2) or its flusher, brings back what was there. So before the
// answer the page is taken from the kernel: it writes it out if it is dirty, the
// part is zeroed again, and whoever reads it meanwhile, to map it, gets zeros.

// pageSize is the kernel's.
const pageSize = 4096

// zeroing holds the ranges that are being zeroed.
type zeroing struct {
	active atomic.Int64 // how many there are: usually none

	mu     sync.Mutex // guards ranges
	ranges []zeroRange
}

type zeroRange struct {
	ino      tree.Ino
	off, end int64
}

func (z *zeroing) add(r zeroRange) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.ranges = append(z.ranges, r)
	z.active.Add(1)
}

func (z *zeroing) remove(r zeroRange) {
	z.mu.Lock()
	defer z.mu.Unlock()
	i := slices.Index(z.ranges, r)
	z.ranges = slices.Delete(z.ranges, i, i+1)
	z.active.Add(-1)
}

// of returns the ranges of ino, to be asked for before the file is read.
func (z *zeroing) of(ino tree.Ino) (list []zeroRange) {
	if z.active.Load() == 0 {
		return nil
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, r := range z.ranges {
		if r.ino == ino {
			list = append(list, r)
		}
	}
	return list
}

// clear zeroes what b, read at off, has of r.
func (r zeroRange) clear(b []byte, off int64) {
	from, to := max(r.off, off), min(r.end, off+int64(len(b)))
	if from < to {
		clear(b[from-off : to-off])
	}
}

// zeroesPart tells whether fallocate(2) with this mode zeroes a part of a page: of
// whole pages, nobody else's bytes are written out with them.
func zeroesPart(mode uint32, off, n int64) bool {
	return mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) != 0 && (off%pageSize != 0 || (off+n)%pageSize != 0)
}

// zeroAgain has the kernel drop the pages of a range that was zeroed, and zeroes
// what it wrote out of them.
func (f *fileSystem) zeroAgain(ctx context.Context, r zeroRange, zero func(context.Context) error) error {
	f.zeroing.add(r)
	defer f.zeroing.remove(r)
	f.conn.Outside(func() {
		for _, page := range [2]int64{r.off, r.end} {
			if page%pageSize != 0 {
				f.conn.InodeNotify(uint64(r.ino), page&^(pageSize-1), pageSize)
			}
		}
	})
	return zero(ctx)
}
