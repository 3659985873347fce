package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"cafs/shard"
	"cafs/store/disk"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
)

// Folders lists the folders that hold blocks, in order.
func (d *Dir) Folders() ([]string, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	names, err := shardFolders(d.root, d.shard.Levels())
	if err != nil {
		return nil, fmt.Errorf("store: list: %w", err)
	}
	slices.Sort(names)
	return names, nil
}

// Rehash reads every block of a folder from its file and hashes it, whatever is
// known of it already. each hears of every block: with nil, ErrCorrupt, or an
// error of the disk; an error that it returns ends the run. Blocks that are
// pending, or deleted meanwhile, are left out. Callers that want all processors
// busy, and the disk, run it for several folders at once.
func (d *Dir) Rehash(ctx context.Context, folder string, each func(Entry, error) error) error {
	entries, err := d.readFolder(folder, true, nil)
	if err != nil {
		return fmt.Errorf("store: rehash: %w", err)
	}
	for _, e := range entries {
		if err := d.begin(ctx); err != nil {
			return err
		}
		err := d.rehash(string(e.Hash))
		d.leave()
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err := each(e, err); err != nil {
			return err
		}
	}
	return nil
}

// rehash checks one block. The call has begun.
func (d *Dir) rehash(key string) error {
	if d.table.get(key) != nil {
		return ErrNotFound
	}
	f, size, err := d.openBlock(key)
	if err != nil {
		return err
	}
	defer f.Close()
	got, err := d.hashFile(key, f, size)
	if err == nil && string(got) != key {
		err = d.corrupt(key, got, "")
	}
	return err
}

// hashFile hashes the size bytes of a block's file.
func (d *Dir) hashFile(key string, f disk.File, size int64) (mh.Multihash, error) {
	past, ok := f.(disk.PastReader)
	around := ok && size >= largeBlock && !d.opts.Buffered && !past.Cached(0, size)
	if around || !isSha256(key) {
		b, release := lentPages(size)
		if release != nil {
			defer release()
		}
		read := f.ReadAt
		if around {
			read, b = past.ReadPast, b[:roundPages(size)]
		}
		n, err := read(b, 0)
		if err != nil && err != io.EOF {
			return nil, err
		}
		d.stats.read.Add(int64(n))
		return hashLike(key, b[:min(int64(n), size)])
	}
	// What is copied in small pieces is still in the processor's cache when it
	// is hashed.
	piece := pieces.Get().(*[hashPiece]byte)
	defer pieces.Put(piece)
	h := sha256.New()
	for off := int64(0); off < size; {
		n, err := f.ReadAt(piece[:min(hashPiece, size-off)], off)
		h.Write(piece[:n])
		d.stats.read.Add(int64(n))
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		off += int64(n)
	}
	return h.Sum(mh.Multihash{mh.SHA2_256, sha256.Size}), nil
}

// hashPiece is how many bytes are copied and hashed at a time.
const hashPiece = 64 << 10

var pieces = sync.Pool{New: func() any { return new([hashPiece]byte) }}

// Quarantine moves the file of a block that is damaged into the folder to,
// under the same name; moved is false when it is there no more, or is sound: it
// may have been put anew. The move is durable when Quarantine returns.
func (d *Dir) Quarantine(ctx context.Context, h mh.Multihash, to disk.FS) (moved bool, err error) {
	if err := d.begin(ctx); err != nil {
		return false, err
	}
	defer d.leave()
	key := string(h)
	latch := d.sweeps.latches.Of(key)
	latch.Lock()
	defer latch.Unlock()
	if err := d.rehash(key); err == nil || errors.Is(err, ErrNotFound) {
		return false, nil
	}
	name := blockName(key)
	dir, err := d.folders.get(d.shard.Dir(blockKey(name)), false)
	if err != nil {
		return false, ignoreNotExist(err)
	}
	defer dir.release()
	info, err := dir.Stat(name)
	if err == nil {
		err = dir.Rename(name, to, name)
	}
	if err == nil {
		err = errors.Join(to.SyncDir(), dir.SyncDir())
	}
	if err != nil {
		return false, fmt.Errorf("store: quarantine %s: %w", keyString(key), err)
	}
	d.files.drop(key)
	d.pages.replaced(key)
	d.room.giveBack(info.Size)
	return true, nil
}

// ReadCopy reads a block from a folder that is no open store of this process:
// another store, which may be in use, or a folder with nothing but blocks. The
// bytes are as the CID says. Errors: ErrNotFound, ErrCorrupt.
func ReadCopy(root disk.FS, c cid.Cid) ([]byte, error) {
	key := hashKey(c)
	if len(key) < 2 || len(key) > maxHash {
		return nil, ErrNotFound
	}
	name := blockName(key)
	path := name
	text, err := readSmall(root, shardingName)
	if err == nil {
		var fn shard.Func
		if fn, err = shard.Parse(text); err == nil {
			path = fn.Dir(blockKey(name)) + "/" + name
		}
	} else {
		err = ignoreNotExist(err)
	}
	if err != nil {
		return nil, fmt.Errorf("store: copy of %s: %w", c, err)
	}
	f, err := root.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("store: copy of %s: %w", c, missing(err))
	}
	defer f.Close()
	b := make([]byte, MaxBlock+1)
	n, err := f.ReadAt(b, 0)
	if err == io.EOF {
		err = Verify(c.Hash(), b[:n])
	}
	if err != nil {
		return nil, fmt.Errorf("store: copy of %s: %w", c, err)
	}
	return b[:n:n], nil
}
