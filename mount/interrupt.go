package mount

import (
	"context"
	"errors"
	"strconv"
	"syscall"
	"time"

	"cafs/mount/tree/content"
)

// call is the context of a request: done when the kernel interrupts it. Being
// a channel it fits into an interface as it is, so that a request costs no
// allocation and no goroutine. It may be used until the handler returns; the
// channel serves other requests afterwards.
type call <-chan struct{}

func (c call) Deadline() (time.Time, bool) { return time.Time{}, false }
func (c call) Done() <-chan struct{}       { return c }
func (c call) Value(any) any               { return nil }

func (c call) Err() error {
	select {
	case <-c:
		return context.Canceled
	default:
		return nil
	}
}

// interruptible runs fn, which may wait for long, for a caller whose thread is
// pid. The kernel interrupts a request for any signal, handled ones such as a
// timer's or a child's end included, and would hand EINTR to programs that
// never see it from a file on a disk. So fn is only given up when the caller is
// about to die, and otherwise starts again, with an eye on the caller instead
// of the channel, which tells only once.
func interruptible(cancel <-chan struct{}, pid uint32, fn func(context.Context) error) error {
	err := fn(call(cancel))
	if err == nil || !errors.Is(err, context.Canceled) || dying(pid) {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if dying(pid) {
					stop()
				}
			}
		}
	}()
	return fn(ctx)
}

// withRoom is interruptible for what needs room on the disk: when fn finds none
// (content.ErrNoRoom) and some can be made, it starts again.
func (f *fileSystem) withRoom(cancel <-chan struct{}, pid uint32, fn func(context.Context) error) error {
	err := interruptible(cancel, pid, fn)
	if f.makeRoom == nil || !errors.Is(err, content.ErrNoRoom) {
		return err
	}
	f.forgets.settle() // the end of what was removed just now
	made := false
	waited := interruptible(cancel, pid, func(ctx context.Context) (err error) {
		f.conn.Outside(func() { made, err = f.makeRoom(ctx) })
		return err
	})
	if waited != nil {
		return waited
	}
	if !made {
		return err
	}
	return interruptible(cancel, pid, fn)
}

// dying tells whether the thread has SIGKILL pending, which the kernel also
// sets in each thread of a process that any fatal signal ends, or is gone. A
// caller that cannot be seen (pid 0: another pid namespace) counts as dying:
// then an interrupt is obeyed.
func dying(pid uint32) bool {
	set, ok := threadStatus(pid, "SigPnd")
	mask, err := strconv.ParseUint(set, 16, 64)
	return !ok || err != nil || mask&(1<<(syscall.SIGKILL-1)) != 0
}
