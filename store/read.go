package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"cafs/store/disk"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// Get implements [Getter].
func (d *Dir) Get(ctx context.Context, c cid.Cid) ([]byte, error) {
	b, _, err := d.get(ctx, c, newPages)
	return b, err
}

// Lend implements [Lender].
func (d *Dir) Lend(ctx context.Context, c cid.Cid) ([]byte, func(), error) {
	return d.get(ctx, c, lentPages)
}

func (d *Dir) get(ctx context.Context, c cid.Cid, memory allocator) ([]byte, func(), error) {
	if err := d.begin(ctx); err != nil {
		return nil, nil, err
	}
	defer d.leave()
	d.stats.gets.Add(1)
	b, release, err := d.load(hashKey(c), memory)
	if err != nil {
		return nil, nil, fmt.Errorf("store: get %s: %w", c, err)
	}
	return b, release, nil
}

func (d *Dir) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.enter()
}

// load reads and checks a whole block.
func (d *Dir) load(key string, memory allocator) ([]byte, func(), error) {
	if e := d.table.get(key); e != nil {
		b, ok, err := e.bytes()
		if err == nil && ok && !e.inMemory() {
			err = d.check(key, b)
		}
		if ok || err != nil {
			return b, nil, err
		}
	}
	f, size, err := d.openBlock(key)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	b, release := memory(size)
	read := f.ReadAt
	if past, ok := f.(disk.PastReader); ok && size >= largeBlock && !d.opts.Buffered && !d.pages.has(key) {
		// Who reads a whole block keeps it, in a cache of its own or in that of a
		// mount, and most are read once: only one that comes again is worth the
		// page cache. The handle is ours alone, as this needs.
		read, b = past.ReadPast, b[:roundPages(size)]
	}
	if b, err = d.readInto(key, read, size, b); err != nil && release != nil {
		release()
	}
	return b, release, err
}

// readAll reads a whole block through a handle that others may use.
func (d *Dir) readAll(key string, f disk.File, size int64) ([]byte, error) {
	return d.readInto(key, f.ReadAt, size, make([]byte, size))
}

// readInto reads a whole block of size bytes into b, which may be longer, and
// checks it.
func (d *Dir) readInto(key string, readAt func([]byte, int64) (int, error), size int64, b []byte) ([]byte, error) {
	if sums, ok := d.pages.get(key); ok && readChecked(readAt, sums, b[:size]) {
		d.stats.read.Add(size)
		return b[:size], nil
	}
	n, err := readAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	d.stats.read.Add(int64(n))
	b = b[:min(int64(n), size)]
	return b, d.check(key, b)
}

// readStep is how many bytes are read before they are checked: what is checked
// is then in the processor's cache.
const readStep = 64 << 10

// readChecked fills b from the beginning of a block whose page checksums are
// known, and tells whether that went well and they match.
func readChecked(readAt func([]byte, int64) (int, error), sums []uint32, b []byte) bool {
	if len(sums) != (len(b)+pageSize-1)/pageSize {
		return false
	}
	for off := 0; off < len(b); off += readStep {
		part := b[off:min(off+readStep, len(b))]
		pages := (len(part) + pageSize - 1) / pageSize
		if n, _ := readAt(part, int64(off)); n < len(part) || !sumsMatch(sums[off/pageSize:][:pages], part) {
			return false
		}
	}
	return true
}

// openBlock opens a block's file and tells its length. The folder handle and
// the name are one openat.
func (d *Dir) openBlock(key string) (disk.File, int64, error) {
	if len(key) < 2 || len(key) > maxHash || key[0] == mh.IDENTITY {
		return nil, 0, ErrNotFound
	}
	name := blockName(key)
	dir, err := d.folders.get(d.shard.Dir(blockKey(name)), false)
	if err != nil {
		return nil, 0, missing(err)
	}
	defer dir.release()
	f, err := dir.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, 0, missing(err)
	}
	size, err := f.Size()
	if err == nil && size > MaxBlock {
		err = d.corrupt(key, nil, fmt.Sprintf("%d bytes are over the limit of %d", size, MaxBlock))
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, size, nil
}

func missing(err error) error {
	if notExist(err) {
		return ErrNotFound
	}
	return err
}

// check is the one place where bytes from the disk become trusted: by the
// checksums of pages that were hashed before, or by their hash.
func (d *Dir) check(key string, b []byte) error {
	if sums, ok := d.pages.get(key); ok && sumsMatch(sums, b) {
		return nil
	}
	got, sums, err := hashPages(key, b)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, []byte(key)) {
		return d.corrupt(key, got, "")
	}
	if sums != nil {
		d.pages.add(key, sums)
	}
	return nil
}

// corrupt remembers that the block is damaged, so that a put of the right bytes
// replaces it, and returns the error to report.
func (d *Dir) corrupt(key string, got mh.Multihash, detail string) error {
	d.pages.markDamaged(key)
	return &CorruptError{Want: mh.Multihash(key), Got: got, Detail: detail}
}

// hashLike hashes b with the function and digest length of the multihash key.
func hashLike(key string, b []byte) (mh.Multihash, error) {
	if isSha256(key) {
		sum := sha256.Sum256(b)
		return append(mh.Multihash{mh.SHA2_256, 32}, sum[:]...), nil
	}
	return sumLike(mh.Multihash(key), b)
}

// hashStep is how many bytes are hashed before their page checksums are taken,
// so that the second pass finds them in the processor's cache.
const hashStep = 16 * pageSize

// hashPages is hashLike that also takes the page checksums of a block that is
// to have them.
func hashPages(key string, b []byte) (got mh.Multihash, sums []uint32, err error) {
	if len(b) < PagedBlock {
		got, err = hashLike(key, b)
		return got, nil, err
	}
	if !isSha256(key) {
		got, err = hashLike(key, b)
		return got, pageSums(nil, b), err
	}
	sums = make([]uint32, 0, (len(b)+pageSize-1)/pageSize)
	h := sha256.New()
	for rest := b; len(rest) > 0; {
		step := rest[:min(hashStep, len(rest))]
		h.Write(step)
		sums = pageSums(sums, step)
		rest = rest[len(step):]
	}
	return h.Sum(mh.Multihash{mh.SHA2_256, sha256.Size}), sums, nil
}

// isSha256 tells whether a multihash is one of sha2-256 in full length.
func isSha256(key string) bool {
	return len(key) == 2+sha256.Size && key[0] == mh.SHA2_256 && key[1] == sha256.Size
}

// Has implements [Haser]. Its answer is that of the names: only an empty file
// where no empty block can be counts as absent.
func (d *Dir) Has(ctx context.Context, c cid.Cid) (bool, error) {
	_, err := d.size(ctx, c)
	if err != nil {
		if isNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("store: has %s: %w", c, err)
	}
	return true, nil
}

// Size implements [Sizer].
func (d *Dir) Size(ctx context.Context, c cid.Cid) (int64, error) {
	n, err := d.size(ctx, c)
	if err != nil {
		return 0, fmt.Errorf("store: size %s: %w", c, err)
	}
	return n, nil
}

func (d *Dir) size(ctx context.Context, c cid.Cid) (int64, error) {
	if err := d.begin(ctx); err != nil {
		return 0, err
	}
	defer d.leave()
	return d.length(hashKey(c))
}

// length is size for a call that has begun.
func (d *Dir) length(key string) (int64, error) {
	if e := d.table.get(key); e != nil {
		return e.size, nil
	}
	if len(key) < 2 || len(key) > maxHash || key[0] == mh.IDENTITY {
		return 0, ErrNotFound
	}
	name := blockName(key)
	dir, err := d.folders.get(d.shard.Dir(blockKey(name)), false)
	if err != nil {
		return 0, missing(err)
	}
	defer dir.release()
	info, err := dir.Stat(name)
	if err != nil {
		return 0, missing(err)
	}
	if info.Size == 0 {
		if h, err := hashLike(key, nil); err != nil || string(h) != key {
			return 0, ErrNotFound
		}
	}
	return info.Size, nil
}
