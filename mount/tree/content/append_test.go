package content_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"cafs/linksys/unixfs"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
	"cafs/store/disk"

	"github.com/ipfs/go-cid"
)

// putCount counts the bytes of the blocks that are put.
type putCount struct {
	blockStore
	bytes int
}

func (p *putCount) Put(ctx context.Context, c cid.Cid, data []byte) error {
	p.bytes += len(data)
	return p.blockStore.Put(ctx, c, data)
}

// TestAppends: a file that is appended to with an fsync each time, and never at
// rest, becomes one block for each chunk, with few others, and then the index
// has no bytes of that chunk any more.
func TestAppends(t *testing.T) {
	const chunks, most = 2, 32 << 10 // bytes that an fsync leaves in the index
	size := int(unixfs.V1_2025.ChunkSize) * chunks
	for _, n := range []int{31, 100, 1000, 4096, 5000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			blocks := &putCount{blockStore: store.NewMem()}
			r, err := newRepo(t, disk.NewMem(), blocks, unixfs.V1_2025, 64<<20)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			ctx := context.Background()
			f := r.files.New(1)
			var want []byte
			for i := 0; len(want) < size+n; i++ {
				p := bytes.Repeat([]byte{byte(i), byte(i >> 8), byte(i >> 16)}, n/3+1)[:n]
				if err := f.WriteAt(ctx, p, int64(len(want))); err != nil {
					t.Fatal(err)
				}
				want = append(want, p...)
				r.files.Drain()
				if err := r.publish(ctx, 1, f, most); err != nil {
					t.Fatal(err)
				}
			}
			if blocks.bytes > size+size/10 {
				t.Errorf("%d bytes in blocks for %d", blocks.bytes, size)
			}
			for e, err := range r.db.Extents(1) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Off < int64(size) && (e.Kind != index.Block || e.Len != unixfs.V1_2025.ChunkSize) {
					t.Fatalf("an extent of %d bytes at %d of kind %d in a full chunk", e.Len, e.Off, e.Kind)
				}
			}
			r.ends(f, want)
		})
	}
}

// TestScatteredWrites: of a file that is written here and there with an fsync each
// time, and never at rest, the index has the bytes of the last writes only.
func TestScatteredWrites(t *testing.T) {
	r := memRepo(t, unixfs.V1_2025)
	rng := seeded(t)
	ctx := context.Background()
	const page, pages, most = 4096, 4096, 32 << 10
	f := r.files.New(1)
	want := make([]byte, page*pages)
	for i := range 3 * pages {
		p := bytes.Repeat([]byte{byte(i), byte(i >> 8), byte(i >> 16), 1}, page/4)
		off := rng.Int64N(pages) * page
		copy(want[off:], p)
		if err := f.WriteAt(ctx, p, off); err != nil {
			t.Fatal(err)
		}
		if err := r.publish(ctx, 1, f, most); err != nil {
			t.Fatal(err)
		}
		if i%100 > 0 {
			continue
		}
		inline := int64(0)
		for e, err := range r.db.Extents(1) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Kind == index.Inline {
				inline += e.Len
			}
		}
		if inline > content.MaxInline*unixfs.V1_2025.ChunkSize+most {
			t.Fatalf("after %d writes %d bytes are in the index", i, inline)
		}
	}
	want = want[:f.Size()]
	r.ends(f, want)
}

// ends releases inode 1, whose content must be want, before and after it is loaded.
func (r *repo) ends(f *content.File, want []byte) {
	r.t.Helper()
	for _, f := range []*content.File{f, r.load(1)} {
		if i := differ(r.all(f), want); i >= 0 {
			r.t.Errorf("byte %d differs", i)
		}
		f.Release()
	}
}
