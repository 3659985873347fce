package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cafs/store/disk"

	"github.com/ipfs/go-cid"
)

// Sync implements [Syncer]. Cancelling ctx ends the wait, not the barrier.
func (d *Dir) Sync(ctx context.Context) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.poisoned(); err != nil {
		return err
	}
	return await(ctx, d.queue.claimAll())
}

// Flush implements [Flusher]. Blocks that are not pending are durable already,
// or were never put: neither is an error.
func (d *Dir) Flush(ctx context.Context, cids []cid.Cid) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.flush(ctx, cids)
}

func (d *Dir) flush(ctx context.Context, cids []cid.Cid) error {
	if err := d.poisoned(); err != nil {
		return err
	}
	entries := make([]*entry, 0, len(cids))
	for _, c := range cids {
		if e := d.table.get(hashKey(c)); e != nil {
			entries = append(entries, e)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	return await(ctx, d.queue.claimSome(entries))
}

// settle gives names to all blocks that are durable in a log only.
func (d *Dir) settle(ctx context.Context) error {
	return await(ctx, d.queue.claimNames())
}

// commit makes a batch durable, in the order that keeps the promise of [Dir].
// Lack of space before the flush leaves everything as it was, to be tried
// again; any other failure poisons the store, since what the kernel did with
// the bytes is not known.
func (d *Dir) commit(b *batch) error {
	if err := d.poisoned(); err != nil {
		return err
	}
	small := 0
	for _, e := range b.entries {
		if e.inMemory() {
			small++
		}
	}
	whole := d.whole.worth(small)
	begin := time.Now()
	if err := d.writeBatch(b, whole); err != nil {
		return err
	}
	if !whole {
		d.whole.tookSingle(small, time.Since(begin))
	} else if err := d.whole.do(); err != nil {
		return d.poison(fmt.Errorf("flush: %w", err))
	}
	if err := d.nameBatch(b); err != nil {
		return err
	}
	d.forget(b)
	return nil
}

// writeBatch writes what is still in memory only and, unless the whole file
// system is flushed afterwards, flushes every file.
func (d *Dir) writeBatch(b *batch, whole bool) error {
	workers := syncers
	if whole {
		workers = runtime.GOMAXPROCS(0)
	}
	return parallel(len(b.entries), workers, func(i int) error {
		e := b.entries[i]
		if e.renamed {
			return nil
		}
		if e.inMemory() {
			return d.writeSmall(e, whole)
		}
		if whole {
			return nil
		}
		if err := e.file.Sync(); err != nil {
			return d.poison(fmt.Errorf("flush %s: %w", keyString(e.key), err))
		}
		return nil
	})
}

// writeSmall writes a small block aside, and flushes it unless the whole file
// system is flushed afterwards; then it takes a file without a name. One that an
// earlier attempt wrote is written again, through the handle that is then
// flushed: an error of the write-out in between is seen by no other.
func (d *Dir) writeSmall(e *entry, whole bool) error {
	if e.written {
		e.written = false
		d.room.wrote(e.size, -1)
		if err := d.staging.remove(e.temp); err != nil && !notExist(err) {
			return d.writeFailed(e, err)
		}
	}
	create := d.staging.createUnnamed
	if !whole {
		create = func() (temp, disk.File, error) { return d.staging.create(0) }
	}
	t, f, err := create()
	if err != nil {
		return d.writeFailed(e, err)
	}
	if len(e.data) > 0 {
		_, err = f.WriteAt(e.data, 0)
	}
	if err != nil {
		if t.file == nil {
			f.Close()
		}
		d.staging.remove(t) // best effort; swept at the next open
		return d.writeFailed(e, err)
	}
	e.temp, e.unnamed = t, t.file != nil
	d.wrote(e)
	if e.unnamed {
		return nil
	}
	if !whole {
		if err := f.Sync(); err != nil {
			f.Close()
			return d.poison(fmt.Errorf("flush %s: %w", keyString(e.key), err))
		}
	}
	if err := f.Close(); err != nil {
		return d.poison(fmt.Errorf("close %s: %w", keyString(e.key), err))
	}
	return nil
}

// writeFailed sorts out why a block could not be written aside.
func (d *Dir) writeFailed(e *entry, err error) error {
	if noSpace(err) {
		return fmt.Errorf("store: put %s: %w", keyString(e.key), err)
	}
	return d.poison(fmt.Errorf("write %s: %w", keyString(e.key), err))
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// nameBatch gives every block its final name and makes the names durable.
func (d *Dir) nameBatch(b *batch) error {
	touched := map[string]struct{}{}
	unnamed := false
	for _, e := range b.entries {
		touched[d.shard.Dir(blockKey(e.name))] = struct{}{}
		unnamed = unnamed || e.unnamed
	}
	err := parallel(len(b.entries), runtime.GOMAXPROCS(0), func(i int) error { return d.name(b.entries[i]) })
	if err != nil {
		return err
	}
	if unnamed || d.whole.worth(len(touched)) {
		if err := d.whole.do(); err != nil {
			return d.poison(fmt.Errorf("flush names: %w", err))
		}
		return nil
	}
	if err := d.folders.syncParents(); err != nil {
		return d.poison(fmt.Errorf("flush folders: %w", err))
	}
	names := make([]string, 0, len(touched))
	for name := range touched {
		names = append(names, name)
	}
	return parallel(len(names), syncers, func(i int) error {
		if err := d.folders.syncDir(names[i]); err != nil {
			return d.poison(fmt.Errorf("flush folder %s: %w", names[i], err))
		}
		return nil
	})
}

// name gives a block its final name.
func (d *Dir) name(e *entry) error {
	if e.renamed {
		return nil
	}
	f, err := d.folders.get(d.shard.Dir(blockKey(e.name)), true)
	if err == nil {
		err = d.staging.rename(e.temp, f.FS, e.name)
		f.release()
	}
	if err != nil {
		return d.writeFailed(e, err)
	}
	e.renamed = true
	return nil
}

// forget ends the pending life of a batch's blocks.
func (d *Dir) forget(b *batch) {
	for _, e := range b.entries {
		d.files.drop(e.key) // of a damaged block that this one replaced
		d.pages.replaced(e.key)
		d.pages.save(e.key, e.sums)
		d.table.remove(e)
		e.drop()
		if e.log != nil {
			e.log.live.Add(-1)
		}
	}
	d.stats.barriers.Add(1)
}

// parallel calls f(0) to f(n-1) from at most workers goroutines and returns the
// first error, after which no further call begins.
func parallel(n, workers int, f func(i int) error) error {
	workers = min(n, workers)
	if workers <= 1 {
		for i := range n {
			if err := f(i); err != nil {
				return err
			}
		}
		return nil
	}
	var next atomic.Int64
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if errs[w] = f(i); errs[w] != nil {
					next.Store(int64(n))
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
