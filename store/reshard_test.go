package store_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"cafs/shard"
	"cafs/store"
	"cafs/store/disk"
	"cafs/store/storetest"
)

// TestReshard goes through functions in random order, interrupted at random by
// errors and power cuts; every block is where the last one wants it.
func TestReshard(t *testing.T) {
	ctx := context.Background()
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 0))
	funcs := []shard.Func{shard.Default, shard.Prefix(1), shard.Prefix(4), shard.Suffix(1), shard.Suffix(2), shard.NextToLast(3), shard.R12, shard.R122, shard.R133}
	mem := disk.NewMem()
	d, err := store.Open(mem, store.Options{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	const blocks = 60
	for i := range uint64(blocks) {
		c, b := storetest.Block(i, int(i))
		mustPut(t, d, c, b)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		to := funcs[rng.IntN(len(funcs))]
		for try := 0; ; try++ {
			at := int64(rng.IntN(250 * (try + 1)))
			fs := disk.NewFault(mem, disk.FailFrom(at, syscall.EIO))
			err := store.Reshard(ctx, fs, to, nil)
			if rng.IntN(2) == 0 {
				mem = mem.Crash(rng.Int64(), rng.Float64())
			}
			if err == nil {
				break
			}
			// It may have failed at its very end, but never before.
			if d, err := store.Open(mem, store.Options{Shard: to}); err == nil {
				whole(t, d, blocks)
			}
		}
		d, err := store.Open(mem, store.Options{Shard: to})
		if err != nil {
			t.Fatalf("%v: %v", to, err)
		}
		whole(t, d, blocks)
	}
}

// whole checks that d has so many good blocks, and closes it.
func whole(t *testing.T, d *store.Dir, blocks int64) {
	t.Helper()
	storetest.Check(t, d)
	total, err := d.Total(context.Background())
	if err != nil || total.Blocks != blocks {
		t.Fatalf("%v: %d blocks of %d are left, %v", d.Shard(), total.Blocks, blocks, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReshardKeepsGood: of two files of one block the good one stays.
func TestReshardKeepsGood(t *testing.T) {
	for _, goodAtTarget := range []bool{true, false} {
		d, dir := folder(t, store.Options{})
		c, b := storetest.Block(1, 100)
		mustPut(t, d, c, b)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		from := filepath.Join(dir, d.Path(c))
		name := filepath.Base(from)
		to := filepath.Join(dir, name[:3], name)
		if err := os.Mkdir(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		bad := to
		if goodAtTarget {
			if err := os.WriteFile(to, b, 0o644); err != nil {
				t.Fatal(err)
			}
			bad = from
		}
		if err := os.WriteFile(bad, b[1:], 0o644); err != nil {
			t.Fatal(err)
		}
		fs, err := disk.OS(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Reshard(context.Background(), fs, shard.Prefix(3), nil); err != nil {
			t.Fatal(err)
		}
		fs.Close()
		storetest.Check(t, reopen(t, dir, store.Options{}))
	}
}
