package content_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"syscall"
	"testing"
	"time"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
	"cafs/store/disk"
)

func memRepo(t *testing.T, p unixfs.Profile) *repo {
	r, err := newRepo(t, disk.NewMem(), store.NewMem(), p, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// TestHuge writes single bytes into files as large as files can be. All that it
// does takes no longer than what was written.
func TestHuge(t *testing.T) {
	r := memRepo(t, unixfs.V1_2025)
	ctx := context.Background()
	f := r.files.New(1)
	offsets := []int64{0, 1<<20 - 1, 1 << 20, 5 << 30, 1 << 40, 1<<62 + 12345, math.MaxInt64 - 1<<20, math.MaxInt64 - 1}
	start := time.Now()
	if err := f.Truncate(ctx, math.MaxInt64); err != nil {
		t.Fatal(err)
	}
	for i, off := range offsets {
		if err := f.WriteAt(ctx, []byte{byte(i + 1)}, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.WriteAt(ctx, []byte{1, 2}, math.MaxInt64-1); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("write past the largest offset: %v", err)
	}
	if err := f.Allocate(ctx, math.MaxInt64-1, 2, false); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("allocation past the largest offset: %v", err)
	}
	checkHuge(t, f, offsets)
	sealNow(t, r, f)
	checkHuge(t, f, offsets)
	// Truncations and holes in a huge base cost nothing, either.
	for _, n := range []int64{math.MaxInt64, 1 << 62} {
		if err := f.Punch(ctx, 1<<21, n); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.Frags(); n > 4 {
		t.Errorf("%d fragments after holes in a sealed file", n)
	}
	checkHuge(t, f, offsets[:3])
	if err := r.publish(ctx, 1, f, 512); err != nil {
		t.Fatal(err)
	}
	sealNow(t, r, f)
	checkHuge(t, f, offsets[:3])
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
	f.Release()
}

func checkHuge(t *testing.T, f *content.File, offsets []int64) {
	t.Helper()
	ctx := context.Background()
	var p [1]byte
	at := int64(0)
	for i, off := range offsets {
		if n, err := f.ReadAt(ctx, p[:], off); n != 1 || p[0] != byte(i+1) {
			t.Errorf("at %d: %d bytes, %d: %v", off, n, p[0], err)
		}
		data, err := f.NextData(ctx, at)
		if err != nil || data > off {
			t.Errorf("data from %d at %d, want %d or less: %v", at, data, off, err)
		}
		if hole, err := f.NextHole(ctx, off); err != nil || hole <= off {
			t.Errorf("hole from %d at %d: %v", off, hole, err)
		} else {
			at = min(hole, off+1)
		}
	}
	if b := f.Blocks() * 512; b < int64(len(offsets)) || b > int64(len(offsets)+1)<<20 {
		t.Errorf("%d bytes in blocks", b)
	}
	if n, err := f.ReadAt(ctx, p[:], math.MaxInt64); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %d, %v", n, err)
	}
}

// TestManyHoles punches more holes into a base than its record may have
// ranges, in several orders.
func TestManyHoles(t *testing.T) {
	r := memRepo(t, small())
	ctx := context.Background()
	const chunks = 4 * content.MaxVisible
	f := r.files.New(1)
	want := bytes.Repeat([]byte("content "), chunks*chunkSize/8)
	if err := f.WriteAt(ctx, want, 0); err != nil {
		t.Fatal(err)
	}
	sealNow(t, r, f)
	if f.Unsealed() || f.Blocks()*512 != int64(len(want)) {
		t.Errorf("sealed: %v, %d bytes in blocks of %d", !f.Unsealed(), f.Blocks()*512, len(want))
	}
	rng := seeded(t)
	order := rng.Perm(chunks / 2)
	for k, i := range order {
		off, n := int64(2*i)*chunkSize, int64(chunkSize)
		if k%3 == 0 {
			off, n = off+100, 1+rng.Int64N(3*chunkSize)
		}
		n = min(n, int64(len(want))-off)
		if err := f.Punch(ctx, off, n); err != nil {
			t.Fatal(err)
		}
		clear(want[off : off+n])
	}
	if n := len(f.Cut().Content().Visible); n > content.MaxVisible {
		t.Errorf("%d visible ranges", n)
	}
	if got := r.all(f); !bytes.Equal(got, want) {
		t.Fatalf("differs at %d", differ(got, want))
	}
	if err := r.publish(ctx, 1, f, 0); err != nil {
		t.Fatal(err)
	}
	g := r.load(1)
	if got := r.all(g); !bytes.Equal(got, want) {
		t.Fatalf("loaded: differs at %d", differ(got, want))
	}
	sealNow(t, r, g)
	if c := g.Cut(); c.Content().Base != r.build(want) {
		t.Error("sealed to another address")
	}
	f.Release()
	g.Release()
}

// TestPublishesDifference checks that an append costs one extent, and that extents
// that did not change are not written again.
func TestPublishesDifference(t *testing.T) {
	r := memRepo(t, unixfs.V1_2025)
	ctx := context.Background()
	f := r.files.New(1)
	page := make([]byte, 4096)
	for i := range int64(100) {
		if err := f.WriteAt(ctx, page, i*4096); err != nil {
			t.Fatal(err)
		}
		c := f.Cut()
		if err := r.files.Stage(ctx, 32<<10, c); err != nil {
			t.Fatal(err)
		}
		b := r.db.NewBatch()
		c.Fill(b)
		if b.Len() != 1 {
			t.Fatalf("append %d puts %d records into the batch", i, b.Len())
		}
		b.Close()
		if err := r.commit(1, c); err != nil {
			t.Fatal(err)
		}
	}
	if f.Dirty() {
		t.Error("dirty after publishing")
	}
	if err := f.Truncate(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.publish(ctx, 1, f, 0); err != nil {
		t.Fatal(err)
	}
	for e, err := range r.db.Extents(1) {
		t.Errorf("extent at %d is left: %v", e.Off, err)
	}
	f.Release()
}

// TestDamage changes bytes of a staged record: reads fail, and only those of
// the pages that changed.
func TestDamage(t *testing.T) {
	mem := disk.NewMem()
	r, err := newRepo(t, mem, store.NewMem(), unixfs.V1_2025, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	ctx := context.Background()
	f := r.files.New(1)
	if err := f.WriteAt(ctx, bytes.Repeat([]byte("staged! "), 8<<10), 4096); err != nil {
		t.Fatal(err)
	}
	if err := r.publish(ctx, 1, f, 0); err != nil {
		t.Fatal(err)
	}
	extents := slices.Collect(func(yield func(index.Extent) bool) {
		for e := range r.db.Extents(1) {
			yield(e)
		}
	})
	if len(extents) != 1 || extents[0].Kind != index.Staged {
		t.Fatalf("extents %+v", extents)
	}
	staging := r.sub("staging")
	names, err := staging.ReadDir(".")
	if err != nil || len(names) != 1 {
		t.Fatalf("%v, %v", names, err)
	}
	seg, err := staging.OpenFile(names[0].Name, 2, 0) // O_RDWR
	if err != nil {
		t.Fatal(err)
	}
	flip := func(pos int64) {
		var b [1]byte
		if _, err := seg.ReadAt(b[:], pos); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 4
		if _, err := seg.WriteAt(b[:], pos); err != nil {
			t.Fatal(err)
		}
	}
	size, err := seg.Size()
	if err != nil {
		t.Fatal(err)
	}
	var p [100]byte
	for pos := extents[0].Pos; pos < size; pos += 61 {
		flip(pos)
		g := r.load(1)
		for page := range int64(16) {
			data := size - 16*4096
			hit := pos < data || (pos-data)/4096 == page
			_, err := g.ReadAt(ctx, p[:], 4096+page*4096+1000)
			if hit != errors.Is(err, content.ErrDamaged) || !hit && err != nil {
				t.Fatalf("damage at %d, read of page %d: %v", pos, page, err)
			}
		}
		g.Release()
		flip(pos)
	}
	f.Release()
}
