package store

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"cafs/store/disk"
)

const (
	reserveBytes  = 16 << 20
	reserveInodes = 1024
	// reserveShare of a file system is the most that is kept free by default.
	reserveShare = 64
	// askEvery bounds how much is put between two looks at the file system.
	askEveryBytes  = 64 << 20
	askEveryInodes = 4096
	// inodeBytes is what a small file takes beyond its bytes, at least.
	inodeBytes = 4096
)

// room keeps puts within the capacity and off the reserve of the file system.
// It asks the file system seldom while there is plenty, and for every put when
// there is little.
type room struct {
	fs           disk.FS
	capacity     int64
	spareBytes   int64
	spareInodes  int64
	countsInodes bool

	mu        sync.Mutex
	bytes     int64 // of blocks; a lower bound until known
	known     bool
	unwritten load                          // taken, but not in a file yet
	credit    struct{ bytes, inodes int64 } // may be put before asking again
}

// openRoom learns how large the store is: from the file that the last clean
// close wrote, or by counting in the background.
func (d *Dir) openRoom(ctx context.Context, created, clean bool) error {
	u, err := d.root.Usage()
	if err != nil {
		return err
	}
	r := &d.room
	r.fs, r.capacity = d.root, d.opts.Capacity
	r.spareBytes = orDefault(d.opts.ReserveBytes, reserveBytes, u.Total/reserveShare)
	r.spareInodes = orDefault(d.opts.ReserveInodes, reserveInodes, u.Files/reserveShare)
	r.countsInodes = u.Files > 0
	if created {
		r.known = true
	} else if clean {
		r.bytes, r.known = readUsage(d.root)
	}
	// From here on the file would be stale; flatfs counts anew without it.
	if err := d.root.Remove(usageName); err != nil && !notExist(err) {
		return err
	}
	if !r.known && r.capacity > 0 {
		d.work.Go(func() {
			total, err := d.Total(ctx)
			if err != nil {
				d.log.Warn("store not counted", "err", err)
				return
			}
			r.counted(total.Bytes)
		})
	}
	return nil
}

func orDefault(asked, usual, most int64) int64 {
	if asked > 0 {
		return asked
	}
	return min(usual, most)
}

// take reserves room for a block. Errors: ErrFull.
func (r *room) take(size int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.capacity > 0 && r.bytes+size > r.capacity {
		return fmt.Errorf("%d bytes of %d are used: %w", r.bytes, r.capacity, ErrFull)
	}
	need := size + inodeBytes
	if r.credit.bytes < need || r.credit.inodes < 1 {
		if err := r.ask(need); err != nil {
			return err
		}
	}
	r.credit.bytes -= need
	r.credit.inodes--
	r.bytes += size
	r.unwritten.bytes += need
	r.unwritten.count++
	return nil
}

// ask looks at the file system and lends a part of what is free there beyond
// the reserve and what is taken but not written yet. It requires mu.
func (r *room) ask(need int64) error {
	u, err := r.fs.Usage()
	if err != nil {
		return err
	}
	bytes := u.Avail - r.spareBytes - r.unwritten.bytes
	inodes := int64(askEveryInodes)
	if r.countsInodes {
		inodes = u.FilesFree - r.spareInodes - r.unwritten.count
	}
	if bytes < need {
		return fmt.Errorf("%d bytes free on the file system, %d reserved: %w", u.Avail, r.spareBytes, ErrFull)
	}
	if inodes < 1 {
		return fmt.Errorf("%d inodes free on the file system, %d reserved: %w", u.FilesFree, r.spareInodes, ErrFull)
	}
	r.credit.bytes = max(need, min(bytes/8, askEveryBytes))
	r.credit.inodes = max(1, min(inodes/8, askEveryInodes))
	return nil
}

// wrote notes that a block is in a file; with sign -1, that it is not any more.
func (r *room) wrote(size, sign int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unwritten.bytes -= sign * (size + inodeBytes)
	r.unwritten.count -= sign
}

// giveBack notes that a block was deleted, or that one which was written is
// not wanted.
func (r *room) giveBack(size int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes = max(0, r.bytes-size)
}

// counted adds what a background count found.
func (r *room) counted(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Blocks put while it counted may be in both figures: too much rather than
	// too little, until the next clean close.
	r.bytes += bytes
	r.known = true
}

// Capacity tells how many bytes of blocks the store may hold, and how many more;
// 0 and 0 without a limit.
func (d *Dir) Capacity() (total, left int64) {
	r := &d.room
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.capacity, max(0, r.capacity-r.bytes)
}

// Waiting is how many bytes of the disk the blocks will take that were put and
// are not in a file yet.
func (d *Dir) Waiting() int64 {
	r := &d.room
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unwritten.bytes
}

// used is the size of all blocks in bytes, or -1.
func (r *room) used() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known {
		return -1
	}
	return r.bytes
}

// usage is the text of flatfs's diskUsage.cache.
type usage struct {
	DiskUsage int64  `json:"diskUsage"`
	Accuracy  string `json:"accuracy"`
}

func readUsage(root disk.FS) (int64, bool) {
	text, err := readSmall(root, usageName)
	if err != nil {
		return 0, false
	}
	var u usage
	if json.Unmarshal([]byte(text), &u) != nil || u.DiskUsage <= 0 {
		return 0, false
	}
	return u.DiskUsage, true
}

// writeUsage leaves the size for the next Open, ours or that of flatfs.
func (d *Dir) writeUsage() error {
	bytes := d.room.used()
	if bytes <= 0 {
		return nil
	}
	text, err := json.Marshal(usage{DiskUsage: bytes, Accuracy: "initial-exact"})
	if err != nil {
		return err
	}
	if err := writeSmall(d.root, usageName, string(text), filePerm); err != nil {
		return fmt.Errorf("store: close: %w", err)
	}
	return nil
}
