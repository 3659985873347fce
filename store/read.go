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
	if err := d.begin(ctx); err != nil {
		return nil, err
	}
	defer d.leave()
	d.stats.gets.Add(1)
	b, err := d.load(hashKey(c))
	if err != nil {
		return nil, fmt.Errorf("store: get %s: %w", c, err)
	}
	return b, nil
}

func (d *Dir) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.enter()
}

// load reads and checks a whole block.
func (d *Dir) load(key string) ([]byte, error) {
	if e := d.table.get(key); e != nil {
		b, ok, err := e.bytes()
		if err == nil && ok && !e.inMemory() {
			err = d.check(key, b)
		}
		if ok || err != nil {
			return b, err
		}
	}
	f, size, err := d.openBlock(key)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return d.readAll(key, f, size)
}

func (d *Dir) readAll(key string, f disk.File, size int64) ([]byte, error) {
	b := make([]byte, size)
	if n, err := readFull(f, b, 0); err != nil && err != io.ErrUnexpectedEOF {
		return nil, err
	} else if err != nil {
		b = b[:n]
	}
	d.stats.read.Add(size)
	return b, d.check(key, b)
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
	got, err := hashLike(key, b)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, []byte(key)) {
		return d.corrupt(key, got, "")
	}
	if len(b) >= pagedBlock {
		d.pages.add(key, pageSums(b))
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
	if len(key) == 34 && key[0] == mh.SHA2_256 && key[1] == 32 {
		sum := sha256.Sum256(b)
		return append(mh.Multihash{mh.SHA2_256, 32}, sum[:]...), nil
	}
	return sumLike(mh.Multihash(key), b)
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
	key := hashKey(c)
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
