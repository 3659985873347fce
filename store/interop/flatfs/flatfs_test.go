// Package flatfs tests the block store against go-ds-flatfs, the store of Kubo.
// It is a module of its own, so that cafs does not depend on it.
package flatfs

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cafs/shard"
	"cafs/store"
	"cafs/store/adapter"
	"cafs/store/disk"
	"cafs/store/storetest"

	"github.com/ipfs/go-cid"
	kubo "github.com/ipfs/go-ds-flatfs"
	mh "github.com/multiformats/go-multihash"
)

var seedFlag = flag.Uint64("seed", 0, "seed of random tests; 0 takes the clock")

func rng(t *testing.T) *rand.Rand {
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", s)
	return rand.New(rand.NewPCG(s, 0))
}

var funcs = []shard.Func{
	shard.Default, shard.Prefix(1), shard.Prefix(2), shard.Prefix(10), shard.Suffix(1),
	shard.Suffix(3), shard.NextToLast(1), shard.NextToLast(3), shard.Suffix(60), shard.Prefix(60), shard.NextToLast(60),
}

// TestFunctions: text and folder of every function for keys of every length.
func TestFunctions(t *testing.T) {
	r := rng(t)
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	for _, f := range funcs {
		theirs, err := kubo.ParseShardFunc(f.String())
		if err != nil {
			t.Fatal(err)
		}
		if back, err := shard.Parse(theirs.String() + "\n"); err != nil || back != f {
			t.Errorf("%s comes back as %s, %v", f, back, err)
		}
		for n := range 90 {
			key := make([]byte, n)
			for i := range key {
				key[i] = letters[r.IntN(len(letters))]
			}
			if got, want := f.Dir(string(key)), theirs.Func()(string(key)); got != want {
				t.Errorf("%s of %q: %q, want %q", f, key, got, want)
			}
		}
	}
	for _, f := range []shard.Func{shard.R12, shard.R122, shard.R133} {
		if _, err := kubo.ParseShardFunc(f.String()); err == nil {
			t.Errorf("flatfs takes %s and would not find the blocks", f)
		}
	}
}

func openOurs(t *testing.T, dir string, opts store.Options) *store.Dir {
	t.Helper()
	fs, err := disk.OS(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := store.Open(fs, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fs.Close() })
	return d
}

func openTheirs(t *testing.T, dir string) *kubo.Datastore {
	t.Helper()
	f, err := kubo.Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func closed(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// block is one of a few, with short multihashes among them.
func block(i uint64) (cid.Cid, []byte) {
	c, b := storetest.Block(i, int(i*i))
	if i%5 == 0 {
		h, err := mh.Sum(b, mh.SHA2_256, int(1+i%31))
		if err != nil {
			panic(err)
		}
		c = cid.NewCidV1(cid.Raw, h)
	}
	return c, b
}

// TestFiles: a new store of ours has the files of a new store of theirs.
func TestFiles(t *testing.T) {
	for _, f := range funcs {
		ours, theirs := t.TempDir(), t.TempDir()
		closed(t, openOurs(t, ours, store.Options{Shard: f, CreateIfMissing: true}))
		id, err := kubo.ParseShardFunc(f.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := kubo.Create(theirs, id); err != nil {
			t.Fatal(err)
		}
		a, b := tree(t, ours), tree(t, theirs)
		if a != b {
			t.Errorf("%s:\n%s\ntheirs:\n%s", f, a, b)
		}
	}
}

// tree is the names, permissions and texts below dir.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var out bytes.Buffer
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == dir {
			return err
		}
		text := []byte{}
		if !info.IsDir() {
			text, err = os.ReadFile(path)
		}
		fmt.Fprintf(&out, "%s %v %q\n", path[len(dir):], info.Mode(), text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestTakingTurns: the two open one store by turns, and each finds what both
// put and deleted.
func TestTakingTurns(t *testing.T) {
	ctx := context.Background()
	r := rng(t)
	for _, f := range funcs {
		dir := t.TempDir()
		if r.IntN(2) == 0 {
			closed(t, openOurs(t, dir, store.Options{Shard: f, CreateIfMissing: true}))
		} else if id, err := kubo.ParseShardFunc(f.String()); err != nil || kubo.Create(dir, id) != nil {
			t.Fatal(err)
		}
		model := map[string][]byte{}
		for turn := range 8 {
			var s adapter.Local
			var end interface{ Close() error }
			if turn%2 == 0 {
				d := openOurs(t, dir, store.Options{})
				if d.Shard() != f {
					t.Fatalf("opened %s as %s", f, d.Shard())
				}
				s, end = d, d
			} else {
				d := openTheirs(t, dir)
				s, end = adapter.FromDatastore(d), d
			}
			same(t, s, model)
			for range 30 {
				c, b := block(r.Uint64N(40))
				if r.IntN(3) == 0 {
					delete(model, string(c.Hash()))
					if err := s.Delete(ctx, c.Hash()); err != nil {
						t.Fatal(err)
					}
				} else {
					model[string(c.Hash())] = b
					if err := s.Put(ctx, c, b); err != nil {
						t.Fatal(err)
					}
				}
			}
			same(t, s, model)
			closed(t, end)
		}
	}
}

func same(t *testing.T, s adapter.Local, model map[string][]byte) {
	t.Helper()
	ctx := context.Background()
	n := 0
	for e, err := range s.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		b, ok := model[string(e.Hash)]
		if !ok || e.Size != int64(len(b)) {
			t.Fatalf("%x with %d bytes is listed", e.Hash, e.Size)
		}
		n++
	}
	if n != len(model) {
		t.Fatalf("%d blocks are listed, want %d", n, len(model))
	}
	for h, want := range model {
		got, err := s.Get(ctx, cid.NewCidV1(cid.Raw, mh.Multihash(h)))
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("get %x: %v", h, err)
		}
	}
}

// TestDiskUsage: flatfs believes the size that our Close left.
func TestDiskUsage(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	d := openOurs(t, dir, store.Options{CreateIfMissing: true})
	var total uint64
	for i := range uint64(20) {
		c, b := block(i + 1)
		if err := d.Put(ctx, c, b); err != nil {
			t.Fatal(err)
		}
		total += uint64(len(b))
	}
	closed(t, d)
	f := openTheirs(t, dir)
	defer f.Close()
	if n, err := f.DiskUsage(ctx); err != nil || n != total {
		t.Errorf("flatfs says %d bytes, want %d, %v", n, total, err)
	}
}

// TestReshard: flatfs opens a store that was resharded, and none that is in the
// middle of it.
func TestReshard(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	d := openOurs(t, dir, store.Options{CreateIfMissing: true})
	model := map[string][]byte{}
	for i := range uint64(30) {
		c, b := block(i)
		model[string(c.Hash())] = b
		if err := d.Put(ctx, c, b); err != nil {
			t.Fatal(err)
		}
	}
	closed(t, d)
	fs, err := disk.OS(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Close()
	for _, f := range funcs {
		half := errors.New("half way")
		moves := 0
		broken := disk.NewFault(fs, func(op disk.Op) error {
			if op.Kind == disk.OpRename {
				if moves++; moves > 15 {
					return half
				}
			}
			return nil
		})
		if err := store.Reshard(ctx, broken, f, nil); err != nil {
			if !errors.Is(err, half) {
				t.Fatal(err)
			}
			if _, err := kubo.Open(dir, false); err == nil {
				t.Fatalf("%s: flatfs opened it half way", f)
			}
		}
		if err := store.Reshard(ctx, fs, f, nil); err != nil {
			t.Fatal(err)
		}
		theirs := openTheirs(t, dir)
		same(t, adapter.FromDatastore(theirs), model)
		closed(t, theirs)
	}
}

// TestSuite: flatfs behind our roles.
func TestSuite(t *testing.T) {
	storetest.Test(t, func(t *testing.T) store.Store {
		f, err := kubo.CreateOrOpen(t.TempDir(), kubo.NextToLast(2), false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return adapter.FromDatastore(f)
	})
}
