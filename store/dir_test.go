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
