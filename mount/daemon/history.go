package daemon

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"cafs/mount/api"
	"cafs/mount/repo"
	"cafs/mount/tree"
)

// onHistory answers an operation of repo.History.
func (d *daemon) onHistory(op string) api.Handler {
	return func(ctx context.Context, c *api.Call) (any, []byte, error) {
		var arg json.RawMessage
		if err := c.Arg(&arg); err != nil {
			return nil, nil, err
		}
		val, err := d.history.Do(ctx, op, arg, func(v any) error { return c.Send(v, nil) })
		return val, nil, err
	}
}

// touched tells the kernel of names that changed without its asking.
func (d *daemon) touched(all []tree.Touched) {
	s := d.live.Load()
	if s == nil {
		return
	}
	for _, t := range all {
		var err error
		if t.Name == "" {
			err = s.NotifyContent(t.Dir)
		} else {
			err = s.NotifyEntry(t.Dir, t.Name)
		}
		if err != nil {
			d.log.Warn("the kernel may show what was replaced", "dir", t.Dir, "name", t.Name, "err", err)
		}
	}
}

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
	// worth the work. It has to be more than what a removal gives back at once, of
	// bytes that were no blocks yet, or none begins although nearly all is garbage.
	lowShare = 10
	lowMax   = 8 << 30 // bytes
)

// housekeeping makes automatic commits, gives up those that are not to be kept,
// and collects garbage when room gets short, until ctx ends.
func (d *daemon) housekeeping(ctx context.Context) {
	var commits <-chan time.Time
	if d.opts.AutoCommit > 0 {
		t := time.NewTicker(d.opts.AutoCommit)
		defer t.Stop()
		commits = t.C
	}
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	var notBefore time.Time // the next automatic collection
	for {
		select {
		case <-ctx.Done():
			return
		case <-commits:
			d.autoCommit(ctx, "hourly")
		case <-check.C:
			if time.Now().Before(notBefore) || !d.roomIsShort() {
				continue
			}
			begin := time.Now()
			d.autoCollect(ctx)
			if d.roomIsShort() {
				notBefore = time.Now().Add(collectShare * time.Since(begin))
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

func (d *daemon) autoCollect(ctx context.Context) {
	r, err := d.history.Collect(ctx, repo.CollectArg{Keep: &d.opts.Keep}, func(any) error { return nil })
	if err != nil && ctx.Err() == nil {
		d.log.Error("automatic collection of garbage", "err", err)
		return
	}
	level := slog.LevelInfo
	if r.Garbage == 0 { // which may be so every few seconds
		level = slog.LevelDebug
	}
	d.log.Log(ctx, level, "collected garbage, since room is short", "blocks", r.Garbage, "bytes", r.GarbageBytes)
}
