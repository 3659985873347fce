package store

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"cafs/store/disk"

	mh "github.com/multiformats/go-multihash"
)

// chunk is a bunch of entries on its way from a reader to the consumer.
type chunk struct {
	entries []Entry
	err     error
}

// All implements [Enumerator]. Blocks put or deleted meanwhile may be in it or
// not; every other one is in it once. Memory is that of a few shard folders.
func (d *Dir) All(ctx context.Context) iter.Seq2[Entry, error] { return d.list(ctx, true) }

// Keys is All without sizes, which saves a stat for every block.
func (d *Dir) Keys(ctx context.Context) iter.Seq2[mh.Multihash, error] {
	return func(yield func(mh.Multihash, error) bool) {
		for e, err := range d.list(ctx, false) {
			if !yield(e.Hash, err) {
				return
			}
		}
	}
}

// Totals count a store's blocks.
type Totals struct{ Blocks, Bytes int64 }

// Total counts the store in one pass.
func (d *Dir) Total(ctx context.Context) (Totals, error) {
	var t Totals
	for e, err := range d.All(ctx) {
		if err != nil {
			return Totals{}, err
		}
		t.Blocks++
		t.Bytes += e.Size
	}
	return t, nil
}

func (d *Dir) list(ctx context.Context, sizes bool) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		pending, dirs, err := d.listBegin()
		if err != nil {
			yield(Entry{}, fmt.Errorf("store: list: %w", err))
			return
		}
		seen := make(map[string]struct{}, len(pending))
		for _, e := range pending {
			seen[string(e.Hash)] = struct{}{}
			if !yield(e, nil) {
				return
			}
		}
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		for c := range d.readFolders(ctx, dirs, sizes) {
			for _, e := range c.entries {
				if len(seen) > 0 {
					if _, ok := seen[string(e.Hash)]; ok {
						continue
					}
				}
				if !yield(e, nil) {
					return
				}
			}
			if c.err != nil {
				yield(Entry{}, fmt.Errorf("store: list: %w", c.err))
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(Entry{}, fmt.Errorf("store: list: %w", err))
		}
	}
}

// listBegin takes the pending blocks first: one that leaves the table after
// that has a name by the time its folder is read.
func (d *Dir) listBegin() (pending []Entry, dirs []string, err error) {
	if err := d.enter(); err != nil {
		return nil, nil, err
	}
	defer d.leave()
	d.table.each(func(e *entry) { pending = append(pending, Entry{mh.Multihash(e.key), e.size}) })
	dirs, err = shardFolders(d.root, d.shard.Levels())
	return pending, dirs, err
}

// shardFolders lists the folders that may hold blocks.
func shardFolders(root disk.FS, levels int) ([]string, error) {
	tops, err := root.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, t := range tops {
		if !t.Dir || strings.HasPrefix(t.Name, ".") {
			continue
		}
		if levels == 1 {
			dirs = append(dirs, t.Name)
			continue
		}
		subs, err := root.ReadDir(t.Name)
		if err != nil && !notExist(err) {
			return nil, err
		}
		for _, s := range subs {
			if s.Dir {
				dirs = append(dirs, t.Name+"/"+s.Name)
			}
		}
	}
	return dirs, nil
}

// chunkLen is about how many entries travel at once: waking the consumer costs
// more than listing a small folder.
const chunkLen = 1024

// readFolders reads folders in parallel, a little ahead of the consumer. The
// channel is closed at the end, or when ctx ends.
func (d *Dir) readFolders(ctx context.Context, dirs []string, sizes bool) <-chan chunk {
	out := make(chan chunk, 4)
	var next atomic.Int64
	read := func() {
		var c chunk
		for ctx.Err() == nil && c.err == nil {
			i := int(next.Add(1)) - 1
			if i >= len(dirs) {
				break
			}
			c.entries, c.err = d.readFolder(dirs[i], sizes, c.entries)
			if len(c.entries) >= chunkLen {
				select {
				case out <- chunk{entries: c.entries}:
				case <-ctx.Done():
				}
				c.entries = make([]Entry, 0, chunkLen+chunkLen/4)
			}
		}
		select {
		case out <- c:
		case <-ctx.Done():
		}
	}
	var wg sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)) {
		wg.Go(read)
	}
	go func() {
		wg.Wait()
		close(out)
	}()
	return out
}

// readFolder adds the blocks in one folder to entries.
func (d *Dir) readFolder(name string, sizes bool, entries []Entry) ([]Entry, error) {
	if err := d.enter(); err != nil {
		return entries, err
	}
	defer d.leave()
	dir, err := d.folders.get(name, false)
	if err != nil {
		return entries, ignoreNotExist(err)
	}
	defer dir.release()
	before := len(entries)
	var hashes arena
	err = disk.EachName(dir.FS, ".", func(fileName []byte, isDir bool) error {
		h, ok := hashes.parse(fileName)
		if !ok || isDir || !d.inPlace(fileName, name) {
			return nil // not a block, or one that no Get would find
		}
		entries = append(entries, Entry{Hash: h})
		return nil
	})
	if err != nil || !sizes {
		return entries, err
	}
	kept := entries[:before]
	for _, e := range entries[before:] {
		info, err := dir.Stat(blockName(string(e.Hash)))
		if notExist(err) {
			continue // deleted meanwhile
		}
		if err != nil {
			return kept, err
		}
		kept = append(kept, Entry{Hash: e.Hash, Size: info.Size})
	}
	return kept, nil
}

// inPlace tells whether the folder is where the file is looked for.
func (d *Dir) inPlace(fileName []byte, folder string) bool {
	key := blockKey(unsafe.String(unsafe.SliceData(fileName), len(fileName))) // for this call
	return d.shard.Dir(key) == folder
}

// arena keeps the multihashes of a folder in few allocations.
type arena struct{ free []byte }

// parse is parseName for a name in a buffer.
func (a *arena) parse(name []byte) (mh.Multihash, bool) {
	text, ok := bytes.CutSuffix(name, []byte(suffix))
	if !ok || len(text) > maxName {
		return nil, false
	}
	n := len(text) * 5 / 8
	if len(a.free) < n {
		a.free = make([]byte, 4<<10)
	}
	h := a.free[:n:n]
	if !decodeName(h, text) {
		return nil, false
	}
	a.free = a.free[n:]
	return h, true
}
