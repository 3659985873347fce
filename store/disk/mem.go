package disk

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"sort"
	"sync"
	"syscall"
)

// Mem is a file system in memory that knows what a power cut would leave of it:
// see [Mem.Crash]. It is for tests. All calls take one lock, so a crash falls
// between two calls, never into one.
type Mem struct {
	memDir
	w *world
}

// world is what all handles of one Mem share.
type world struct {
	mu       sync.Mutex
	root     *node
	dirty    map[*node]bool // files and folders with something not durable
	used     int64          // bytes in allocated pages
	capacity int64          // bytes; 0: no limit
}

// node is a file or a folder, with both what callers see and what is durable.
type node struct {
	mode fs.FileMode
	file *memPages // nil for folders

	// Folders: the names now, the durable names, and the changes between them in
	// the order in which they were made.
	names, durable map[string]*node
	changes        []*change
	nlink          int // names that refer to a file now
	handles        int // open handles; pages of an unlinked file go with the last
	lost, told     int // write-outs of a file that failed; those that some handle was told of
}

// change is one step from durable to current names of a folder, lost or kept
// as a whole. A rename inside a folder is one change; across folders it is two,
// of which the removal cannot survive without the addition (needs).
type change struct {
	in    *node            // the folder
	set   map[string]*node // nil: the name is gone
	needs *change          // in another folder; this one cannot survive without it
	done  bool             // durable

	wholeOnly bool // made by Name: SyncDir does not make it durable
}

// NewMem returns an empty file system without a limit of space.
func NewMem() *Mem {
	w := &world{dirty: map[*node]bool{}}
	w.root = newFolder(fs.ModeDir | 0o755)
	return newMem(w)
}

func newMem(w *world) *Mem { return &Mem{memDir: memDir{w: w, dir: w.root}, w: w} }

func newFolder(mode fs.FileMode) *node {
	return &node{mode: mode, names: map[string]*node{}, durable: map[string]*node{}}
}

// SetCapacity limits the bytes of allocated pages (4 KiB each); writing beyond
// fails with ENOSPC. 0 means no limit.
func (m *Mem) SetCapacity(n int64) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	m.w.capacity = n
}

// memDir is a handle of one folder.
type memDir struct {
	w      *world
	dir    *node
	closed bool
}

// find walks to the folder that holds name and returns it with the last element.
func (d *memDir) find(op, name string) (*node, string, error) {
	if d.closed {
		return nil, "", pathErr(op, name, fs.ErrClosed)
	}
	if !validName(name) {
		return nil, "", pathErr(op, name, syscall.EINVAL)
	}
	at := d.dir
	for {
		head, tail := splitFirst(name)
		if tail == "" {
			return at, head, nil
		}
		next := at.names[head]
		if next == nil {
			return nil, "", pathErr(op, name, syscall.ENOENT)
		}
		if next.file != nil {
			return nil, "", pathErr(op, name, syscall.ENOTDIR)
		}
		at, name = next, tail
	}
}

func splitFirst(name string) (head, tail string) {
	for i := range len(name) {
		if name[i] == '/' {
			return name[:i], name[i+1:]
		}
	}
	return name, ""
}

// get finds an existing file or folder; "." is the handle's own.
func (d *memDir) get(op, name string) (*node, error) {
	parent, last, err := d.find(op, name)
	if err != nil {
		return nil, err
	}
	if last == "." {
		return parent, nil
	}
	n := parent.names[last]
	if n == nil {
		return nil, pathErr(op, name, syscall.ENOENT)
	}
	return n, nil
}

// OpenFile implements [FS].
func (d *memDir) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	parent, last, err := d.find("open", name)
	if err != nil {
		return nil, err
	}
	n := parent.names[last]
	switch {
	case n != nil && flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		return nil, pathErr("open", name, syscall.EEXIST)
	case last == "." || n != nil && n.file == nil:
		return nil, pathErr("open", name, syscall.EISDIR)
	case n == nil && flag&os.O_CREATE == 0:
		return nil, pathErr("open", name, syscall.ENOENT)
	case n == nil:
		n = &node{mode: perm.Perm(), file: newMemPages()}
		d.w.change(parent, map[string]*node{last: n}, nil)
	}
	if flag&os.O_TRUNC != 0 {
		d.w.resize(n, 0)
	}
	n.handles++ // whose Sync tells of a failure before it, if no other has: as Linux 4.16 and later
	access := flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)
	return &memFile{w: d.w, n: n, name: name, told: n.told, read: access != os.O_WRONLY, write: access != os.O_RDONLY}, nil
}

// Sub implements [FS].
func (d *memDir) Sub(name string) (FS, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	n, err := d.get("open", name)
	if err != nil {
		return nil, err
	}
	if n.file != nil {
		return nil, pathErr("open", name, syscall.ENOTDIR)
	}
	return &memDir{w: d.w, dir: n}, nil
}

// Mkdir implements [FS].
func (d *memDir) Mkdir(name string, perm fs.FileMode) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	parent, last, err := d.find("mkdir", name)
	if err != nil {
		return err
	}
	if last == "." || parent.names[last] != nil {
		return pathErr("mkdir", name, syscall.EEXIST)
	}
	d.w.change(parent, map[string]*node{last: newFolder(fs.ModeDir | perm.Perm())}, nil)
	return nil
}

// Remove implements [FS].
func (d *memDir) Remove(name string) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	n, err := d.get("remove", name)
	if err != nil {
		return err
	}
	parent, last, _ := d.find("remove", name)
	switch {
	case last == ".":
		return pathErr("remove", name, syscall.EINVAL)
	case n.file == nil && len(n.names) > 0:
		return pathErr("remove", name, syscall.ENOTEMPTY)
	}
	d.w.change(parent, map[string]*node{last: nil}, nil)
	return nil
}

// Rename implements [FS].
func (d *memDir) Rename(oldname string, newdir FS, newname string) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	n, to, last, err := d.pair("rename", oldname, newdir, newname)
	if err != nil {
		return err
	}
	from, oldLast, _ := d.find("rename", oldname)
	old := to.names[last]
	switch {
	case old == n:
		return nil
	case old != nil && old.file == nil && n.file != nil:
		return pathErr("rename", newname, syscall.EISDIR)
	case old != nil && old.file != nil && n.file == nil:
		return pathErr("rename", newname, syscall.ENOTDIR)
	case old != nil && len(old.names) > 0:
		return pathErr("rename", newname, syscall.ENOTEMPTY)
	case from == to:
		d.w.change(from, map[string]*node{oldLast: nil, last: n}, nil)
	default:
		added := d.w.change(to, map[string]*node{last: n}, nil)
		d.w.change(from, map[string]*node{oldLast: nil}, added)
	}
	return nil
}

// Link implements [FS].
func (d *memDir) Link(oldname string, newdir FS, newname string) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	n, to, last, err := d.pair("link", oldname, newdir, newname)
	switch {
	case err != nil:
		return err
	case to.names[last] != nil:
		return pathErr("link", newname, syscall.EEXIST)
	case n.file == nil:
		return pathErr("link", oldname, syscall.EPERM)
	}
	d.w.change(to, map[string]*node{last: n}, nil)
	return nil
}

// pair finds what Rename and Link work on. The caller holds the lock.
func (d *memDir) pair(op, oldname string, newdir FS, newname string) (n, to *node, last string, err error) {
	dst, ok := newdir.(*memDir)
	if m, isRoot := newdir.(*Mem); isRoot {
		dst, ok = &m.memDir, true
	}
	if !ok || dst.w != d.w {
		return nil, nil, "", pathErr(op, newname, syscall.EXDEV)
	}
	if n, err = d.get(op, oldname); err != nil {
		return nil, nil, "", err
	}
	to, last, err = dst.find(op, newname)
	if err == nil && (last == "." || path.Base(oldname) == ".") {
		err = pathErr(op, newname, syscall.EINVAL)
	}
	return n, to, last, err
}

// ReadDir implements [FS].
func (d *memDir) ReadDir(name string) ([]Dirent, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	n, err := d.get("readdir", name)
	if err != nil {
		return nil, err
	}
	if n.file != nil {
		return nil, pathErr("readdir", name, syscall.ENOTDIR)
	}
	var entries []Dirent
	for name, child := range n.names {
		entries = append(entries, Dirent{Name: name, Dir: child.file == nil})
	}
	// Sorted, so that a run with a given seed can be repeated.
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name < entries[j].Name })
	return entries, nil
}

// Stat implements [FS].
func (d *memDir) Stat(name string) (Info, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	n, err := d.get("stat", name)
	if err != nil {
		return Info{}, err
	}
	info := Info{Mode: n.mode, Dir: n.file == nil}
	if n.file != nil {
		info.Size = n.file.size
	}
	return info, nil
}

// SyncDir implements [FS].
func (d *memDir) SyncDir() error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.closed {
		return pathErr("sync", ".", fs.ErrClosed)
	}
	d.w.syncDir(d.dir)
	return nil
}

// SyncFS implements [FS].
func (d *memDir) SyncFS() error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.closed {
		return pathErr("syncfs", ".", fs.ErrClosed)
	}
	for n := range d.w.dirty {
		if n.file != nil {
			n.file.sync()
			delete(d.w.dirty, n)
		} else {
			d.w.syncNames(n)
		}
	}
	return nil
}

// forget is called by Fault in place of a SyncFS that it lets fail.
func (d *memDir) forget() {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	for n := range d.w.dirty {
		if n.file != nil {
			n.file.forget()
			n.lost++
			delete(d.w.dirty, n)
		}
	}
}

// Usage implements [FS].
func (d *memDir) Usage() (Usage, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	total := d.w.capacity
	if total == 0 {
		total = 1 << 40
	}
	free := max(0, total-d.w.used)
	return Usage{Total: total, Free: free, Avail: free}, nil
}

// Close implements [FS].
func (d *memDir) Close() error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	if d.closed {
		return pathErr("close", ".", fs.ErrClosed)
	}
	d.closed = true
	return nil
}

// change applies a change of names to what callers see and remembers it.
func (w *world) change(dir *node, set map[string]*node, needs *change) *change {
	for name, n := range set {
		if old := dir.names[name]; old != nil {
			old.nlink--
			delete(dir.names, name)
			w.release(old)
		}
		if n != nil {
			n.nlink++
			dir.names[name] = n
		}
	}
	c := &change{in: dir, set: set, needs: needs}
	dir.changes = append(dir.changes, c)
	w.dirty[dir] = true
	return c
}

// release accounts for the pages of a file that nothing refers to any more.
func (w *world) release(n *node) {
	if n.file != nil && n.nlink == 0 && n.handles == 0 {
		w.used -= n.file.allocated()
	}
}

// syncNames makes all changes of one folder durable.
func (w *world) syncNames(dir *node) {
	for _, c := range dir.changes {
		c.apply()
	}
	dir.changes = nil
	delete(w.dirty, dir)
}

// syncDir is syncNames without the changes that SyncDir does not make durable.
func (w *world) syncDir(dir *node) {
	var left []*change
	for _, c := range dir.changes {
		if c.wholeOnly && !c.done {
			left = append(left, c)
			continue
		}
		c.apply()
		left = slices.DeleteFunc(left, func(l *change) bool { return overlap(l.set, c.set) })
	}
	dir.changes = left
	if len(left) == 0 {
		delete(w.dirty, dir)
	}
}

func overlap(a, b map[string]*node) bool {
	for name := range a {
		if _, ok := b[name]; ok {
			return true
		}
	}
	return false
}

// apply makes one change durable, after the one it cannot be without and all
// that came before that one in its folder.
func (c *change) apply() {
	if c.done {
		return
	}
	if c.needs != nil {
		for _, before := range c.needs.in.changes {
			before.apply()
			if before == c.needs {
				break
			}
		}
	}
	c.done = true
	for name, n := range c.set {
		if n == nil {
			delete(c.in.durable, name)
		} else {
			c.in.durable[name] = n
		}
	}
}
