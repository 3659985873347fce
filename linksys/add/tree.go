package add

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"cafs/linksys/unixfs"
)

// AddTree adds the directory dir, open for reading, and everything below it.
// Each name is opened relative to its directory and never through a symbolic
// link, which is added as such: nothing outside the tree can be reached, however
// it changes meanwhile. A directory's node is made as soon as its last entry
// is. The first error ends it. AddTree does not close dir.
func (im *Importer) AddTree(ctx context.Context, dir *os.File) (unixfs.Root, error) {
	// A descriptor of our own: the caller's keeps its position in the listing.
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return unixfs.Root{}, fmt.Errorf("add: %s: %w", dir.Name(), err)
	}
	root := &openDir{f: os.NewFile(uintptr(fd), dir.Name()), pending: 1, empty: true}
	g, gctx := errgroup.WithContext(ctx)
	t := &treeAdd{im: im, ctx: gctx, jobs: make(chan fileJob, im.o.Workers)}
	for range im.o.Workers {
		g.Go(t.work)
	}
	g.Go(func() error {
		defer close(t.jobs)
		return t.list(root)
	})
	err = g.Wait()
	t.closeAll()
	if err != nil {
		return unixfs.Root{}, err
	}
	return t.root, nil
}

// largeFile: a file of at least this many bytes is hashed by several workers.
const largeFile = 16 << 20

// treeAdd adds one tree: one goroutine lists, the others read files.
type treeAdd struct {
	im   *Importer
	ctx  context.Context
	jobs chan fileJob
	root unixfs.Root // set when the top directory is done

	mu   sync.Mutex // guards open
	open map[*openDir]struct{}
}

// openDir is a directory whose entries are being added.
type openDir struct {
	parent *openDir // nil at the top
	name   string
	f      *os.File

	mu      sync.Mutex // guards the rest
	entries []unixfs.Entry
	pending int // entries not added yet, and one for the listing
	empty   bool
}

type fileJob struct {
	dir  *openDir
	name string
}

func (d *openDir) path(name string) string {
	for ; d != nil; d = d.parent {
		name = path.Join(d.name, name)
	}
	return name
}

// list adds a directory's entries and descends into those that are directories.
func (t *treeAdd) list(d *openDir) error {
	t.track(d, true)
	for {
		batch, err := d.f.ReadDir(1024)
		for _, e := range batch {
			if err := t.entry(d, e); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return t.done(d)
		}
		if err != nil {
			return t.failed(d, "", err)
		}
	}
}

func (t *treeAdd) entry(d *openDir, e fs.DirEntry) error {
	if err := t.ctx.Err(); err != nil {
		return err
	}
	name := e.Name()
	if !t.im.o.Hidden && strings.HasPrefix(name, ".") {
		return nil
	}
	switch e.Type() {
	case 0:
		d.add(1)
		select {
		case t.jobs <- fileJob{d, name}:
			return nil
		case <-t.ctx.Done():
			return t.ctx.Err()
		}
	case fs.ModeDir:
		fd, err := unix.Openat(int(d.f.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return t.failed(d, name, err)
		}
		sub := &openDir{parent: d, name: name, f: os.NewFile(uintptr(fd), name), pending: 1, empty: true}
		if t.im.o.Enter != nil {
			if err := t.im.o.Enter(d.path(name), sub.f); err != nil {
				sub.f.Close()
				return err
			}
		}
		d.add(1)
		return t.list(sub)
	case fs.ModeSymlink:
		return t.symlink(d, name)
	}
	if t.im.o.Skipped != nil {
		t.im.o.Skipped(d.path(name))
	}
	return nil
}

func (d *openDir) add(n int) {
	d.mu.Lock()
	d.pending += n
	d.empty = false
	d.mu.Unlock()
}

func (t *treeAdd) symlink(d *openDir, name string) error {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(d.f.Fd()), name, buf)
	if err != nil {
		return t.failed(d, name, err)
	}
	var st unix.Stat_t
	if t.im.o.PreserveMtime {
		if err := unix.Fstatat(int(d.f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return t.failed(d, name, err)
		}
	}
	stat := t.stat(&st)
	stat.Mode = 0 // Kubo gives links a time only
	root, err := t.im.symlink(t.ctx, string(buf[:n]), stat)
	if err != nil {
		return t.failed(d, name, err)
	}
	d.add(1)
	return t.added(d, name, root)
}

// stat is what of st is stored in nodes.
func (t *treeAdd) stat(st *unix.Stat_t) unixfs.Stat {
	return t.im.stat(st.Mode, time.Unix(st.Mtim.Unix()))
}

// work adds files until there are no more.
func (t *treeAdd) work() error {
	for j := range t.jobs {
		if err := t.file(j); err != nil {
			return err
		}
	}
	return nil
}

// file opens and adds one file. O_NONBLOCK: a FIFO put in its place must not
// hold us up.
func (t *treeAdd) file(j fileJob) error {
	fd, err := unix.Openat(int(j.dir.f.Fd()), j.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return t.failed(j.dir, j.name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return t.failed(j.dir, j.name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return t.failed(j.dir, j.name, errors.New("is no file any more"))
	}
	workers := 1
	if st.Size >= largeFile {
		workers = t.im.o.Workers
	}
	root, err := t.im.file(t.ctx, fdReader(fd), t.stat(&st), workers)
	if err != nil {
		return t.failed(j.dir, j.name, err)
	}
	return t.added(j.dir, j.name, root)
}

// fdReader reads a file without the runtime poller, which small files would pay for.
type fdReader int

func (fd fdReader) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(fd), p)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (t *treeAdd) failed(d *openDir, name string, err error) error {
	return fmt.Errorf("add: %q: %w", d.path(name), err)
}

// added notes a finished entry of d.
func (t *treeAdd) added(d *openDir, name string, root unixfs.Root) error {
	d.mu.Lock()
	d.entries = append(d.entries, unixfs.Entry{Name: name, Cid: root.Cid, Tsize: root.Tsize})
	d.mu.Unlock()
	return t.done(d)
}

// done notes that an entry, or the listing, is finished, and makes the nodes of
// all directories that this completes.
func (t *treeAdd) done(d *openDir) error {
	for {
		d.mu.Lock()
		d.pending--
		last := d.pending == 0
		d.mu.Unlock()
		if !last {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(d.f.Fd()), &st); err != nil {
			return t.failed(d, "", err)
		}
		t.track(d, false)
		if d.empty && t.im.o.NoEmptyDirs && d.parent != nil {
			d = d.parent
			continue
		}
		root, err := t.im.dir(t.ctx, d.entries, t.stat(&st))
		if err != nil {
			return t.failed(d, "", err)
		}
		if d.parent == nil {
			t.root = root
			return nil
		}
		p := d.parent
		p.mu.Lock()
		p.entries = append(p.entries, unixfs.Entry{Name: d.name, Cid: root.Cid, Tsize: root.Tsize})
		p.mu.Unlock()
		d = p
	}
}

// track keeps the list of open directories, and closes those that leave it.
func (t *treeAdd) track(d *openDir, open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if open {
		if t.open == nil {
			t.open = make(map[*openDir]struct{})
		}
		t.open[d] = struct{}{}
		return
	}
	delete(t.open, d)
	d.f.Close()
}

// closeAll closes what an error left open, after all goroutines have ended.
func (t *treeAdd) closeAll() {
	for d := range t.open {
		d.f.Close()
	}
	clear(t.open)
}
