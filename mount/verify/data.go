package verify

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"
	"golang.org/x/sync/errgroup"

	"cafs/store"
)

// saveEvery is how much of the reading an interruption may cost.
const saveEvery = 5 * time.Second

// state is where an interrupted run was, as a file of JSON.
type state struct {
	Begun  time.Time `json:"begun"`
	Folder string    `json:"folder"` // this one and those before it are done
	Blocks int64     `json:"blocks"`
	Bytes  int64     `json:"bytes"`
	Bad    []found   `json:"bad,omitempty"`
}

type found struct {
	Hash    mh.Multihash `json:"hash"`
	Problem Problem      `json:"problem"`
}

// reading is the reading of all blocks, folder by folder, several at once.
type reading struct {
	*run
	folders []string

	mu    sync.Mutex
	next  int      // the first folder that nobody reads yet
	done  []*state // by folder, of those that are done
	upTo  int      // all folders before this one are done
	saved time.Time
	part  state // of those
}

// data reads and hashes every block.
func (v *run) data(ctx context.Context) error {
	folders, err := v.Store.Folders()
	if err != nil {
		return err
	}
	d := &reading{run: v, folders: folders, done: make([]*state, len(folders)), saved: time.Now()}
	d.part.Begun = v.r.Begun
	if v.Resume {
		if err := d.resume(); err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	for range 2 * runtime.GOMAXPROCS(0) { // some read while others hash
		g.Go(func() error { return d.work(gctx) })
	}
	err = g.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		return errors.Join(err, d.save())
	}
	if err := os.Remove(v.State); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *reading) work(ctx context.Context) error {
	for {
		d.mu.Lock()
		i := d.next
		d.next++
		d.mu.Unlock()
		if i >= len(d.folders) {
			return nil
		}
		var read state
		err := d.Store.Rehash(ctx, d.folders[i], func(e store.Entry, err error) error {
			read.Blocks, read.Bytes = read.Blocks+1, read.Bytes+e.Size
			d.progress(func(r *Report) { r.Blocks++; r.Bytes += e.Size })
			if err != nil {
				p := problemOf(err)
				d.badBlock(cid.NewCidV1(cid.Raw, e.Hash), p)
				read.Bad = append(read.Bad, found{e.Hash, p})
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := d.finish(i, read); err != nil {
			return err
		}
	}
}

// finish notes that a folder is done.
func (d *reading) finish(i int, read state) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.done[i] = &read
	for ; d.upTo < len(d.done) && d.done[d.upTo] != nil; d.upTo++ {
		s := d.done[d.upTo]
		d.part.Blocks, d.part.Bytes, d.part.Bad = d.part.Blocks+s.Blocks, d.part.Bytes+s.Bytes, append(d.part.Bad, s.Bad...)
	}
	part := float64(d.upTo) / float64(len(d.folders))
	d.progress(func(r *Report) { r.Part = part })
	if time.Since(d.saved) < saveEvery {
		return nil
	}
	d.saved = time.Now()
	return d.save()
}

// save writes the state. It needs no sync: without it the next run begins anew.
func (d *reading) save() error {
	if d.upTo == 0 {
		return nil
	}
	d.part.Folder = d.folders[d.upTo-1]
	b, err := json.Marshal(d.part)
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.State+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(d.State+".new", d.State)
}

// resume takes over what an interrupted run did. A state that cannot be read
// counts as none.
func (d *reading) resume() error {
	b, err := os.ReadFile(d.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	var s state
	if json.Unmarshal(b, &s) != nil {
		return nil
	}
	at, exact := slices.BinarySearch(d.folders, s.Folder)
	if exact {
		at++
	}
	d.next, d.upTo, d.part = at, at, s
	for _, f := range s.Bad { // it may have been put anew since
		if _, err := d.Store.Get(context.Background(), cid.NewCidV1(cid.Raw, f.Hash)); err != nil && !errors.Is(err, store.ErrNotFound) {
			d.badBlock(cid.NewCidV1(cid.Raw, f.Hash), problemOf(err))
		}
	}
	d.progress(func(r *Report) {
		r.Blocks, r.Bytes, r.Begun, r.Resumed = s.Blocks, s.Bytes, s.Begun, true
	})
	return nil
}
