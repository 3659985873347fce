package content

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"cafs/store/disk"
)

// space estimates the room on the staging volume between two looks at it.
type space struct {
	fs      disk.FS
	reserve int64
	ballast *Ballast     // may be nil
	avail   atomic.Int64 // at the last look
	spent   atomic.Int64 // written since
	looked  atomic.Int64 // when, in nanoseconds of the monotonic clock
}

const lookAfter = 50 * time.Millisecond

var epoch = time.Now()

// Room returns ENOSPC when n more bytes might not fit the disk. It is for what
// makes records of the index: without it, names would eat up the room that
// removing them needs.
func (fs *Files) Room(n int64) error { return fs.room(n) }

// room returns ENOSPC when n more bytes, with those in memory that are yet to be
// written, might not fit the disk. So a full disk fails the write that needs
// the space, not a later fsync.
func (fs *Files) room(n int64) error {
	sp := &fs.space
	// Heads, index records and the leaf that sealing makes come on top.
	need := n + n/4 + 64<<10
	now := int64(time.Since(epoch))
	if now-sp.looked.Load() < int64(lookAfter) && fs.fits(need) {
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
	sp.avail.Store(u.Avail)
	sp.spent.Add(-spent)
	sp.looked.Store(now)
	if u.Total > 0 && !fs.fits(need) {
		return syscall.ENOSPC
	}
	return nil
}

func (fs *Files) fits(need int64) bool {
	left := fs.space.avail.Load() - fs.space.reserve - fs.space.spent.Load() - fs.mem.inUse()
	return need <= left
}

// Usage tells the room on the staging volume, for statfs(2): what is held back
// and what memory still has to write counts as used.
func (fs *Files) Usage() (disk.Usage, error) {
	u, err := fs.space.fs.Usage()
	if err != nil {
		return u, fmt.Errorf("content: room on disk: %w", err)
	}
	taken := fs.space.reserve + fs.mem.inUse()
	if fs.space.ballast != nil {
		taken += fs.space.ballast.Missing()
	}
	u.Free = max(0, u.Free-taken)
	u.Avail = max(0, u.Avail-taken)
	return u, nil
}
