package store

import (
	"time"

	"cafs/store/disk"

	"github.com/ipfs/go-cid"
)

// Shrink makes barriers start and puts wait early, so that small tests reach
// every path of the queue.
func (d *Dir) Shrink() {
	d.queue.limits = limits{
		kick:     load{count: 40, memory: 1 << 20, files: 4, bytes: 1 << 20},
		limit:    load{count: 80, memory: 2 << 20, files: 8, bytes: 2 << 20},
		express:  load{count: 8, memory: 1 << 20, files: 4, bytes: 1 << 20},
		settle:   load{count: 60, memory: 1 << 20, files: 1, bytes: 1 << 20},
		batchMax: 36,
	}
	d.logs.size, d.logs.after = 256<<10, 0
	d.queue.later = time.Hour // the limits alone
	d.staging.maxUnnamed = min(d.staging.maxUnnamed, 20)
	d.whole.few = 9 // both ways of flushing are taken, for bytes and for names
}

// Logged is the number of blocks that are durable in a log only.
func (d *Dir) Logged() int64 {
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()
	return d.queue.logged.count
}

// ReadLog lists the multihashes of the blocks in a log.
func ReadLog(dir disk.FS, name string) (keys []string, err error) {
	list, err := readLog(dir, name)
	for _, b := range list {
		keys = append(keys, b.key)
	}
	return keys, err
}

// SettleAfter sets how long blocks stay in a log only.
func (d *Dir) SettleAfter(later time.Duration) {
	d.queue.mu.Lock()
	defer d.queue.mu.Unlock()
	d.queue.later = later
	if t := d.queue.timer; t != nil && t.Stop() {
		d.queue.timer = nil
	}
}

// Path is where a block's file is, relative to the store.
func (d *Dir) Path(c cid.Cid) string {
	name := blockName(hashKey(c))
	return d.shard.Dir(blockKey(name)) + "/" + name
}

// WaitCounted waits for the count that Open begins after an unclean end.
func (d *Dir) WaitCounted() { d.work.Wait() }

// Group runs sync for all who call it at about the same time.
func Group(sync func() error) (do func() error) {
	g := &group{sync: sync}
	return g.do
}

// SyncFolders makes a folder in root and flushes the folders above it, twice.
func SyncFolders(root disk.FS, name string) (first, second error) {
	var f folders
	f.init(root)
	defer f.close()
	d, err := f.get(name, true)
	if err != nil {
		return err, err
	}
	d.release()
	return f.syncParents(), f.syncParents()
}
