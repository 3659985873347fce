package store_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cafs/shard"
	"cafs/store"
	"cafs/store/disk"
	"cafs/store/storetest"

	"github.com/ipfs/go-cid"
)

// logged opens a shrunk store, puts n small blocks and syncs them, which puts
// them into a log.
func logged(t *testing.T, fs disk.FS, n int) (*store.Dir, []cid.Cid) {
	t.Helper()
	d, err := store.Open(fs, store.Options{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	d.Shrink()
	list := putSync(t, d, 0, n)
	if d.Logged() != int64(n) {
		t.Fatalf("%d blocks are in a log, want %d", d.Logged(), n)
	}
	return d, list
}

// putSync puts blocks from the first on.
func putSync(t *testing.T, d *store.Dir, first, n int) (list []cid.Cid) {
	t.Helper()
	for i := range n {
		c, b := storetest.Block(uint64(first+i), 900+i)
		mustPut(t, d, c, b)
		list = append(list, c)
	}
	mustSync(t, d)
	return list
}

// logNames lists the logs in a store's folder.
func logNames(t *testing.T, fs disk.FS) (list []string) {
	t.Helper()
	names, err := fs.ReadDir(".staging")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, n := range names {
		if strings.HasPrefix(n.Name, "log-") {
			list = append(list, n.Name)
		}
	}
	return list
}

// TestLog: a round of small blocks takes one flush, of the log, and a power cut
// after it loses none; at the end every block has its file and no log is left.
func TestLog(t *testing.T) {
	ctx := context.Background()
	mem := disk.NewMem()
	var flushes atomic.Int64
	fs := disk.NewFault(mem, func(op disk.Op) error {
		if op.Kind == disk.OpSync || op.Kind == disk.OpSyncFS || op.Kind == disk.OpSyncDir {
			flushes.Add(1)
		}
		return nil
	})
	d, list := logged(t, fs, 5)
	flushes.Store(0)
	list = append(list, putSync(t, d, 5, 6)...)
	if n := flushes.Load(); n != 1 {
		t.Errorf("%d flushes for a round", n)
	}
	if s := d.Stats(); s.Pending != 0 || s.PendingBytes != 0 {
		t.Errorf("%d blocks, %d bytes count as not durable", s.Pending, s.PendingBytes)
	}
	again, _ := storetest.Block(3, 903)
	if err := d.Flush(ctx, []cid.Cid{again}); err != nil || flushes.Load() != 1 {
		t.Errorf("flush of what is in a log: %v, %d flushes", err, flushes.Load())
	}
	survived(t, mem.Crash(1, 0), list)

	// A collector's Delete is final for a block in a log, too.
	if err := d.Delete(ctx, list[0].Hash()); err != nil {
		t.Fatal(err)
	}
	if ok, err := d.Has(ctx, list[0]); ok || err != nil {
		t.Errorf("deleted, and there: %v %v", ok, err)
	}
	survived(t, mem.Crash(2, 0.5), list[1:])
	d.SettleAfter(time.Millisecond)
	putSync(t, d, 20, 5)
	for end := time.Now().Add(20 * time.Second); d.Logged() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("blocks in a log never get files")
		}
	}
	d.SettleAfter(time.Hour)
	putSync(t, d, 30, 5)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := mem.Stat(".staging"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("staging folder after Close: %v", err)
	}
	for _, c := range list[1:] {
		if _, err := mem.Stat(d.Path(c)); err != nil {
			t.Error(err)
		}
	}
	if _, err := mem.Stat(d.Path(list[0])); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("file of a deleted block: %v", err)
	}
}

// TestReplay interrupts the opening of a store with logs before each of its
// calls, by a power cut, by an error and by a lack of room that stays.
func TestReplay(t *testing.T) {
	s := seed(t)
	mem := disk.NewMem()
	d, list := logged(t, mem, 7)
	bad, good := storetest.Block(100, 700)
	mustPut(t, d, bad, good)
	mustSync(t, d)
	if err := d.Delete(context.Background(), list[6].Hash()); err != nil { // which names all
		t.Fatal(err)
	}
	list = list[:6]
	// A damaged block is healed by a round.
	f, err := mem.OpenFile(d.Path(bad), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("xx"), 10); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Get(context.Background(), bad); !errors.Is(err, store.ErrCorrupt) {
		t.Fatalf("damaged: %v", err)
	}
	mustPut(t, d, bad, good)
	list = append(append(list, bad), putSync(t, d, 200, 6)...)
	if d.Logged() != 7 {
		t.Fatalf("%d blocks are in a log", d.Logged())
	}
	after := mem.Crash(int64(s), 0)
	if len(logNames(t, after)) == 0 {
		t.Fatal("no log is left")
	}
	if err := store.Reshard(context.Background(), after.Crash(0, 0), shard.Prefix(3), nil); err != nil {
		t.Errorf("reshard: %v", err)
	}
	calls := int64(0)
	for n := int64(1); n == 1 || n <= calls; n++ {
		for how, cause := range []error{nil, syscall.EIO, syscall.ENOSPC} {
			disk1 := after.Crash(0, 0)
			var cut *disk.Mem
			var mu sync.Mutex
			fs := disk.NewFault(disk1, func(op disk.Op) error {
				mu.Lock()
				defer mu.Unlock()
				if op.N == n {
					cut = disk1.Crash(int64(s)+n, []float64{0, 0.5, 1}[n%3])
				}
				if how == 0 {
					calls = max(calls, op.N)
				}
				sync := op.Kind == disk.OpSync || op.Kind == disk.OpSyncFS || op.Kind == disk.OpSyncDir
				if op.N < n || !op.Kind.Changes() || cause == syscall.EIO && op.N > n || cause == syscall.ENOSPC && sync {
					return nil
				}
				return cause
			})
			d, err := store.Open(fs, store.Options{})
			if cut == nil {
				cut = disk1.Crash(0, 0) // it was over before the call
			}
			if err == nil {
				for _, c := range list {
					if _, err := d.Get(context.Background(), c); err != nil {
						t.Errorf("call %d, %v: %v", n, cause, err)
					}
				}
				d.Close()
			} else if cause == nil {
				t.Fatal(err)
			}
			if cause != nil {
				cut = disk1.Crash(int64(s)+n, 0)
			}
			survived(t, cut, list)
			if t.Failed() {
				t.Fatalf("call %d, %v", n, cause)
			}
		}
	}
}

// TestLogTorn: whatever became of the last round, the ones before are read, and
// nothing of an earlier use of the file.
func TestLogTorn(t *testing.T) {
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 0))
	mem := disk.NewMem()
	d, _ := logged(t, mem, 7) // the first use of the file, longer than the second
	putSync(t, d, 10, 7)
	c, _ := storetest.Block(0, 900)
	if err := d.Delete(context.Background(), c.Hash()); err != nil {
		t.Fatal(err)
	}
	first := putSync(t, d, 30, 3)
	name := logNames(t, mem)
	if len(name) != 1 {
		t.Fatalf("logs: %v", name)
	}
	one := read(t, mem, name[0])
	second := putSync(t, d, 40, 4)
	two := read(t, mem, name[0])
	check := func(what string, b []byte, want ...cid.Cid) {
		t.Helper()
		got, err := store.ReadLog(write(t, b), "log-1")
		if err != nil || len(got) != len(want) {
			t.Fatalf("%s: %d blocks, want %d: %v", what, len(got), len(want), err)
		}
		for i, c := range want {
			if got[i] != string(c.Hash()) {
				t.Fatalf("%s: block %d is another", what, i)
			}
		}
	}
	check("one round", one, first...)
	check("two rounds", two, append(first, second...)...)
	begin := int(4096) // of the second round: the first one takes a page
	end := begin + 24 + int(binary.BigEndian.Uint32(two[begin+16:]))
	for range 300 {
		torn := bytes.Clone(two)
		switch at := begin + rng.IntN(end-begin); rng.IntN(3) {
		case 0:
			torn[at] ^= 1 << rng.IntN(8)
		case 1:
			torn = torn[:at]
		case 2: // what was there before
			copy(torn[at:], one[at:])
			if bytes.Equal(torn, two) {
				continue
			}
		}
		check("a torn round", torn, first...)
	}
	newer := bytes.Clone(two)
	newer[7]++
	if _, err := store.ReadLog(write(t, newer), "log-1"); !errors.Is(err, store.ErrLayout) {
		t.Errorf("a log of another version: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// read reads a log.
func read(t *testing.T, fs disk.FS, name string) []byte {
	t.Helper()
	f, err := fs.OpenFile(".staging/"+name, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// write makes a folder with a log.
func write(t *testing.T, b []byte) disk.FS {
	t.Helper()
	mem := disk.NewMem()
	f, err := mem.OpenFile("log-1", os.O_RDWR|os.O_CREATE, 0o644)
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return mem
}
