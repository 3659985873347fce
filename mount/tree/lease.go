package tree

import (
	"context"
	"sync"
)

// putters count what puts blocks that nothing refers to yet, so that garbage
// collection can tell what began before it: its blocks were not noted.
type putters struct {
	mu   sync.Mutex
	gen  int
	busy map[int]int // generation -> how many run
	idle *sync.Cond
}

// lease says that the caller is about to put blocks and to refer to them in the
// index; the function it returns ends that, after the reference was committed.
func (t *Tree) lease() (end func()) {
	p := &t.putters
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy == nil {
		p.busy, p.idle = make(map[int]int), sync.NewCond(&p.mu)
	}
	gen := p.gen
	p.busy[gen]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.busy[gen]--; p.busy[gen] == 0 {
			delete(p.busy, gen)
			p.idle.Broadcast()
		}
	}
}

// settle waits for the leases that are out; later ones do not count.
func (t *Tree) settle(ctx context.Context) error {
	p := &t.putters
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy == nil {
		p.busy, p.idle = make(map[int]int), sync.NewCond(&p.mu)
	}
	p.gen++
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.idle.Broadcast()
	})
	defer stop()
	for ctx.Err() == nil {
		old := 0
		for gen, n := range p.busy {
			if gen < p.gen {
				old += n
			}
		}
		if old == 0 {
			return nil
		}
		p.idle.Wait()
	}
	return ctx.Err()
}
