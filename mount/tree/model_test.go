package tree_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"

	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

// node is an inode of the model: a file system of maps and byte slices, which
// follows the manual pages and nothing else.
type node struct {
	ino     tree.Ino // in the tree under test
	kind    index.Kind
	perm    uint16
	data    []byte
	target  string
	entries map[string]*node
	parent  *node
	nlink   int
	xattrs  map[string]string
}

func newNode(kind index.Kind, perm uint16) *node {
	n := &node{kind: kind, perm: perm, nlink: 1, xattrs: map[string]string{}}
	if kind == index.Dir {
		n.entries, n.nlink = map[string]*node{}, 2
	}
	return n
}

func (n *node) dir() bool { return n.kind == index.Dir }

func (n *node) below(top *node) bool {
	for ; n != nil; n = n.parent {
		if n == top {
			return true
		}
	}
	return false
}

func (n *node) put(name string, c *node) {
	n.entries[name] = c
	if c.dir() {
		c.parent = n
		n.nlink++
	}
}

func (n *node) take(name string) *node {
	c := n.entries[name]
	delete(n.entries, name)
	if c.dir() {
		n.nlink--
	}
	return c
}

func (n *node) unlink(name string) error {
	c := n.entries[name]
	switch {
	case c == nil:
		return syscall.ENOENT
	case c.dir():
		return syscall.EISDIR
	}
	n.take(name).nlink--
	return nil
}

func (n *node) rmdir(name string) error {
	c := n.entries[name]
	switch {
	case c == nil:
		return syscall.ENOENT
	case !c.dir():
		return syscall.ENOTDIR
	case len(c.entries) > 0:
		return syscall.ENOTEMPTY
	}
	n.take(name).nlink = 0
	return nil
}

func (n *node) rename(from string, to *node, name string, flags tree.RenameFlags) error {
	src, dst := n.entries[from], to.entries[name]
	exchange := flags == tree.RenameExchange
	switch {
	case src == nil:
		return syscall.ENOENT
	case dst != nil && flags == tree.RenameNoReplace:
		return syscall.EEXIST
	case dst == nil && exchange:
		return syscall.ENOENT
	case src.dir() && to.below(src):
		return syscall.EINVAL
	case dst != nil && dst.dir() && n.below(dst):
		if exchange {
			return syscall.EINVAL
		}
		return syscall.ENOTEMPTY
	case src == dst:
		return nil
	}
	if exchange {
		n.take(from)
		to.take(name)
		to.put(name, src)
		n.put(from, dst)
		return nil
	}
	if dst != nil {
		switch {
		case !src.dir() && dst.dir():
			return syscall.EISDIR
		case src.dir() && !dst.dir():
			return syscall.ENOTDIR
		case dst.dir() && len(dst.entries) > 0:
			return syscall.ENOTEMPTY
		}
		to.take(name)
		if dst.dir() {
			dst.nlink = 0
		} else {
			dst.nlink--
		}
	}
	n.take(from)
	to.put(name, src)
	if flags == tree.RenameWhiteout {
		n.put(from, newNode(index.CharDev, 0))
	}
	return nil
}

// dump describes everything below n, one line a name, for comparison: with the
// contents of files or without.
func (n *node) dump(path string, b *strings.Builder, contents bool) {
	fmt.Fprintf(b, "%s ino=%d kind=%d perm=%o nlink=%d", path, n.ino, n.kind, n.perm, n.nlink)
	switch {
	case n.kind == index.File && contents:
		fmt.Fprintf(b, " size=%d sum=%x", len(n.data), sum(n.data))
	case n.kind == index.Symlink:
		fmt.Fprintf(b, " target=%s", n.target)
	}
	for _, k := range slices.Sorted(maps.Keys(n.xattrs)) {
		fmt.Fprintf(b, " %s=%q", k, n.xattrs[k])
	}
	b.WriteByte('\n')
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		n.entries[name].dump(path+"/"+name, b, contents)
	}
}

// world is a tree under test and the model that it must equal.
type world struct {
	*rig
	rng       *rand.Rand
	root      *node
	published func(*node) // hears of contents that a replacing rename published
}

func newWorld(r *rig, seed uint64) *world {
	w := &world{rig: r, rng: rand.New(rand.NewPCG(seed, 1)), root: newNode(index.Dir, 0o755), published: func(*node) {}}
	w.root.ino = tree.RootIno
	return w
}

func (w *world) all(want func(*node) bool) []*node {
	var out []*node
	seen := map[*node]bool{}
	var walk func(*node)
	walk = func(n *node) {
		if !seen[n] && want(n) {
			out = append(out, n)
		}
		seen[n] = true
		for _, name := range slices.Sorted(maps.Keys(n.entries)) {
			walk(n.entries[name])
		}
	}
	walk(w.root)
	return out
}

// pick chooses a node of a kind; nil when there is none.
func (w *world) pick(kind index.Kind) *node {
	l := w.all(func(n *node) bool { return kind == 0 || n.kind == kind })
	if len(l) == 0 {
		return nil
	}
	return l[w.rng.IntN(len(l))]
}

func (w *world) name() string { return fmt.Sprintf("n%d", w.rng.IntN(8)) }

// step does one random operation on both sides and compares the outcomes.
func (w *world) step() error {
	d, name := w.pick(index.Dir), w.name()
	var what string
	var want, got error
	switch k := w.rng.IntN(100); {
	case k < 25:
		kinds := []index.Kind{index.File, index.File, index.Dir, index.Dir, index.Symlink, index.Fifo}
		kind := kinds[w.rng.IntN(len(kinds))]
		what = fmt.Sprintf("create kind %d %d/%s", kind, d.ino, name)
		want, got = w.create(d, name, kind)
	case k < 33:
		n := w.pick(0)
		what = fmt.Sprintf("link %d -> %d/%s", n.ino, d.ino, name)
		want, got = w.link(n, d, name)
	case k < 43:
		what = fmt.Sprintf("unlink %d/%s", d.ino, name)
		want, got = d.unlink(name), w.tree.Unlink(d.ino, name)
	case k < 48:
		what = fmt.Sprintf("rmdir %d/%s", d.ino, name)
		want, got = d.rmdir(name), w.tree.Rmdir(d.ino, name)
	case k < 65:
		to, toName := w.pick(index.Dir), w.name()
		flags := []tree.RenameFlags{0, 0, 0, tree.RenameNoReplace, tree.RenameExchange, tree.RenameWhiteout}[w.rng.IntN(6)]
		what = fmt.Sprintf("rename %d/%s -> %d/%s flags %d", d.ino, name, to.ino, toName, flags)
		want, got = w.rename(d, name, to, toName, flags)
	case k < 90:
		what, got = w.change(w.pick(index.File))
	default:
		n := w.pick(0)
		what = fmt.Sprintf("attributes of %d", n.ino)
		got = w.attributes(n)
	}
	if errno(want) != errno(got) {
		return fmt.Errorf("%s: got %v, want %v", what, got, want)
	}
	return nil
}

func (w *world) create(d *node, name string, kind index.Kind) (want, got error) {
	n := newNode(kind, 0o640)
	var a tree.Attr
	if kind == index.Symlink {
		n.perm, n.target = 0o777, fmt.Sprintf("target-%d", w.rng.IntN(100))
		a, got = w.tree.Symlink(tree.Cred{}, d.ino, name, n.target)
	} else {
		a, got = w.tree.Create(tree.Cred{Umask: 0o027}, d.ino, name, tree.Node{Kind: kind, Perm: 0o667})
	}
	if d.entries[name] != nil {
		return syscall.EEXIST, got
	}
	n.ino = a.Ino
	d.put(name, n)
	w.release(a, got)
	return nil, got
}

func (w *world) rename(d *node, name string, to *node, toName string, flags tree.RenameFlags) (want, got error) {
	src, replaced := d.entries[name], to.entries[toName]
	want, got = d.rename(name, to, toName, flags), w.tree.Rename(w.ctx, tree.Cred{}, d.ino, name, to.ino, toName, flags)
	if want == nil && got == nil && replaced != nil && src != replaced {
		w.published(src)
		if flags == tree.RenameExchange {
			w.published(replaced)
		}
	}
	if left := d.entries[name]; flags == tree.RenameWhiteout && left != src && got == nil {
		a, err := w.tree.Lookup(d.ino, name)
		must(w.t, err)
		left.ino = a.Ino
		w.release(a, nil)
	}
	return want, got
}

func (w *world) link(n, d *node, name string) (want, got error) {
	a, got := w.tree.Link(n.ino, d.ino, name)
	w.release(a, got)
	switch {
	case n.dir():
		return syscall.EPERM, got
	case d.entries[name] != nil:
		return syscall.EEXIST, got
	}
	d.put(name, n)
	n.nlink++
	return nil, got
}

// release forgets the reference half of the time, so that inodes are both kept
// in memory and read again.
func (w *world) release(a tree.Attr, err error) {
	if err == nil && w.rng.IntN(2) == 0 {
		w.tree.Forget(a.Ino, 1)
	} else if err == nil {
		w.held = append(w.held, a.Ino)
	}
}

// change changes the contents of a file.
func (w *world) change(n *node) (string, error) {
	if n == nil {
		return "", nil
	}
	at := int64(w.rng.IntN(3 * chunk))
	switch w.rng.IntN(7) {
	case 2:
		return fmt.Sprintf("allocate %d to %d", n.ino, at+1), w.allocate(n, at+1)
	case 3:
		return fmt.Sprintf("punch %d bytes of %d at %d", chunk, n.ino, at), w.punch(n, at, chunk)
	case 0:
		return fmt.Sprintf("truncate %d to %d", n.ino, at), w.truncate(n, at)
	case 1:
		_, err := w.tree.Seal(w.ctx, n.ino)
		return fmt.Sprintf("seal %d", n.ino), err
	}
	size := 1 + w.rng.IntN(chunk+chunk/2)
	return fmt.Sprintf("write %d bytes to %d at %d", size, n.ino, at), w.write(n, at, size)
}

// resize changes the model's contents; they may not be changed in place, as
// they are compared with later.
func (n *node) resize(size int64) {
	data := make([]byte, size)
	copy(data, n.data)
	n.data = data
}

func (w *world) truncate(n *node, size int64) error {
	n.resize(size)
	_, err := w.tree.Setattr(w.ctx, n.ino, tree.SetAttr{Mask: tree.SetSize, Size: size})
	return err
}

func (w *world) write(n *node, off int64, size int) error {
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(w.rng.IntN(3))
	}
	n.resize(max(off+int64(size), int64(len(n.data))))
	copy(n.data[off:], p)
	_, err := w.tree.Write(w.ctx, n.ino, p, off, nil)
	return err
}

func (w *world) allocate(n *node, end int64) error {
	n.resize(max(end, int64(len(n.data))))
	return w.tree.Fallocate(w.ctx, n.ino, 0, 0, end, nil)
}

func (w *world) punch(n *node, off, size int64) error {
	n.resize(int64(len(n.data)))
	if off < int64(len(n.data)) {
		clear(n.data[off:min(off+size, int64(len(n.data)))])
	}
	const punch = 0x02 | 0x01 // FALLOC_FL_PUNCH_HOLE|KEEP_SIZE
	return w.tree.Fallocate(w.ctx, n.ino, punch, off, size, nil)
}

func (w *world) attributes(n *node) error {
	if w.rng.IntN(2) == 0 && n.kind != index.Symlink {
		return w.chmod(n, uint16(w.rng.IntN(0o1000)))
	}
	key := fmt.Sprintf("user.k%d", w.rng.IntN(3))
	if _, ok := n.xattrs[key]; ok {
		delete(n.xattrs, key)
		return w.tree.Removexattr(n.ino, key)
	}
	return w.setxattr(n, key, fmt.Sprint(w.rng.IntN(1000)))
}

func (w *world) chmod(n *node, perm uint16) error {
	n.perm = perm
	_, err := w.tree.Setattr(w.ctx, n.ino, tree.SetAttr{Mask: tree.SetPerm, Perm: perm})
	return err
}

func (w *world) setxattr(n *node, key, value string) error {
	n.xattrs[key] = value
	return w.tree.Setxattr(n.ino, key, []byte(value), 0, false)
}

func errno(err error) syscall.Errno {
	var e syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e
	case errors.Is(err, fs.ErrNotExist):
		return syscall.ENOENT
	case errors.Is(err, fs.ErrExist):
		return syscall.EEXIST
	}
	return syscall.EIO
}
