package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

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
	var buf []byte // for all of them: what is read is looked at once
	for _, e := range entries {
		if err := d.begin(ctx); err != nil {
			return err
		}
		buf, err = d.rehash(string(e.Hash), buf)
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

// rehash checks one block, in memory that it returns, perhaps larger. The call
// has begun.
func (d *Dir) rehash(key string, buf []byte) ([]byte, error) {
	if d.table.get(key) != nil {
		return buf, ErrNotFound
	}
	f, size, err := d.openBlock(key)
	if err != nil {
		return buf, err
	}
	defer f.Close()
	if int64(cap(buf)) < roundPages(size) {
		buf, _ = newPages(max(size, largeBlock))
	}
	b, err := d.readPast(f, size, buf[:roundPages(size)])
	if err != nil {
		return buf, err
	}
	got, err := hashLike(key, b)
	if err == nil && string(got) != key {
		err = d.corrupt(key, got, "")
	}
	return buf, err
}

// readPast reads size bytes into buf, which is whole pages, past the page cache
// if they are many.
func (d *Dir) readPast(f disk.File, size int64, buf []byte) ([]byte, error) {
	read := f.ReadAt
	if past, ok := f.(disk.PastReader); ok && size >= largeBlock && !d.opts.Buffered {
		read = past.ReadPast
	}
	n, err := read(buf, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	d.stats.read.Add(int64(n))
	return buf[:min(int64(n), size)], nil
}

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
	if _, err := d.rehash(key, nil); err == nil || errors.Is(err, ErrNotFound) {
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
