package content

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"cafs/store/disk"
)

const (
	ballastName = "ballast"
	// ballastSize is room, in bytes, for what removals bring about: logs of the
	// index, and the tables made of them before the logs can go.
	ballastSize = 64 << 20
	// ballastShare of a file system is the most that the ballast takes of it.
	ballastShare = 32
)

// Ballast is a file that takes up room for the day when others have filled the
// disk. Removing a file needs a little of it, for the index: Release gives the
// ballast back then, so that deleting works on a full disk. Until it is made
// again, when there is plenty, its size does not count as room for writes.
// Methods may be called concurrently.
type Ballast struct {
	fs   disk.FS
	log  *slog.Logger
	size int64

	mu      sync.Mutex
	missing atomic.Int64 // bytes: its size while there is none, else 0
}

// OpenBallast finds the ballast in a folder or, if there is room, makes it.
// The folder stays the caller's to close. It needs no durability: after a crash
// it is there or not.
func OpenBallast(folder disk.FS, log *slog.Logger) (*Ballast, error) {
	u, err := folder.Usage()
	if err != nil {
		return nil, fmt.Errorf("content: ballast: %w", err)
	}
	b := &Ballast{fs: folder, log: log, size: min(ballastSize, u.Total/ballastShare)}
	b.missing.Store(b.size)
	info, err := folder.Stat(ballastName)
	switch {
	case err == nil && info.Size == b.size:
		err = b.fill() // a copy of a repository may have made holes of it
	case err == nil:
		b.remove()
		err = b.fillIfPlenty(u)
	case errors.Is(err, fs.ErrNotExist):
		err = b.fillIfPlenty(u)
	}
	if err != nil {
		// A disk without room for it is what it is for.
		log.Warn("no room is kept for deleting on a full disk", "err", err)
		b.remove()
	}
	return b, nil
}

// Missing is how many bytes the ballast is yet to take.
func (b *Ballast) Missing() int64 { return b.missing.Load() }

// Release gives the room back. It is meant for whoever finds the disk full
// while removing something.
func (b *Ballast) Release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.missing.Load() == 0 {
		b.remove()
		b.log.Warn("the disk is full; the room kept for deleting is in use", "bytes", b.size)
	}
}

func (b *Ballast) remove() {
	b.missing.Store(b.size)
	if err := b.fs.Remove(ballastName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.log.Error("removing the ballast", "err", err)
	}
}

// restore makes the ballast again if u has room for it and as much again.
func (b *Ballast) restore(u disk.Usage) {
	if b.missing.Load() == 0 || !b.mu.TryLock() {
		return
	}
	defer b.mu.Unlock()
	if b.missing.Load() == 0 {
		return
	}
	if err := b.fillIfPlenty(u); err != nil {
		b.log.Warn("keeping room for deleting on a full disk", "err", err)
		b.remove()
	}
}

func (b *Ballast) fillIfPlenty(u disk.Usage) error {
	if u.Avail < 4*b.size {
		return nil
	}
	return b.fill()
}

func (b *Ballast) fill() error {
	f, err := b.fs.OpenFile(ballastName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	err = f.Allocate(0, b.size, false)
	if err = errors.Join(err, f.Close()); err == nil {
		b.missing.Store(0)
	}
	return err
}
