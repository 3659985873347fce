package store

import (
	"errors"
	"io/fs"
	"path"
	"sync"
	"sync/atomic"

	"cafs/store/disk"
)

// maxFolders bounds the kept folder handles. The default sharding function has
// 1024 folders, so in practice each is walked to once.
const maxFolders = 1100

// folders keeps the handles of shard folders, so that a block is one openat
// away. Handles in use are counted; a random idle one gives way to a new one.
type folders struct {
	root disk.FS

	mu   sync.RWMutex
	open map[string]*folder

	// parents are the folders in which others were made whose names are not
	// durable yet. syncMu is held while they are flushed, so that a barrier
	// that finds none left knows that the flush is over, and how it ended.
	syncMu  sync.Mutex
	lost    error // of the first flush of parents that failed
	mkMu    sync.Mutex
	parents map[string]struct{}
}

type folder struct {
	disk.FS
	path string
	refs atomic.Int32
}

func (f *folder) release() { f.refs.Add(-1) }

func (f *folders) init(root disk.FS) {
	f.root = root
	f.open = map[string]*folder{}
	f.parents = map[string]struct{}{}
}

// get returns the folder at name, which is released after use. Without create
// the error of a missing one matches fs.ErrNotExist.
func (f *folders) get(name string, create bool) (*folder, error) {
	f.mu.RLock()
	d, ok := f.open[name]
	if ok {
		d.refs.Add(1)
	}
	f.mu.RUnlock()
	if ok {
		return d, nil
	}
	sub, err := f.root.Sub(name)
	if create && notExist(err) {
		if err = f.mkdir(name); err == nil {
			sub, err = f.root.Sub(name)
		}
	}
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if d, ok := f.open[name]; ok { // another was faster
		d.refs.Add(1)
		return d, sub.Close()
	}
	if len(f.open) >= maxFolders {
		f.evict()
	}
	d = &folder{FS: sub, path: name}
	d.refs.Store(1)
	f.open[name] = d
	return d, nil
}

// evict requires mu. When every handle is in use there are for a while more.
func (f *folders) evict() {
	for name, d := range f.open {
		if d.refs.Load() == 0 {
			delete(f.open, name)
			d.Close()
			return
		}
	}
}

// mkdir makes a folder and those above it. The lock makes that and the note in
// parents one step: whoever finds the folder also finds the note, or waits for
// the one that took it.
func (f *folders) mkdir(name string) error {
	f.mkMu.Lock()
	defer f.mkMu.Unlock()
	return f.mkdirLocked(name)
}

func (f *folders) mkdirLocked(name string) error {
	parent := path.Dir(name)
	f.parents[parent] = struct{}{}
	err := f.root.Mkdir(name, dirPerm)
	if notExist(err) && parent != "." {
		if err = f.mkdirLocked(parent); err == nil {
			err = f.root.Mkdir(name, dirPerm)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// syncParents makes the names of all folders made so far durable. A failure is
// for ever, also for those whose folders somebody else's call had taken over.
func (f *folders) syncParents() error {
	f.syncMu.Lock()
	defer f.syncMu.Unlock()
	f.mkMu.Lock()
	taken := f.parents
	f.parents = map[string]struct{}{}
	f.mkMu.Unlock()
	for name := range taken {
		if f.lost == nil {
			f.lost = f.syncDir(name)
		}
	}
	return f.lost
}

func (f *folders) syncDir(name string) error {
	if name == "." {
		return f.root.SyncDir()
	}
	d, err := f.get(name, false)
	if err != nil {
		return err
	}
	defer d.release()
	return d.SyncDir()
}

func (f *folders) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, d := range f.open {
		d.Close()
		delete(f.open, name)
	}
}
