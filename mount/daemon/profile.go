package daemon

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"syscall"
	"time"

	"cafs/mount/api"
)

// blockRate is the time, in nanoseconds, for which one wait is recorded on
// average; mutexRate the number of contended unlocks of which one is.
const (
	blockRate = 10_000
	mutexRate = 10
)

// onProfile profiles this process. What costs time is on only meanwhile.
func (d *daemon) onProfile(ctx context.Context, c *api.Call) (any, []byte, error) {
	var arg api.ProfileArg
	if err := c.Arg(&arg); err != nil {
		return nil, nil, err
	}
	var out bytes.Buffer
	switch arg.Kind {
	case "cpu":
		if err := pprof.StartCPUProfile(&out); err != nil {
			return nil, nil, fmt.Errorf("daemon: %w: %w", syscall.EBUSY, err)
		}
		wait(ctx, arg.For)
		pprof.StopCPUProfile()
		return nil, out.Bytes(), ctx.Err()
	case "mutex":
		before := runtime.SetMutexProfileFraction(mutexRate)
		wait(ctx, arg.For)
		runtime.SetMutexProfileFraction(before)
	case "block":
		runtime.SetBlockProfileRate(blockRate)
		wait(ctx, arg.For)
		runtime.SetBlockProfileRate(0)
	case "heap":
		runtime.GC() // what is in use is known as of the last collection
	}
	p := pprof.Lookup(arg.Kind)
	if p == nil {
		return nil, nil, fmt.Errorf("daemon: profile %q: %w", arg.Kind, syscall.EINVAL)
	}
	if err := p.WriteTo(&out, 0); err != nil {
		return nil, nil, fmt.Errorf("daemon: profile: %w", err)
	}
	return nil, out.Bytes(), ctx.Err()
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
