package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"cafs/shard"
	"cafs/store"
	"cafs/store/disk"
	"cafs/store/storetest"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// folder is a new store on the kernel and the path of its folder.
func folder(t *testing.T, opts store.Options) (*store.Dir, string) {
	t.Helper()
	dir := t.TempDir()
	return reopen(t, dir, opts), dir
}

func reopen(t *testing.T, dir string, opts store.Options) *store.Dir {
	t.Helper()
	fs, err := disk.OS(dir)
	if err != nil {
		t.Fatal(err)
	}
	opts.CreateIfMissing = true
	d, err := store.Open(fs, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		fs.Close()
	})
	return d
}

func mustPut(t *testing.T, d store.Putter, c cid.Cid, b []byte) {
	t.Helper()
	if err := d.Put(context.Background(), c, b); err != nil {
		t.Fatal(err)
	}
}

func mustSync(t *testing.T, d store.Syncer) {
	t.Helper()
	if err := d.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// file is the only file of a block below dir.
func file(t *testing.T, dir, name string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*", name))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", name, found, err)
	}
	return found[0]
}

// TestFormat pins what flatfs and Kubo find on disk.
func TestFormat(t *testing.T) {
	d, dir := folder(t, store.Options{})
	hello := []byte("hello world\n")
	c := storetest.CID(hello)
	mustPut(t, d, c, hello)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"SHARDING": "/repo/flatfs/shard/v1/next-to-last/2\n",
		// as "ipfs add --raw-leaves" stores it
		"IR/CIQKSSEQJ4XQ6R43R6AZO2KLGAMEWDJO2HA42KQ6YD5YLUUZUGJKIRY.data": string(hello),
	} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	readme, err := os.Stat(filepath.Join(dir, "_README"))
	if err != nil || readme.Mode().Perm() != 0o444 || readme.Size() != 1123 {
		t.Errorf("_README: %v, %v", readme, err)
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, n := range names {
		list = append(list, n.Name())
	}
	if got := strings.Join(list, " "); got != "IR SHARDING _README diskUsage.cache" {
		t.Errorf("a closed store has %s", got)
	}
}

// TestLayoutErrors: what is not a store, or another one, is refused.
func TestLayoutErrors(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		opts  store.Options
		want  error
	}{
		"nothing":         {nil, store.Options{}, store.ErrNotStore},
		"somebody's":      {map[string]string{"letter.txt": "x"}, store.Options{CreateIfMissing: true}, store.ErrNotStore},
		"other function":  {map[string]string{"SHARDING": "/repo/flatfs/shard/v1/prefix/2\n"}, store.Options{Shard: shard.Default}, store.ErrLayout},
		"unknown":         {map[string]string{"SHARDING": "/repo/flatfs/shard/v1/middle/2\n"}, store.Options{}, store.ErrLayout},
		"newer":           {map[string]string{"SHARDING": "/repo/flatfs/shard/v2/prefix/2\n"}, store.Options{}, store.ErrLayout},
		"being resharded": {map[string]string{"SHARDING": "/cafs/reshard/v1 to /repo/flatfs/shard/v1/prefix/2\n"}, store.Options{}, store.ErrResharding},
	} {
		dir := t.TempDir()
		for f, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, f), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		fs, err := disk.OS(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Open(fs, c.opts); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		fs.Close()
	}
}

// TestLeftovers: what interrupted writes left, of ours and of flatfs, is swept
// and never served.
func TestLeftovers(t *testing.T) {
	d, dir := folder(t, store.Options{})
	c, b := storetest.Block(1, 100)
	mustPut(t, d, c, b)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(d.Path(c))
	for _, f := range []string{".temp/x/" + name, ".staging/0/1", ".staging/junk", "ZZ/put-1", "ZZ/" + name, "ZZ/lower.data", "QQ/CIQ.data/x"} {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("partial"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d = reopen(t, dir, store.Options{})
	n := 0
	for _, err := range d.All(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d blocks are listed, want 1", n)
	}
	storetest.Check(t, d)
	for _, f := range []string{".temp", ".staging/0/1", ".staging/junk"} {
		if _, err := os.Stat(filepath.Join(dir, f)); !os.IsNotExist(err) {
			t.Errorf("%s was not swept: %v", f, err)
		}
	}
}

// TestDamage changes files behind the store's back: no read returns other bytes
// than were put, and putting the block again heals it.
func TestDamage(t *testing.T) {
	ctx := context.Background()
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 0))
	d, dir := folder(t, store.Options{})
	for i, size := range []int{1, 100, 20 << 10, 64 << 10, 1 << 20} {
		for how, damage := range map[string]func(b []byte) []byte{
			"flipped":   func(b []byte) []byte { b[rng.IntN(len(b))] ^= 1 << rng.IntN(8); return b },
			"truncated": func(b []byte) []byte { return b[:rng.IntN(len(b))] },
			"emptied":   func(b []byte) []byte { return nil },
			"longer":    func(b []byte) []byte { return append(b, 0) },
			"enormous":  func(b []byte) []byte { return make([]byte, store.MaxBlock+1) },
		} {
			t.Run(fmt.Sprintf("%d %s", size, how), func(t *testing.T) {
				c, b := storetest.Block(uint64(i), size)
				mustPut(t, d, c, b)
				mustSync(t, d)
				bad := damage(bytes.Clone(b))
				if err := os.WriteFile(file(t, dir, filepath.Base(d.Path(c))), bad, 0o644); err != nil {
					t.Fatal(err)
				}
				p := make([]byte, 10)
				for off := int64(0); off < int64(size); off += 4096 {
					n, err := d.GetRange(ctx, c, p, off)
					if want := b[off:min(off+10, int64(size))]; !bytes.Equal(p[:n], want[:n]) || (err == nil && n < len(want)) {
						t.Fatalf("range at %d: other bytes than were put", off)
					}
					if err != nil && err != io.EOF && !errors.Is(err, store.ErrCorrupt) {
						t.Fatalf("range: %v", err)
					}
				}
				_, err := d.Get(ctx, c)
				var corrupt *store.CorruptError
				if !errors.As(err, &corrupt) || !bytes.Equal(corrupt.Want, c.Hash()) {
					t.Fatalf("get: %v, want a CorruptError", err)
				}
				if how != "enormous" && bytes.Equal(corrupt.Got, c.Hash()) {
					t.Fatalf("get: says it got what it wanted")
				}
				if how == "emptied" {
					if ok, err := d.Has(ctx, c); ok || err != nil {
						t.Fatalf("has of an emptied block: %v, %v", ok, err)
					}
				}
				mustPut(t, d, c, b)
				if got, err := d.Get(ctx, c); err != nil || !bytes.Equal(got, b) {
					t.Fatalf("not healed while pending: %v", err)
				}
				mustSync(t, d)
				if got, err := d.Get(ctx, c); err != nil || !bytes.Equal(got, b) {
					t.Fatalf("not healed: %v", err)
				}
			})
		}
	}
	storetest.Check(t, d)
}

// TestWrongLengthNotTrusted: a put looks at the length even of a block that
// nobody read.
func TestWrongLengthNotTrusted(t *testing.T) {
	d, dir := folder(t, store.Options{})
	c, b := storetest.Block(1, 5000)
	mustPut(t, d, c, b)
	mustSync(t, d)
	if err := os.Truncate(file(t, dir, filepath.Base(d.Path(c))), 100); err != nil {
		t.Fatal(err)
	}
	mustPut(t, d, c, b)
	mustSync(t, d)
	storetest.Check(t, d)
}

// memPages keeps page checksums as the index would.
type memPages struct {
	mu    sync.Mutex
	m     map[string][]uint32
	loads int
}

func (p *memPages) LoadPages(h mh.Multihash) ([]uint32, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.loads++
	s, ok := p.m[string(h)]
	return s, ok, nil
}

func (p *memPages) SavePages(h mh.Multihash, sums []uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.m[string(h)] = sums
	return nil
}

// TestPages: a small read of a large block that this run never saw costs a page,
// with kept checksums; stale ones only cost a reading of the block.
func TestPages(t *testing.T) {
	ctx := context.Background()
	pages := &memPages{m: map[string][]uint32{}}
	d, dir := folder(t, store.Options{Pages: pages})
	c, b := storetest.Block(1, 1<<20)
	mustPut(t, d, c, b)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	read := func() int64 {
		d := reopen(t, dir, store.Options{Pages: pages})
		p := make([]byte, 4096)
		if n, err := d.GetRange(ctx, c, p, 8192+5); n != 4096 || err != nil || !bytes.Equal(p, b[8197:][:4096]) {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		return d.Stats().BytesRead
	}
	if n := read(); n > 8192 {
		t.Errorf("a read of 4 KiB read %d bytes", n)
	}
	pages.m[string(c.Hash())][2]++
	if n := read(); n < 1<<20 {
		t.Errorf("checksums that differ were believed")
	}
	if n := read(); n > 8192 {
		t.Errorf("checksums were not corrected: a read of 4 KiB read %d bytes", n)
	}
	delete(pages.m, string(c.Hash()))
	if n := read(); n < 1<<20 {
		t.Errorf("bytes without checksums were believed")
	}
	if n := read(); n > 8192 {
		t.Errorf("checksums were not rebuilt: a read of 4 KiB read %d bytes", n)
	}
}

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
			if _, err := store.Open(mem, store.Options{Shard: to}); err == nil {
				t.Fatal("opened in the middle of it")
			}
		}
		d, err := store.Open(mem, store.Options{Shard: to})
		if err != nil {
			t.Fatalf("%v: %v", to, err)
		}
		storetest.Check(t, d)
		total, err := d.Total(ctx)
		if err != nil || total.Blocks != blocks {
			t.Fatalf("%v: %d blocks of %d are left, %v", to, total.Blocks, blocks, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
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
		ok, err := sweep.Delete(ctx, c.Hash())
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
