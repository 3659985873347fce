package daemon

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// collections are a housekeeper's: each takes until it is let go on, and frees
// something or not.
type collections struct {
	k        *housekeeper
	begun    atomic.Int32
	goOn     chan bool // whether it frees something
	released atomic.Uint64
}

// keepHouse starts a housekeeper that collects only when it is asked.
func keepHouse(t *testing.T) *collections {
	c := &collections{goOn: make(chan bool)}
	c.k = newHousekeeper(&daemon{})
	c.k.collect = func(context.Context) bool {
		c.begun.Add(1)
		return <-c.goOn
	}
	c.k.released = c.released.Load
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(c.k.ended)
		for {
			select {
			case first := <-c.k.asked:
				c.k.answer(ctx, first)
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-c.k.ended
	})
	return c
}

// ask is a request that finds no room; its answer comes later.
func (c *collections) ask(ctx context.Context) <-chan error {
	answer := make(chan error, 1)
	go func() {
		made, err := c.k.makeRoom(ctx)
		if err == nil && !made {
			err = errNothing
		}
		answer <- err
	}()
	synctest.Wait()
	return answer
}

var errNothing = errors.New("nothing was freed")

// TestMakeRoom: requests that find no room share collections, and none is made
// when the last one found nothing and nothing was removed since. Who gives up does
// not wait, and ends no collection.
func TestMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := keepHouse(t)
		expect := func(what string, answer <-chan error, want error) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-answer:
				if !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", what, err, want)
				}
			default:
				t.Errorf("%s: no answer yet", what)
			}
		}
		begun := func(want int32) {
			t.Helper()
			synctest.Wait()
			if got := c.begun.Load(); got != want {
				t.Fatalf("%d collections, want %d", got, want)
			}
		}

		first := c.ask(t.Context())
		begun(1)
		// These come while a collection runs, which may have passed what was removed
		// for them: the next one is theirs, and only one.
		late := []<-chan error{c.ask(t.Context()), c.ask(t.Context())}
		dying, kill := context.WithCancel(t.Context())
		killed := c.ask(dying)
		kill()
		expect("killed while it waits", killed, context.Canceled)
		c.goOn <- true
		expect("the first", first, nil)
		begun(2)
		dying, kill = context.WithCancel(t.Context())
		killed = c.ask(dying)
		kill()
		expect("killed while another's collection runs", killed, context.Canceled)
		c.goOn <- false
		for _, answer := range late {
			expect("in the second", answer, errNothing)
		}

		expect("nothing removed since", c.ask(t.Context()), errNothing)
		begun(2)
		c.released.Add(1)
		again := c.ask(t.Context())
		begun(3)
		c.goOn <- true
		expect("after a removal", again, nil)
		again = c.ask(t.Context())
		begun(4) // the last one freed something: perhaps there is more
		c.goOn <- false
		expect("the last", again, errNothing)
	})
}
