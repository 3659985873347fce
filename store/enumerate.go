package store

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"strings"
	"sync"

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
			if c.err != nil {
				yield(Entry{}, fmt.Errorf("store: list: %w", c.err))
				return
			}
			for _, e := range c.entries {
				if _, ok := seen[string(e.Hash)]; ok {
					continue
				}
				if !yield(e, nil) {
					return
				}
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

// readFolders reads folders in parallel, a little ahead of the consumer. The
// channel is closed at the end, or when ctx ends.
func (d *Dir) readFolders(ctx context.Context, dirs []string, sizes bool) <-chan chunk {
	out := make(chan chunk, 4)
	todo := make(chan string)
	go func() {
		defer close(todo)
		for _, name := range dirs {
			select {
			case todo <- name:
			case <-ctx.Done():
				return
			}
		}
	}()
	var wg sync.WaitGroup
	for range max(2, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for name := range todo {
				entries, err := d.readFolder(name, sizes)
				select {
				case out <- chunk{entries, err}:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	go func() {
		wg.Wait()
		close(out)
	}()
	return out
}

// readFolder lists the blocks in one folder.
func (d *Dir) readFolder(name string, sizes bool) ([]Entry, error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	dir, err := d.folders.get(name, false)
	if err != nil {
		return nil, ignoreNotExist(err)
	}
	defer dir.release()
	names, err := dir.ReadDir(".")
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(names))
	for _, n := range names {
		h, ok := parseName(n.Name)
		if !ok || n.Dir || d.shard.Dir(blockKey(n.Name)) != name {
			continue // not a block, or one that no Get would find
		}
		e := Entry{Hash: h}
		if sizes {
			info, err := dir.Stat(n.Name)
			if notExist(err) {
				continue // deleted meanwhile
			}
			if err != nil {
				return nil, err
			}
			e.Size = info.Size
		}
		entries = append(entries, e)
	}
	return entries, nil
}
