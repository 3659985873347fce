package index_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cafs/mount/tree/index"
	"cafs/store/disk"
)

func commit(db *index.DB, fill func(*index.Batch)) error {
	b := db.NewBatch()
	defer b.Close()
	fill(b)
	return b.CommitSync(context.Background())
}

// TestSyncCancelled: a device that does not answer holds up neither the end of
// a wait nor commits and reads.
func TestSyncCancelled(t *testing.T) {
	var hang sync.Mutex
	db := open(t, disk.NewFault(disk.NewMem(), func(op disk.Op) error {
		if op.Kind == disk.OpSync {
			hang.Lock()
			defer hang.Unlock()
		}
		return nil
	}))
	hang.Lock()
	b := db.NewBatch()
	b.SetRef("a", []byte("1"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go cancel()
	if err := db.Sync(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled sync: %v", err)
	}
	b.SetRef("a", []byte("2"))
	if err := b.Commit(); err != nil {
		t.Error(err)
	}
	b.Close()
	if v, err := db.Ref("a"); string(v) != "2" {
		t.Errorf("%q, %v", v, err)
	}
	hang.Unlock()
	if err := db.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// TestStalled: a commit held back because the engine is behind ends when the
// index fails, and goes on when the engine has caught up.
func TestStalled(t *testing.T) {
	var bad atomic.Bool
	db := open(t, disk.NewFault(disk.NewMem(), func(op disk.Op) error {
		if bad.Load() && op.Kind == disk.OpSync {
			return syscall.EIO
		}
		return nil
	}))
	db.Stall(true)
	result := make(chan error)
	set := func() { result <- commit(db, func(b *index.Batch) { b.SetRef("a", nil) }) }
	go set()
	db.Stall(false)
	if err := <-result; err != nil {
		t.Error(err)
	}
	db.Stall(true)
	go set()
	bad.Store(true)
	if err := db.Sync(t.Context()); !errors.Is(err, index.ErrReadOnly) || !errors.Is(err, syscall.EIO) {
		t.Errorf("sync: %v", err)
	}
	if err := <-result; !errors.Is(err, index.ErrReadOnly) {
		t.Errorf("stalled commit: %v", err)
	}
	if err := db.Close(); !errors.Is(err, index.ErrReadOnly) {
		t.Errorf("close: %v", err)
	}
}

// TestParked: what the index parks when it has failed, a write of the engine's
// manifest, holds up no reader, no end of a snapshot and no close.
func TestParked(t *testing.T) {
	var bad atomic.Bool
	db := open(t, disk.NewFault(disk.NewMem(), func(op disk.Op) error {
		if bad.Load() && strings.HasPrefix(op.Name, "MANIFEST-") {
			return syscall.EIO
		}
		return nil
	}))
	if err := commit(db, func(b *index.Batch) { b.SetRef("a", []byte("value")) }); err != nil {
		t.Fatal(err)
	}
	snaps := []*index.Snapshot{db.Snapshot()}
	bad.Store(true)
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	<-db.Failed()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		snaps = append(snaps, db.Snapshot())
		for _, r := range []interface{ Ref(string) ([]byte, error) }{db, snaps[0], snaps[1]} {
			if v, err := r.Ref("a"); string(v) != "value" {
				t.Errorf("%q, %v", v, err)
			}
		}
		for _, s := range snaps {
			s.Close()
		}
		if err := db.Close(); !errors.Is(err, index.ErrReadOnly) {
			t.Errorf("close: %v", err)
		}
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("hangs")
	}
}

// TestFull fills the disk. While there is no room at all commits and syncs wait
// or fail; when room comes in time, the index goes on as if nothing had been.
func TestFull(t *testing.T) {
	for _, comes := range []bool{true, false} {
		mem := disk.NewMem()
		db, err := index.Open(mem, index.Options{Logger: quiet, RoomWait: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		mem.SetCapacity(1)
		var more *time.Timer
		if comes {
			more = time.AfterFunc(200*time.Millisecond, func() { mem.SetCapacity(0) })
		}
		big := make([]byte, 2<<20) // more than the log has preallocated
		err = commit(db, func(b *index.Batch) { b.SetRef("big", big) })
		if comes {
			more.Stop()
			if err != nil || db.Err() != nil {
				t.Errorf("with room in time: %v", err)
			}
			if err := db.Compact(); err != nil {
				t.Error(err)
			}
			if v, err := db.Ref("big"); len(v) != len(big) || err != nil {
				t.Errorf("%d bytes, %v", len(v), err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		if !errors.Is(err, index.ErrReadOnly) || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("without room: %v", err)
		}
		if err := db.Close(); !errors.Is(err, index.ErrReadOnly) {
			t.Errorf("close: %v", err)
		}
	}
}

// TestDamage flips bytes in every table: reads fail with an error, and neither
// they nor the failed compactions end the process.
func TestDamage(t *testing.T) {
	mem := disk.NewMem()
	db := open(t, mem)
	if err := commit(db, func(b *index.Batch) {
		for i := range 1000 {
			b.SetInode(index.Ino(i+1), &index.Inode{Kind: index.File, Uid: uint32(i)})
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Compact(), db.Close()); err != nil {
		t.Fatal(err)
	}
	entries, err := mem.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name, ".sst") {
			continue
		}
		f, err := mem.OpenFile(e.Name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, 1000), 100); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	db, err = index.Open(mem, index.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Inode(1); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("damaged inode: %v", err)
	}
	<-db.Failed()
	if err := db.Err(); !errors.Is(err, index.ErrReadOnly) {
		t.Errorf("after damage was found: %v", err)
	}
	if err := db.Close(); !errors.Is(err, index.ErrReadOnly) {
		t.Errorf("close: %v", err)
	}
}

func TestVersion(t *testing.T) {
	mem := disk.NewMem()
	db := open(t, mem)
	if err := errors.Join(db.SetVersion(2), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := index.Open(mem, index.Options{}); !errors.Is(err, index.ErrVersion) {
		t.Errorf("index of version 2: %v", err)
	}
	f, err := mem.OpenFile("marker.format-version.000099.999", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := index.Open(mem, index.Options{}); !errors.Is(err, index.ErrVersion) {
		t.Errorf("engine format 999: %v", err)
	}
}

// TestReserveInos: numbers are given once, whatever happens.
func TestReserveInos(t *testing.T) {
	mem := disk.NewMem()
	next := index.Root + 1
	for i := range 5 {
		db := open(t, mem)
		for range 2 {
			got, err := db.ReserveInos(1024)
			if err != nil || got != next {
				t.Fatalf("%d, %v; want %d", got, err, next)
			}
			next += 1024
		}
		left := mem.Crash(int64(i), 0)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		mem = left
	}
	db := open(t, mem)
	for _, n := range []int{0, -1} {
		if _, err := db.ReserveInos(n); err == nil {
			t.Errorf("%d numbers reserved", n)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestBadRecords: what could not be read back is refused at commit.
func TestBadRecords(t *testing.T) {
	db := open(t, disk.NewMem())
	for name, fill := range map[string]func(*index.Batch){
		"inode 0":     func(b *index.Batch) { b.SetInode(0, &index.Inode{Kind: index.File}) },
		"inode 1<<63": func(b *index.Batch) { b.SetInode(1<<63, &index.Inode{Kind: index.File}) },
		"no name":     func(b *index.Batch) { b.SetDirent(1, index.Dirent{Ino: 2}) },
		"no length":   func(b *index.Batch) { b.SetExtent(1, index.Extent{Kind: index.Hole}) },
		"wrong data":  func(b *index.Batch) { b.SetExtent(1, index.Extent{Kind: index.Inline, Len: 2, Data: []byte("x")}) },
	} {
		err := commit(db, func(b *index.Batch) { b.SetRef("a", nil); fill(b) })
		if err == nil || errors.Is(err, index.ErrReadOnly) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := db.Ref("a"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the rest of the batch was committed", name)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.Sync(t.Context()); !errors.Is(err, index.ErrClosed) {
		t.Errorf("sync after close: %v", err)
	}
}

// TestRangeDeletes: removing an inode's few records takes a range deletion, for
// which all reads pay as long as it is in memory, only when the same batch set
// some of them; and they are gone either way.
func TestRangeDeletes(t *testing.T) {
	db := open(t, disk.NewMem())
	defer db.Close()
	const dir, child = 7, 8
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	mark := func(b *index.Batch) { b.SetChanged(child, "a"); b.SetXattr(child, "user.a", nil) }
	clear := func(b *index.Batch) { b.ClearAllChanged(child); b.DeleteXattrs(child) }
	for _, c := range []struct {
		name string
		fill func(*index.Batch)
		want int
	}{
		{"alone", func(*index.Batch) {}, 0},
		{"beside those of another", func(b *index.Batch) { b.SetChanged(dir, "d"); b.SetXattr(dir, "user.d", nil) }, 0},
		{"in the same batch", mark, 2},
		{"in the same batch, and of another", func(b *index.Batch) { mark(b); b.SetChanged(dir, "d"); b.SetXattr(dir, "user.d", nil) }, 2},
	} {
		b := db.NewBatch()
		mark(b)
		must(b.Commit())
		c.fill(b)
		clear(b)
		if n := b.RangeDeletes(); n != c.want {
			t.Errorf("%s: %d range deletions, want %d", c.name, n, c.want)
		}
		must(b.Commit())
		b.Close()
		for name, err := range db.Changed(child) {
			t.Errorf("%s: %q is left, %v", c.name, name, err)
		}
		if _, err := db.Xattr(child, "user.a"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: an attribute is left: %v", c.name, err)
		}
	}
}
