package content

import (
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
	"time"

	"cafs/store/disk"
)

// space estimates the room on the staging volume between two looks at it.
type space struct {
	fs      disk.FS
	reserve int64
	ballast *Ballast // may be nil
	// capacity is Config.Capacity; may be nil.
	capacity func() (total, left int64)
	// blocks tells what blocks that are in memory only will take; may be nil.
	blocks backlog

	avail  atomic.Int64 // at the last look, beyond the reserve
	spent  atomic.Int64 // written since
	looked atomic.Int64 // when, in nanoseconds of the monotonic clock
}

// While there is plenty of room, looks are lookAfter apart; below that each
// request looks, since what others take, the index among them, is not in spent.
const (
	lookAfter = 50 * time.Millisecond
	plenty    = 256 << 20 // bytes
)

var epoch = time.Now()

// ErrNoRoom is the ENOSPC of a full disk, or of a repository that has reached its
// limit; what is deleted makes room.
var ErrNoRoom = fmt.Errorf("content: no room on disk: %w", syscall.ENOSPC)

// Room returns ErrNoRoom when n more bytes might not fit the disk. It is for what
// makes records of the index: without it, names would eat up the room that
// removing them needs.
func (fs *Files) Room(n int64) error { return fs.room(n) }

// backlog is a role of block stores.
type backlog interface {
	// Waiting is how many bytes of the disk blocks will take that are put and
	// not written.
	Waiting() int64
}

// room returns ErrNoRoom when n more bytes, with those in memory that are yet to be
// written, here and by the block store, might not fit the disk. So a full disk fails the write that needs
// the space, not a later fsync.
func (fs *Files) room(n int64) error {
	sp := &fs.space
	// Heads, index records and the leaf that sealing makes come on top.
	need := n + n/4 + 64<<10
	now := int64(time.Since(epoch))
	if now-sp.looked.Load() < int64(lookAfter) && fs.fits(need+plenty) {
		return nil
	}
	spent := sp.spent.Load()
	u, err := sp.fs.Usage()
	if err != nil {
		return fmt.Errorf("content: room on disk: %w", err)
	}
	if sp.ballast != nil {
		sp.ballast.restore(u)
		u.Avail -= sp.ballast.Missing()
	}
	// What waits in the block store is counted in left already, and again in fits.
	sp.avail.Store(min(u.Avail-sp.reserve, fs.left()+fs.waiting()))
	sp.spent.Add(-spent)
	sp.looked.Store(now)
	if u.Total == 0 || fs.fits(need) {
		return nil
	}
	if fs.cfg.Failed != nil {
		if err := fs.cfg.Failed(); err != nil {
			return err
		}
	}
	if need > min(u.Total, fs.limit()) {
		return syscall.ENOSPC // nothing makes room for that
	}
	return ErrNoRoom
}

func (fs *Files) fits(need int64) bool {
	left := fs.space.avail.Load() - fs.space.spent.Load() - fs.unwritten()
	return need <= left
}

// unwritten is how many bytes in memory are yet to be written.
func (fs *Files) unwritten() int64 {
	return fs.mem.inUse() + fs.waiting()
}

// waiting is how many of them wait in the block store.
func (fs *Files) waiting() int64 {
	if fs.space.blocks == nil {
		return 0
	}
	return fs.space.blocks.Waiting()
}

// noLimit is more than any disk has, and leaves room for sums.
const noLimit = math.MaxInt64 / 2

// limit is the most that may ever become blocks, in bytes.
func (fs *Files) limit() int64 {
	if fs.space.capacity != nil {
		if total, _ := fs.space.capacity(); total > 0 {
			return total
		}
	}
	return noLimit
}

// left is how many bytes may still become blocks, when what is staged has.
func (fs *Files) left() int64 {
	if fs.space.capacity == nil {
		return noLimit
	}
	total, left := fs.space.capacity()
	if total == 0 {
		return noLimit
	}
	return left - fs.Stats().Staged
}

// Usage tells the room on the staging volume, for statfs(2): what is held back
// and what memory still has to write counts as used.
func (fs *Files) Usage() (disk.Usage, error) {
	u, err := fs.space.fs.Usage()
	if err != nil {
		return u, fmt.Errorf("content: room on disk: %w", err)
	}
	taken := fs.space.reserve + fs.unwritten()
	if fs.space.ballast != nil {
		taken += fs.space.ballast.Missing()
	}
	u.Free = max(0, u.Free-taken)
	u.Avail = max(0, u.Avail-taken)
	if fs.space.capacity != nil {
		if total, _ := fs.space.capacity(); total > 0 {
			left := max(0, fs.left()-fs.mem.inUse())
			u.Total, u.Free, u.Avail = min(u.Total, total), min(u.Free, left), min(u.Avail, left)
		}
	}
	return u, nil
}
