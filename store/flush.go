package store

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// syncers is how many flushes of one batch run at once.
const syncers = 8

const (
	// fewFlushes is how many files or folders are flushed one by one in any
	// case: that touches nobody else's data. From three on, flushing the file
	// system is cheaper on ext4, xfs and btrfs when nobody else writes much.
	fewFlushes = 2
	// avoidFor times as long as a slow flush of the file system took, others are
	// avoided that would not pay at that speed: somebody else writes a lot.
	avoidFor = 20
)

// group lets concurrent callers share one run of sync: whoever comes while it
// runs waits for the next one, which begins after they came. A failure is for
// ever: the kernel reports lost bytes once, and whose they were is not known.
type group struct {
	sync func() error

	mu        sync.Mutex
	cur, next *groupRun
	failed    error

	few   int          // this many are flushed one by one in any case
	runs  [3]int64     // how long the last runs took, in ns; the runner's
	whole atomic.Int64 // the shortest of them: a hiccup does not count
	until atomic.Int64 // when that is forgotten, in ns since 1970
	one   atomic.Int64 // about how long one of many single flushes takes, in ns
}

type groupRun struct {
	done chan struct{}
	err  error
}

func (g *group) do() error {
	g.mu.Lock()
	run := &groupRun{done: make(chan struct{})}
	switch {
	case g.cur == nil:
		g.cur = run
		go g.run(run)
	case g.next == nil:
		g.next = run
	default:
		run = g.next
	}
	g.mu.Unlock()
	<-run.done
	return run.err
}

func (g *group) run(r *groupRun) {
	for r != nil {
		if r.err = g.failed; r.err == nil {
			begin := time.Now()
			r.err = g.sync()
			g.took(time.Since(begin))
		}
		close(r.done)
		g.mu.Lock()
		g.failed = r.err
		r, g.cur, g.next = g.next, g.next, nil
		g.mu.Unlock()
	}
}

// worth tells whether one run of sync is better than flushing n files or
// folders one by one.
func (g *group) worth(n int) bool {
	if n <= g.few {
		return false
	}
	return int64(n)*g.one.Load() > g.whole.Load() || time.Now().UnixNano() > g.until.Load()
}

// took learns from one run of sync.
func (g *group) took(d time.Duration) {
	g.runs[0], g.runs[1], g.runs[2] = g.runs[1], g.runs[2], int64(d)
	whole := slices.Min(g.runs[:])
	g.whole.Store(whole)
	g.until.Store(time.Now().UnixNano() + avoidFor*whole)
}

// tookSingle learns from n flushes one by one. Many at once take about half the
// time of as many single ones.
func (g *group) tookSingle(n int, d time.Duration) {
	if n == 0 {
		return
	}
	one := int64(d) / int64(n)
	if n <= g.few {
		one /= 2
	}
	g.one.Store((3*g.one.Load() + one) / 4)
}
