package index

import (
	"context"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// syncer lets all that wait for the disk at one time share a sync: while one is
// under way, those that come wait for the next.
type syncer struct {
	mu      sync.Mutex
	next    *round // that nobody has begun; nil: nobody waits for it
	running bool
	done    sync.WaitGroup // the goroutine that runs rounds
}

// round is one sync.
type round struct {
	done chan struct{}
	err  error // set before done is closed
}

// Sync returns when every batch whose Commit returned before is durable.
// Cancelling ctx ends the wait only. After a failure it returns an error that
// wraps ErrReadOnly, and what was committed since the last successful Sync may
// be lost or not.
func (db *DB) Sync(ctx context.Context) error {
	if err := db.usable(); err != nil {
		return err
	}
	r := db.syncer.join(db.syncLog)
	select {
	case <-r.done:
		return r.err
	case <-db.guard.failed:
		return db.guard.err()
	case <-ctx.Done():
		return fmt.Errorf("index: sync: %w", context.Cause(ctx))
	}
}

// syncLog makes the log durable, by an empty record that asks for it.
func (db *DB) syncLog() error {
	covered := db.commits.Load()
	if err := db.p.LogData(nil, pebble.Sync); err != nil {
		return fmt.Errorf("index: sync: %w", err)
	}
	if err := db.guard.err(); err != nil {
		return err
	}
	db.synced.Store(covered) // one at a time is under way
	return nil
}

// join returns a round that has not begun, and sees to it that it is run.
func (s *syncer) join(run func() error) *round {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &round{done: make(chan struct{})}
	}
	if !s.running {
		s.running = true
		s.done.Add(1)
		go s.loop(run)
	}
	return s.next
}

func (s *syncer) loop(run func() error) {
	defer s.done.Done()
	for {
		s.mu.Lock()
		r := s.next
		s.next = nil
		if r == nil {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		r.err = run()
		close(r.done)
	}
}

// wait returns when no round is under way.
func (s *syncer) wait() { s.done.Wait() }
