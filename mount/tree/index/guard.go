package index

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cafs/store/disk"
)

// guard stands between the engine and the file layer. Pebble ends the process,
// by Fatalf or panic, when its log or manifest cannot be written (v2.1.7: db.go
// 885, 997, 2835; version_set.go 671; event.go 985), and retries flushes of
// tables for ever. So it never learns of a failed change of a file:
//
//   - Running: calls go through. The first that fails moves on to
//   - Failed: nothing changes on disk any more, as if the machine had stopped
//     here. A call for a table, the manifest or a marker comes from a background
//     goroutine of the engine and is parked, so that the engine does not take for
//     stored what is not, and the memtables stay where readers find them. A call
//     for a log, or the folder, may come from a committing goroutine that holds
//     the commit lock; it is told success, which nobody reads back, and the
//     committer finds out from the state afterwards (DB.apply, DB.Sync).
//   - Stopped: Close was called after a failure. All parked and later calls are
//     told success and do nothing, so that the engine can wind up.
//
// Running out of room is not at once a failure: the call is repeated for
// roomWait, time enough for room kept back to be given to it. After that a table
// call fails, which the engine repairs by trying again with a new table.
type guard struct {
	fs       disk.FS
	log      *slog.Logger
	roomWait time.Duration
	noRoom   func() // may be nil

	state   atomic.Int32
	listed  atomic.Bool // the folder was read once
	once    sync.Once
	cause   error         // set before failed is closed
	failed  chan struct{} // closed by fail
	stopped chan struct{} // closed by stop
}

const (
	running = iota
	failed
	stopped
)

const (
	defaultRoomWait = 10 * time.Second
	roomPolls       = 200 // times it is looked for room while waiting
)

func newGuard(fs disk.FS, o Options) *guard {
	return &guard{
		fs: fs, log: o.Logger, roomWait: o.RoomWait, noRoom: o.NoRoom,
		failed: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// err returns nil while nothing has failed, else an error wrapping ErrReadOnly
// and the cause.
func (g *guard) err() error {
	if g.state.Load() == running {
		return nil
	}
	<-g.failed
	return g.cause
}

// fail records the first failure.
func (g *guard) fail(op, name string, err error) {
	g.once.Do(func() {
		g.cause = fmt.Errorf("index: %s %s: %w: %w", op, name, err, ErrReadOnly)
		g.state.Store(failed) // first: who sees the channel closed finds the error
		close(g.failed)
		g.log.Error("index failed; it is read-only from now on", "op", op, "file", name, "err", err)
	})
}

// stop lets parked calls go. Only after a failure.
func (g *guard) stop() {
	if g.state.Swap(stopped) != stopped {
		close(g.stopped)
	}
}

// do makes a call that changes what is on disk. done false with a nil error
// means: the call was not made, or failed, and the engine is not to know.
func (g *guard) do(op, name string, call func() error) (done bool, err error) {
	if g.state.Load() == running {
		err := call()
		if noRoom(err) && op != "sync" { // a sync repeated may lie
			err = g.withRoom(err, call)
		}
		if err == nil {
			return true, nil
		}
		if isTable(name) && noRoom(err) {
			return false, err
		}
		g.fail(op, name, err)
	}
	if mayHoldCommit(name) {
		return false, nil
	}
	<-g.stopped
	return false, nil
}

// withRoom repeats a call that failed with err for want of room. Repeating a
// partial write at the same offset is harmless.
func (g *guard) withRoom(err error, call func() error) error {
	if g.noRoom != nil {
		g.noRoom()
		if err = call(); !noRoom(err) {
			return err
		}
	}
	g.log.Warn("index: no room; waiting for some", "for", g.roomWait, "err", err)
	tick := time.NewTicker(max(g.roomWait/roomPolls, time.Millisecond))
	defer tick.Stop()
	for end := time.Now().Add(g.roomWait); noRoom(err) && time.Now().Before(end); err = call() {
		select {
		case <-tick.C:
		case <-g.failed:
			return err
		}
	}
	return err
}

func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

func isTable(name string) bool { return strings.HasSuffix(name, ".sst") }

func isMarker(name string) bool { return strings.HasPrefix(name, "marker.") }

func isLog(name string) bool { return strings.HasSuffix(name, ".log") }

// mayHoldCommit tells whether a call for this file can come from a goroutine
// that commits. "." is the folder, which a log's creation syncs.
func mayHoldCommit(name string) bool { return isLog(name) || name == "." }

// Infof, Errorf and Fatalf implement pebble.Logger.

// Infof logs what the engine tells of its work.
func (g *guard) Infof(format string, args ...any) {
	if g.log.Enabled(context.Background(), slog.LevelDebug) {
		g.log.Debug("index: " + fmt.Sprintf(format, args...))
	}
}

// Errorf logs what went wrong and was handled.
func (g *guard) Errorf(format string, args ...any) {
	g.log.Warn("index: " + fmt.Sprintf(format, args...))
}

// Fatalf is where the engine would end the process. All its callers either
// return an error next or hold nothing that is wrong; it returns to them.
func (g *guard) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	if g.state.Load() == running {
		g.log.Error("index: "+msg, "stack", string(debug.Stack()))
	}
	g.fail("engine", "stopped", errors.New(msg))
}

// run calls into the engine where it may touch files other than logs in the
// calling goroutine, or wait for goroutines that do. When the index fails
// meanwhile, or had failed, everything parked is let go, so that call returns.
// The error is that failure or else the call's own.
func (g *guard) run(call func() error) error {
	result := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				result <- fmt.Errorf("engine: %v", r)
			}
		}()
		result <- call()
	}()
	var err error
	select {
	case err = <-result:
	case <-g.failed:
		g.stop()
		err = <-result
	}
	if failure := g.err(); failure != nil {
		return failure
	}
	return err
}
