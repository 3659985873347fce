package store

import "github.com/ipfs/go-cid"

// Shrink makes barriers start and puts wait early, so that small tests reach
// every path of the queue.
func (d *Dir) Shrink() {
	d.queue.limits = limits{
		kick:     load{count: 40, memory: 1 << 20, files: 4, bytes: 1 << 20},
		limit:    load{count: 80, memory: 2 << 20, files: 8, bytes: 2 << 20},
		express:  load{count: 8, memory: 1 << 20, files: 4, bytes: 1 << 20},
		batchMax: 36,
	}
	d.staging.maxUnnamed = min(d.staging.maxUnnamed, 20)
	d.whole.few = 9 // both ways of flushing are taken, for bytes and for names
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
