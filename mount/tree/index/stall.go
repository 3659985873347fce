package index

import (
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// When committing waits for the engine to catch up: bytes in memtables, and
// tables on top of each other in level 0, each of which slows every read.
const (
	stallMemory = 3 * memTable
	stallLevel0 = 20
)

var errStalled = errors.New("index failed while a commit waited")

// stall holds commits back while the engine is behind. The engine would do so
// itself, later, but in a wait that a failure of the index cannot end.
type stall struct {
	events chan struct{} // something changed; capacity 1
	quit   chan struct{}
	done   chan struct{}

	mu   sync.Mutex
	open chan struct{} // closed while commits may go on
}

func newStall() *stall {
	s := &stall{
		events: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		open: make(chan struct{}),
	}
	close(s.open)
	return s
}

// look makes the stall look at the engine's state, soon: the engine's event
// handlers, which call this, hold its lock.
func (s *stall) look() {
	select {
	case s.events <- struct{}{}:
	default:
	}
}

// start begins watching the engine until stop.
func (s *stall) start(p *pebble.DB) {
	go func() {
		defer close(s.done)
		for {
			select {
			case <-s.events:
				m := p.Metrics()
				s.set(m.MemTable.Size >= stallMemory || m.Levels[0].Sublevels >= stallLevel0)
			case <-s.quit:
				return
			}
		}
	}()
}

func (s *stall) stop() {
	close(s.quit)
	<-s.done
}

func (s *stall) set(behind bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.open:
		if behind {
			s.open = make(chan struct{})
		}
	default:
		if !behind {
			close(s.open)
		}
	}
}

// wait returns nil when commits may go on, and an error once failed is closed.
func (s *stall) wait(failed <-chan struct{}) error {
	s.mu.Lock()
	open := s.open
	s.mu.Unlock()
	select {
	case <-open:
		return nil
	default:
	}
	select {
	case <-open:
		return nil
	case <-failed:
		return errStalled
	}
}
