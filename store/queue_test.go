package store_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"cafs/store"
	"cafs/store/disk"
	"cafs/store/storetest"

	"github.com/ipfs/go-cid"
)

// TestGroup: who comes while a run is under way is served by a run that began
// later, and shares it; after a failure all fail.
func TestGroup(t *testing.T) {
	var began atomic.Int64
	start, finish := make(chan int64), make(chan error)
	do := store.Group(func() error {
		start <- began.Add(1)
		return <-finish
	})
	call := func() chan error {
		c := make(chan error, 1)
		go func() { c <- do() }()
		return c
	}
	first := call()
	<-start
	const late = 5
	var calls []chan error
	for range late {
		calls = append(calls, call())
	}
	finish <- nil
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if n := <-start; n != 2 {
		t.Fatalf("run %d follows the first", n)
	}
	finish <- syscall.EIO
	// Those that called in time share the second run. The others, if the
	// scheduler was slow, find the failure.
	for _, c := range calls {
		if err := <-c; !errors.Is(err, syscall.EIO) {
			t.Errorf("late caller: %v", err)
		}
	}
	if err := do(); !errors.Is(err, syscall.EIO) || began.Load() != 2 {
		t.Errorf("after a failure: %v, %d runs", err, began.Load())
	}
}

// TestSharedBarrier: many writers that each put one block and sync it need far
// fewer barriers than there are writers.
func TestSharedBarrier(t *testing.T) {
	ctx := context.Background()
	var open atomic.Bool
	gate := make(chan struct{})
	fs := disk.NewFault(disk.NewMem(), func(op disk.Op) error {
		if open.Load() && (op.Kind == disk.OpSync || op.Kind == disk.OpSyncFS) {
			<-gate
		}
		return nil
	})
	d, err := store.Open(fs, store.Options{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	open.Store(true)
	const writers = 100
	var put, done sync.WaitGroup
	put.Add(writers)
	for i := range uint64(writers) {
		done.Go(func() {
			c, b := storetest.Block(i, 10)
			err := d.Put(ctx, c, b)
			put.Done()
			if err == nil {
				err = d.Sync(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	put.Wait() // while the first barrier waits at the gate
	close(gate)
	done.Wait()
	if n := d.Stats().Barriers; n > 20 {
		t.Errorf("%d barriers for %d writers", n, writers)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestDirectRefused: a file system that takes no writes around the page cache
// gets them through it.
func TestDirectRefused(t *testing.T) {
	for _, kind := range []disk.OpKind{disk.OpCreate, disk.OpWrite} {
		var open atomic.Bool
		refuse := disk.FailAt(1, syscall.EINVAL, kind)
		fs := disk.NewFault(disk.NewMem(), func(op disk.Op) error {
			if !open.Load() {
				return nil
			}
			return refuse(op)
		})
		d, err := store.Open(fs, store.Options{CreateIfMissing: true})
		if err != nil {
			t.Fatal(err)
		}
		open.Store(true)
		for i := range uint64(2) {
			c, b := storetest.Block(i, 1<<20)
			if err := d.Put(context.Background(), c, b); err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFlushPassesBulk: a flush of one block does not wait for the bulk lane.
func TestFlushPassesBulk(t *testing.T) {
	ctx := context.Background()
	release := make(chan struct{})
	var once sync.Once
	blocked := make(chan struct{})
	fs := disk.NewFault(disk.NewMem(), func(op disk.Op) error {
		if op.Kind == disk.OpSyncFS { // the bulk lane's way of flushing small blocks
			once.Do(func() { close(blocked) })
			<-release
		}
		return nil
	})
	d, err := store.Open(fs, store.Options{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(500) {
		c, b := storetest.Block(i, 10)
		mustPut(t, d, c, b)
	}
	bulk := make(chan error, 1)
	go func() { bulk <- d.Sync(ctx) }()
	<-blocked
	c, b := storetest.Block(1000, 10)
	mustPut(t, d, c, b)
	if err := d.Flush(ctx, []cid.Cid{c}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-bulk:
		t.Fatalf("the bulk lane was not blocked: %v", err)
	default:
	}
	close(release)
	if err := <-bulk; err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
