// Package storetest is the suite that every block store of cafs passes. A new
// store's test is a few lines that call [Test].
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"cafs/store"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// Sizes are the lengths of blocks that have boundaries in some store.
var Sizes = []int{0, 1, 1000, 4095, 4096, 4097, 16<<10 - 1, 16 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 256 << 10, 1 << 20, 1<<20 + 1, 2 << 20}

// Block makes a block of n bytes that differs from those of other seeds, and its CID.
func Block(seed uint64, n int) (cid.Cid, []byte) {
	b := make([]byte, n)
	src := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), byte(seed >> 32)})
	src.Read(b)
	return CID(b), b
}

// CID is the raw CIDv1 of b.
func CID(b []byte) cid.Cid {
	h, err := mh.Sum(b, mh.SHA2_256, -1)
	if err != nil {
		panic(err)
	}
	return cid.NewCidV1(cid.Raw, h)
}

// Test runs the suite; open returns a new, empty store for each part. Optional
// roles are tested where the store has them.
func Test(t *testing.T, open func(t *testing.T) store.Store) {
	for name, part := range map[string]func(*testing.T, store.Store){
		"absent":     testAbsent,
		"sizes":      testSizes,
		"codecs":     testCodecs,
		"hashes":     testHashes,
		"refused":    testRefused,
		"ownership":  testOwnership,
		"ranges":     testRanges,
		"enumerate":  testEnumerate,
		"delete":     testDelete,
		"concurrent": testConcurrent,
		"cancelled":  testCancelled,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			part(t, s)
			Check(t, s)
		})
	}
}

// Check reads all of s: every block that is listed can be read and is what its
// multihash says. Tests of stores end with it.
func Check(t *testing.T, s store.Store) {
	t.Helper()
	ctx := context.Background()
	seen := map[string]bool{}
	for e, err := range s.All(ctx) {
		if err != nil {
			t.Fatalf("list: %v", err)
		}
		if seen[string(e.Hash)] {
			t.Fatalf("%s is listed twice", e.Hash.B58String())
		}
		seen[string(e.Hash)] = true
		b, err := s.Get(ctx, cid.NewCidV1(cid.Raw, e.Hash))
		if err != nil {
			t.Fatalf("listed, but: %v", err)
		}
		if int64(len(b)) != e.Size {
			t.Fatalf("%s is listed with %d bytes and has %d", e.Hash.B58String(), e.Size, len(b))
		}
		if err := store.Verify(e.Hash, b); err != nil {
			t.Fatal(err)
		}
	}
}

func put(t *testing.T, s store.Putter, c cid.Cid, b []byte) {
	t.Helper()
	if err := s.Put(context.Background(), c, b); err != nil {
		t.Fatal(err)
	}
}

// want checks that s has exactly b under c, through every role it has.
func want(t *testing.T, s store.Store, c cid.Cid, b []byte) {
	t.Helper()
	ctx := context.Background()
	got, err := s.Get(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, b) {
		t.Fatalf("get %s: %d bytes, not the %d that were put", c, len(got), len(b))
	}
	if ok, err := s.Has(ctx, c); !ok || err != nil {
		t.Fatalf("has %s: %v, %v", c, ok, err)
	}
	if z, ok := s.(store.Sizer); ok {
		if n, err := z.Size(ctx, c); n != int64(len(b)) || err != nil {
			t.Fatalf("size %s: %d, %v, want %d", c, n, err, len(b))
		}
	}
	if l, ok := s.(store.Lender); ok {
		for range 2 { // the second time perhaps in the same memory
			got, release, err := l.Lend(context.Background(), c)
			if err != nil || !bytes.Equal(got, b) {
				t.Fatalf("lend %s: %d bytes of %d, %v", c, len(got), len(b), err)
			}
			if release != nil {
				release()
			}
		}
	}
}

func testAbsent(t *testing.T, s store.Store) {
	ctx := context.Background()
	c, _ := Block(1, 10)
	if _, err := s.Get(ctx, c); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get: %v, want ErrNotFound", err)
	}
	if ok, err := s.Has(ctx, c); ok || err != nil {
		t.Errorf("has: %v, %v", ok, err)
	}
	if z, ok := s.(store.Sizer); ok {
		if _, err := z.Size(ctx, c); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("size: %v, want ErrNotFound", err)
		}
	}
	if r, ok := s.(store.RangeGetter); ok {
		if _, err := r.GetRange(ctx, c, make([]byte, 1), 0); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("get range: %v, want ErrNotFound", err)
		}
	}
	if err := s.Sync(ctx); err != nil {
		t.Errorf("sync of nothing: %v", err)
	}
	for range s.All(ctx) {
		t.Error("an empty store lists something")
	}
}

func testSizes(t *testing.T, s store.Store) {
	for round := range 2 { // pending, then durable
		for i, n := range Sizes {
			c, b := Block(uint64(i), n)
			put(t, s, c, b)
			want(t, s, c, b)
		}
		if err := s.Sync(context.Background()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}

func testCodecs(t *testing.T, s store.Store) {
	c, b := Block(1, 100)
	put(t, s, c, b)
	want(t, s, cid.NewCidV1(cid.DagProtobuf, c.Hash()), b)
	want(t, s, cid.NewCidV1(cid.DagCBOR, c.Hash()), b)
	want(t, s, cid.NewCidV0(c.Hash()), b)
}

func testHashes(t *testing.T, s store.Store) {
	b := []byte("bytes with many names")
	for _, code := range []uint64{mh.SHA2_256, mh.SHA2_512, mh.BLAKE3, mh.BLAKE2B_MIN + 31, mh.SHA3_256} {
		h, err := mh.Sum(b, code, -1)
		if err != nil {
			t.Fatal(err)
		}
		c := cid.NewCidV1(cid.Raw, h)
		if err := store.PutVerified(context.Background(), s, c, b); err != nil {
			t.Fatal(err)
		}
		want(t, s, c, b)
	}
}

func testRefused(t *testing.T, s store.Store) {
	ctx := context.Background()
	c, b := Block(1, 100)
	if err := store.PutVerified(ctx, s, c, b[1:]); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("put of wrong bytes: %v, want ErrMismatch", err)
	}
	big, data := Block(2, store.MaxBlock+1)
	if err := s.Put(ctx, big, data); err == nil {
		t.Errorf("a block over the limit was taken")
	}
	id, err := mh.Sum([]byte("x"), mh.IDENTITY, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Put(ctx, cid.NewCidV1(cid.Raw, id), []byte("x")); err == nil {
		t.Errorf("an identity CID was taken")
	}
	for range s.All(ctx) {
		t.Error("something refused is listed")
	}
}

func testOwnership(t *testing.T, s store.Store) {
	for _, n := range []int{100, 100 << 10} {
		c, b := Block(uint64(n), n)
		mine := bytes.Clone(b)
		put(t, s, c, mine)
		clear(mine)
		want(t, s, c, b)
	}
}

func testRanges(t *testing.T, s store.Store) {
	r, ok := s.(store.RangeGetter)
	if !ok {
		t.Skip("no ranges")
	}
	ctx := context.Background()
	for round := range 2 {
		for i, n := range Sizes {
			c, b := Block(uint64(i), n)
			put(t, s, c, b)
			for _, off := range []int{0, 1, 4095, 4096, n / 2, n - 1, n, n + 1} {
				for _, length := range []int{0, 1, 4096, 10000, n} {
					if off < 0 {
						continue
					}
					p := make([]byte, length)
					got, err := r.GetRange(ctx, c, p, int64(off))
					end := min(off+length, n)
					begin := min(off, n)
					if err != nil && err != io.EOF {
						t.Fatal(err)
					}
					if (got < length) != (err == io.EOF) && length > 0 {
						t.Fatalf("size %d, [%d+%d): %d bytes and %v", n, off, length, got, err)
					}
					if !bytes.Equal(p[:got], b[begin:max(begin, end)]) {
						t.Fatalf("round %d, size %d, [%d+%d): wrong bytes", round, n, off, length)
					}
				}
			}
		}
		if err := s.Sync(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func testEnumerate(t *testing.T, s store.Store) {
	ctx := context.Background()
	sizes := map[string]int64{}
	for i := range 300 {
		c, b := Block(uint64(i), i*7)
		put(t, s, c, b)
		sizes[string(c.Hash())] = int64(len(b))
		if i == 200 {
			if err := s.Sync(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	found := 0
	for e, err := range s.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := sizes[string(e.Hash)]; !ok || n != e.Size {
			t.Fatalf("%s with %d bytes is listed", e.Hash.B58String(), e.Size)
		}
		found++
	}
	if found != len(sizes) {
		t.Fatalf("%d blocks are listed, want %d", found, len(sizes))
	}
	for range s.All(ctx) { // an iteration may end early
		break
	}
}

func testDelete(t *testing.T, s store.Store) {
	d, ok := s.(store.Deleter)
	if !ok {
		t.Skip("no deletion")
	}
	ctx := context.Background()
	for round := range 2 {
		for _, n := range []int{10, 100 << 10} {
			c, b := Block(uint64(n), n)
			put(t, s, c, b)
			if round == 1 {
				if err := s.Sync(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.Delete(ctx, c.Hash()); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Get(ctx, c); !errors.Is(err, store.ErrNotFound) {
				t.Fatalf("get of a deleted block: %v", err)
			}
			if err := d.Delete(ctx, c.Hash()); err != nil {
				t.Fatalf("second delete: %v", err)
			}
			put(t, s, c, b)
			want(t, s, c, b)
		}
	}
}

func testConcurrent(t *testing.T, s store.Store) {
	ctx := context.Background()
	const workers, blocks = 8, 60
	var wg sync.WaitGroup
	errs := make(chan error, workers)
	for w := range workers {
		wg.Go(func() {
			for i := range blocks {
				c, b := Block(uint64(i), 1+i*1500) // all workers put the same ones
				err := s.Put(ctx, c, b)
				if err == nil && (i+w)%5 == 0 {
					err = s.Sync(ctx)
				}
				if err == nil {
					var got []byte
					if got, err = s.Get(ctx, c); err == nil && !bytes.Equal(got, b) {
						err = fmt.Errorf("block %d has other bytes", i)
					}
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
}

func testCancelled(t *testing.T, s store.Store) {
	c, b := Block(1, 10)
	put(t, s, c, b)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Sync(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("sync: %v", err)
	}
	for _, err := range s.All(ctx) {
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("all: %v", err)
		}
	}
	want(t, s, c, b)
}
