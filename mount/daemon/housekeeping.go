package daemon

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"cafs/mount/repo"
	"cafs/mount/tree"
)

const (
	// AutoCommit is how often a mount commits what changed unless told otherwise.
	AutoCommit = time.Hour
	// checkEvery is how often the free space is looked at. After an automatic
	// collection that did not free enough the next one waits collectShare times as
	// long as that one took: somebody may remove files at any moment, and collections
	// take a twentieth of the time at most.
	checkEvery   = 2 * time.Second
	collectShare = 20
	// A collection begins when less than this is free: a tenth, but no more than is
	// worth the work. It is begun early enough for requests not to have to wait for it
	// (makeRoom).
	lowShare = 10
	lowMax   = 8 << 30 // bytes
)

// housekeeper makes automatic commits, gives up those that are not to be kept,
// and collects garbage when room gets short or is asked for.
type housekeeper struct {
	*daemon
	asked chan chan<- bool // requests that found no room; each takes one answer
	ended chan struct{}    // closed when nobody will answer any more
	told  atomic.Uint64    // commands that may have given something up
	// collect collects garbage and tells whether there was any; released changes
	// when something may have become garbage.
	collect  func(context.Context) (freed bool)
	released func() uint64

	// Of the last automatic collection; run's alone.
	last struct {
		ended time.Time
		took  time.Duration
		asked uint64 // what released said when it began
		freed bool
	}
}

func newHousekeeper(d *daemon) *housekeeper {
	k := &housekeeper{daemon: d, asked: make(chan chan<- bool), ended: make(chan struct{})}
	k.collect = d.autoCollect
	k.released = func() uint64 { return d.tree.Released() + k.told.Load() }
	return k
}

// run keeps house until ctx ends.
func (k *housekeeper) run(ctx context.Context) {
	defer close(k.ended)
	var commits <-chan time.Time
	if k.opts.AutoCommit > 0 {
		t := time.NewTicker(k.opts.AutoCommit)
		defer t.Stop()
		commits = t.C
	}
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	var notBefore time.Time // the next collection that nobody asks for
	for {
		select {
		case <-ctx.Done():
			return
		case <-commits:
			k.autoCommit(ctx, "hourly")
		case first := <-k.asked:
			k.answer(ctx, first)
		case <-check.C:
			if time.Now().Before(notBefore) || !k.roomIsShort() {
				continue
			}
			k.collectNow(ctx)
			if k.roomIsShort() {
				notBefore = k.last.ended.Add(collectShare * k.last.took)
			}
		}
	}
}

// autoCommit commits when something changed.
func (d *daemon) autoCommit(ctx context.Context, reason string) {
	_, made, err := d.tree.Commit(ctx, tree.CommitOptions{Reason: reason, IfChanged: true})
	if err == nil && made {
		err = d.history.Prune(ctx, d.opts.Keep)
	}
	if err != nil && ctx.Err() == nil {
		d.log.Error("automatic commit", "reason", reason, "err", err)
	}
}

func (d *daemon) roomIsShort() bool {
	u, err := d.tree.Statfs()
	return err == nil && u.Avail < min(u.Total/lowShare, lowMax)
}

// makeRoom waits for a collection that begins now or later, and tells whether it
// freed something: a file that was removed gives its space back to a write that
// follows at once, as on any disk. Its error is that of ctx, which ends the wait
// and not the collection.
func (k *housekeeper) makeRoom(ctx context.Context) (bool, error) {
	made := make(chan bool, 1)
	select {
	case k.asked <- made: // between two collections
	case <-k.ended:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
	select {
	case ok := <-made:
		return ok, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// answer collects for first and for all who ask meanwhile, if there may be
// something: since the last collection, which found nothing, something was
// released. Then it waits until that one is as long ago as it took, so that requests
// that will find no room do not keep the daemon busy with nothing else.
func (k *housekeeper) answer(ctx context.Context, first chan<- bool) {
	all := []chan<- bool{first}
	freed := false
	if k.last.freed || k.last.ended.IsZero() || k.released() != k.last.asked {
		pause := time.NewTimer(0)
		defer pause.Stop()
		if !k.last.freed {
			pause.Reset(time.Until(k.last.ended.Add(k.last.took)))
		}
		for waiting := true; waiting; {
			select {
			case next := <-k.asked:
				all = append(all, next)
			case <-pause.C:
				waiting = false
			case <-ctx.Done():
				waiting = false
			}
		}
		k.collectNow(ctx)
		freed = k.last.freed
	}
	for _, made := range all {
		made <- freed
	}
}

// collectNow collects, and remembers how that went.
func (k *housekeeper) collectNow(ctx context.Context) {
	begin := time.Now()
	k.last.asked = k.released()
	k.last.freed = k.collect(ctx)
	k.last.ended = time.Now()
	k.last.took = k.last.ended.Sub(begin)
}

// autoCollect collects garbage, and commits that are not to be kept before it.
func (d *daemon) autoCollect(ctx context.Context) (freed bool) {
	r, err := d.history.Collect(ctx, repo.CollectArg{Keep: &d.opts.Keep}, func(any) error { return nil })
	if err != nil && ctx.Err() == nil {
		d.log.Error("automatic collection of garbage", "err", err)
		return r.Garbage > 0
	}
	level := slog.LevelInfo
	if r.Garbage == 0 { // which may be so every few seconds
		level = slog.LevelDebug
	}
	d.log.Log(ctx, level, "collected garbage, since room is short", "blocks", r.Garbage, "bytes", r.GarbageBytes)
	return r.Garbage > 0
}
