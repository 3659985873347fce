package store

// Shrink makes barriers start and puts wait early, so that small tests reach
// every path of the queue.
func (d *Dir) Shrink() {
	d.queue.limits = limits{
		kick:     load{count: 40, memory: 1 << 20, files: 4, bytes: 1 << 20},
		limit:    load{count: 80, memory: 2 << 20, files: 8, bytes: 2 << 20},
		express:  load{count: 8, memory: 1 << 20, files: 4, bytes: 1 << 20},
		batchMax: 36, wholeFlush: 3, wholeNames: 12,
	}
}
