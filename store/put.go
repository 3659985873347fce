package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/ipfs/go-cid"
)

// largeBlock is the size in bytes from which a block is written towards the
// disk within its put, and read back from there; smaller ones are copied and
// wait in memory for their barrier.
const largeBlock = 64 << 10

// Put implements [Putter]. It waits when too much is pending. A block is not
// hashed here. Errors: ErrFull, ErrPoisoned, syscall.ENOSPC.
func (d *Dir) Put(ctx context.Context, c cid.Cid, block []byte) error {
	if err := CheckPut(c, block); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.poisoned(); err != nil {
		return err
	}
	key := hashKey(c)
	name := blockName(key)
	found, err := d.exists(key, name, int64(len(block)))
	if err != nil {
		return fmt.Errorf("store: put %s: %w", c, err)
	}
	if found {
		d.stats.existing.Add(1)
		return nil
	}
	if err := d.add(ctx, key, name, block); err != nil {
		return fmt.Errorf("store: put %s: %w", c, err)
	}
	return nil
}

// exists tells whether the block is pending or in the store, with the right
// length and without known damage. The latch orders it against a sweep: either
// the sweep sees this put, or this put sees the block gone.
func (d *Dir) exists(key, name string, size int64) (bool, error) {
	latch := d.sweeps.latches.Of(key)
	latch.RLock()
	defer latch.RUnlock()
	d.sweeps.note(key)
	if d.table.get(key) != nil {
		return true, nil
	}
	dir, err := d.folders.get(d.shard.Dir(blockKey(name)), false)
	if err != nil {
		return false, ignoreNotExist(err)
	}
	defer dir.release()
	info, err := dir.Stat(name)
	if err != nil {
		return false, ignoreNotExist(err)
	}
	return info.Size == size && !info.Dir && !d.pages.damaged(key), nil
}

func ignoreNotExist(err error) error {
	if notExist(err) {
		return nil
	}
	return err
}

// add makes a new block pending.
func (d *Dir) add(ctx context.Context, key, name string, block []byte) error {
	e := &entry{key: key, name: name, size: int64(len(block))}
	if len(block) >= largeBlock {
		e.sums = pageSums(nil, block)
	}
	if err := d.room.take(e.size); err != nil {
		return err
	}
	if err := d.queue.admit(ctx, e); err != nil {
		d.room.wrote(e.size, 1)
		d.room.giveBack(e.size)
		return err
	}
	err := d.hold(e, block)
	if err == nil && d.table.add(e) {
		d.queue.push(e)
		d.stats.puts.Add(1)
		return nil
	}
	// It failed, or another put of the same block was faster.
	if e.written {
		e.drop()
		d.staging.remove(e.temp) // best effort; swept at the next open
	} else {
		d.room.wrote(e.size, 1)
	}
	d.room.giveBack(e.size)
	d.queue.release(e)
	return err
}

// hold gives the entry bytes of its own.
func (d *Dir) hold(e *entry, block []byte) error {
	if e.inMemory() {
		e.data = bytes.Clone(block)
		return nil
	}
	if ok, err := d.holdDirect(e, block); ok || err != nil {
		return err
	}
	t, f, err := d.staging.create(0)
	if err != nil {
		return d.writeFailed(e, err)
	}
	if _, err := f.WriteAt(block, 0); err != nil {
		f.Close()
		t.remove() // best effort; swept at the next open
		return d.writeFailed(e, err)
	}
	e.temp, e.file = t, f
	d.wrote(e)
	f.WriteOut(0, e.size) // a hint; the flush reports what fails
	return nil
}

// holdDirect writes a large block around the page cache; ok is false when it
// has to go through it. The kernel takes whole pages only, so the file is
// opened once more to be read and flushed.
func (d *Dir) holdDirect(e *entry, block []byte) (ok bool, err error) {
	if d.opts.Buffered || d.noDirect.Load() || len(block)%pageSize != 0 ||
		uintptr(unsafe.Pointer(unsafe.SliceData(block)))%pageSize != 0 {
		return false, nil
	}
	t, f, err := d.staging.create(syscall.O_DIRECT)
	if errors.Is(err, syscall.EINVAL) {
		d.noDirect.Store(true)
		t.remove() // some file systems make the file all the same
		return false, nil
	}
	if err != nil {
		return false, d.writeFailed(e, err)
	}
	_, err = f.WriteAt(block, 0)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		e.file, err = t.stage.OpenFile(t.name, os.O_RDWR, 0)
	}
	if err != nil {
		t.remove() // best effort; swept at the next open
		if errors.Is(err, syscall.EINVAL) {
			d.noDirect.Store(true)
			return false, nil
		}
		return false, d.writeFailed(e, err)
	}
	e.temp = t
	d.wrote(e)
	return true, nil
}

// wrote notes that the entry's bytes are in its temporary file.
func (d *Dir) wrote(e *entry) {
	e.written = true
	d.room.wrote(e.size, 1)
	d.stats.written.Add(e.size)
}
