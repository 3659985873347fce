package store_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"cafs/store"
	"cafs/store/disk"
	"cafs/store/storetest"

	"github.com/ipfs/go-cid"
)

// TestCapacity: the limit holds across runs, also after an unclean end, and
// deleting makes room.
func TestCapacity(t *testing.T) {
	ctx := context.Background()
	mem := disk.NewMem()
	opts := store.Options{CreateIfMissing: true, Capacity: 1 << 20}
	d, err := store.Open(mem, opts)
	if err != nil {
		t.Fatal(err)
	}
	var stored []cid.Cid
	fill := func(d *store.Dir) error {
		for i := uint64(0); ; i++ {
			c, b := storetest.Block(1000+i, 50_000)
			if err := d.Put(ctx, c, b); err != nil {
				return err
			}
			stored = append(stored, c)
		}
	}
	if err := fill(d); !errors.Is(err, store.ErrFull) {
		t.Fatalf("put over the limit: %v", err)
	}
	if n := len(stored); n != (1<<20)/50_000 {
		t.Errorf("%d blocks fit", n)
	}
	mustSync(t, d)
	// The first run does not end: the second one counts.
	d, err = store.Open(mem.Crash(1, 1), opts)
	if err != nil {
		t.Fatal(err)
	}
	d.WaitCounted()
	c, b := storetest.Block(1, 50_000)
	if err := d.Put(ctx, c, b); !errors.Is(err, store.ErrFull) {
		t.Errorf("put over the limit after an unclean end: %v", err)
	}
	if err := d.Delete(ctx, stored[0].Hash()); err != nil {
		t.Fatal(err)
	}
	if err := d.Put(ctx, c, b); err != nil {
		t.Errorf("put after a delete: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSpace: puts stop at the reserve of bytes, with ErrFull and not at ENOSPC,
// and what was put before is safe.
func TestSpace(t *testing.T) {
	ctx := context.Background()
	mem := disk.NewMem()
	d, err := store.Open(mem, store.Options{CreateIfMissing: true, ReserveBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	mem.SetCapacity(8 << 20)
	err = nil
	for i := uint64(0); err == nil && i < 1000; i++ {
		c, b := storetest.Block(i, 20_000)
		err = d.Put(ctx, c, b)
	}
	if !errors.Is(err, store.ErrFull) {
		t.Fatalf("put on a full disk: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatalf("what was put did not fit: %v", err)
	}
	if u, err := mem.Usage(); err != nil || u.Avail < 1<<20 {
		t.Errorf("the reserve was touched: %d bytes are left, %v", u.Avail, err)
	}
}

// inodes is a file system with so many inodes free.
type inodes struct {
	disk.FS
	free int64
}

func (f *inodes) Usage() (disk.Usage, error) {
	u, err := f.FS.Usage()
	u.Files, u.FilesFree = 1<<20, f.free
	return u, err
}

func (f *inodes) Rename(oldname string, newdir disk.FS, newname string) error {
	if n, ok := newdir.(*inodes); ok {
		newdir = n.FS
	}
	return f.FS.Rename(oldname, newdir, newname)
}

// TestInodes: puts stop at the reserve of inodes, those that wait included, and
// go on when there are more.
func TestInodes(t *testing.T) {
	fs := &inodes{disk.NewMem(), 40}
	d := openDir(t, fs, store.Options{ReserveInodes: 10})
	put := func(i int) error {
		c, b := storetest.Block(uint64(i), 100)
		return d.Put(context.Background(), c, b)
	}
	for i := range 30 {
		if err := put(i); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
	}
	if err := put(30); !errors.Is(err, store.ErrFull) || !strings.Contains(err.Error(), "inodes") {
		t.Errorf("put into the reserve: %v", err)
	}
	if err := put(3); err != nil {
		t.Errorf("put of what is there: %v", err)
	}
	fs.free++
	if err := put(30); err != nil {
		t.Errorf("with one more: %v", err)
	}
}

// TestSweep: a collector that runs beside writers deletes nothing that was put
// after it began, whether the put found the block or not.
func TestSweep(t *testing.T) {
	ctx := context.Background()
	d := openDir(t, disk.NewMem(), store.Options{})
	const blocks = 200
	for i := range uint64(blocks) {
		c, b := storetest.Block(i, 10)
		mustPut(t, d, c, b)
	}
	mustSync(t, d)
	sweep := d.Sweep()
	var wg sync.WaitGroup
	put := make([]bool, blocks)
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(1, 1))
		for range blocks {
			i := rng.IntN(blocks)
			c, b := storetest.Block(uint64(i), 10)
			if err := d.Put(ctx, c, b); err != nil {
				t.Error(err)
			}
			put[i] = true
		}
	})
	gone := 0
	for i := range uint64(blocks) {
		c, _ := storetest.Block(i, 10)
		_, ok, err := sweep.Delete(ctx, c.Hash())
		if err != nil {
			t.Error(err)
		}
		if ok {
			gone++
		}
	}
	wg.Wait()
	sweep.End()
	for i := range uint64(blocks) {
		c, _ := storetest.Block(i, 10)
		ok, err := d.Has(ctx, c)
		if err != nil || put[i] && !ok {
			t.Errorf("block %d was put during the sweep and is gone: %v", i, err)
		}
		if !put[i] && ok {
			t.Errorf("block %d was not put and is still there", i)
		}
	}
	if gone == 0 {
		t.Error("nothing was deleted: the test shows nothing")
	}
}
