// Package twin runs the same random operations on names in two folders, of
// which one is on a file system that is trusted, and compares what each call
// returns and, now and then, all that can be seen of the two trees.
package twin

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Options of Run.
type Options struct {
	Seed int64
	Ops  int // how many operations

	// Remount, when set, is called now and then, with no file open; after it
	// the trees must be equal still.
	Remount    func()
	DropCaches func()

	// NoDev: devices cannot be opened in the tested folder, which is mounted nodev.
	NoDev bool
}

// side is one of the two folders.
type side struct {
	root string
	open []int // descriptors of files, by slot; -1 where nothing is open
}

type run struct {
	t     testing.TB
	o     Options
	rnd   *rand.Rand
	sides [2]*side // trusted, tested
	log   []string
	n     int
	known []string // paths that existed some operations ago
	fresh int      // the operation before which known is looked up again
}

const slots = 8

// longName has as many bytes as a name may have.
var longName = strings.Repeat("n", 255)

// Run compares the folder tested with the folder trusted; both must exist and
// be empty.
func Run(t testing.TB, trusted, tested string, o Options) {
	t.Helper()
	r := &run{t: t, o: o, rnd: rand.New(rand.NewPCG(uint64(o.Seed), 1))}
	for i, root := range []string{trusted, tested} {
		r.sides[i] = &side{root: root, open: slices.Repeat([]int{-1}, slots)}
	}
	defer r.closeAll()
	for r.n = 0; r.n < o.Ops; r.n++ {
		what, op := r.draw()
		r.log = append(r.log, fmt.Sprintf("%d: %s", r.n, what))
		want, got := op(r.sides[0]), op(r.sides[1])
		if want != got {
			r.fail("trusted: %s, tested: %s", want, got)
		}
		r.log[len(r.log)-1] += ": " + want
		if r.n%200 == 199 {
			r.compareTrees()
		}
		switch {
		case r.o.Remount != nil && r.n%1500 == 1499:
			r.log = append(r.log, "remount")
			r.closeAll()
			r.o.Remount()
			r.compareTrees()
		case r.o.DropCaches != nil && r.n%1000 == 499:
			r.log = append(r.log, "drop caches")
			r.o.DropCaches()
			r.compareTrees()
		}
	}
	r.compareTrees()
}

func (r *run) fail(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("twin: seed %d, operation %d: %s\nbefore it:\n%s", r.o.Seed, r.n,
		fmt.Sprintf(format, args...), strings.ReplaceAll(strings.Join(r.log[max(0, len(r.log)-200):], "\n"), longName, "<255 n>"))
}

func (r *run) closeAll() {
	for _, s := range r.sides {
		for i := range s.open {
			s.close(i)
		}
	}
}

func (s *side) close(slot int) {
	if s.open[slot] >= 0 {
		unix.Close(s.open[slot])
		s.open[slot] = -1
	}
}

// path draws the path of something that exists, or one of one to three of few
// names.
func (r *run) path() string {
	if r.n >= r.fresh {
		r.fresh = r.n + 20
		r.known = r.known[:0]
		_ = filepath.WalkDir(r.sides[0].root, func(path string, _ fs.DirEntry, err error) error {
			if rel, _ := filepath.Rel(r.sides[0].root, path); err == nil && rel != "." {
				r.known = append(r.known, rel)
			}
			return nil
		})
	}
	if len(r.known) > 0 && r.rnd.IntN(5) < 2 {
		return r.known[r.rnd.IntN(len(r.known))]
	}
	return r.anyPath()
}

func (r *run) anyPath() string {
	names := make([]string, 1+r.rnd.IntN(3))
	for i := range names {
		switch n := r.rnd.IntN(60); n {
		case 0:
			names[i] = longName
		case 1:
			names[i] = longName + "n"
		case 2:
			names[i] = "\xff\x80 \n"
		case 3:
			names[i] = "é"
		case 4:
			names[i] = ".."
		default:
			names[i] = string(rune('a' + n%5))
		}
	}
	p := strings.Join(names, "/")
	if strings.HasPrefix(p, "..") { // not out of the folder
		p = "a/" + p
	}
	if strings.Count(p, "..") > 1 {
		p = strings.ReplaceAll(p, "..", "b")
	}
	if r.rnd.IntN(40) == 0 {
		p += "/"
	}
	return p
}

// errno is the outcome of a call without other results.
func errno(err error) string {
	var e syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return unix.ErrnoName(e)
	default:
		return err.Error()
	}
}

// compareTrees compares all that stat, readdir, readlink, listxattr and read
// say of both trees, and of the open files.
func (r *run) compareTrees() {
	r.t.Helper()
	want, got := r.sides[0].describe(r.t), r.sides[1].describe(r.t)
	for _, path := range slices.Sorted(keys(want, got)) {
		if want[path] != got[path] {
			r.fail("trees differ at %q:\ntrusted: %s\ntested:  %s", path, want[path], got[path])
		}
	}
}

func keys(ms ...map[string]string) func(func(string) bool) {
	all := map[string]bool{}
	for _, m := range ms {
		for k := range m {
			all[k] = true
		}
	}
	return func(yield func(string) bool) {
		for k := range all {
			if !yield(k) {
				return
			}
		}
	}
}

// describe maps each path to what can be seen of it. Hard links show as the
// least path with the same inode.
func (s *side) describe(t testing.TB) map[string]string {
	t.Helper()
	seen := map[string]string{}
	first := map[uint64]string{} // path of an inode
	err := filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(s.root, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("lstat %s: %w", path, err)
		}
		if d.Type() != (fileMode(st.Mode)).Type() && path != s.root {
			return fmt.Errorf("%s: type in the listing is %v, in stat %v", path, d.Type(), fileMode(st.Mode))
		}
		if _, ok := first[st.Ino]; !ok {
			first[st.Ino] = rel
		}
		text := fmt.Sprintf("mode %o, %d links, owner %d:%d, rdev %d, is %q", st.Mode, st.Nlink, st.Uid, st.Gid, st.Rdev, first[st.Ino])
		if rel == "." {
			text = "root" // its mode and times are those of two different folders
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if int64(len(b)) != st.Size {
				return fmt.Errorf("%s: %d bytes read, size %d", path, len(b), st.Size)
			}
			text += fmt.Sprintf(", %d bytes %x", st.Size, sha256.Sum256(b))
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(", %d bytes to %q", st.Size, target)
		}
		seen[rel] = text + xattrs(path)
		return nil
	})
	if err != nil {
		seen["error"] = strings.ReplaceAll(err.Error(), s.root, "")
	}
	for i, fd := range s.open {
		if fd < 0 {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			seen[fmt.Sprint("open ", i)] = err.Error()
			continue
		}
		b := make([]byte, st.Size+1)
		n, err := unix.Pread(fd, b, 0)
		seen[fmt.Sprint("open ", i)] = fmt.Sprintf("mode %o, %d links, %d bytes, %d read %x, %s",
			st.Mode, st.Nlink, st.Size, n, sha256.Sum256(b[:max(0, n)]), errno(err))
	}
	return seen
}

// fileMode is the type of a mode as package fs has it.
func fileMode(mode uint32) fs.FileMode {
	return map[uint32]fs.FileMode{
		unix.S_IFDIR: fs.ModeDir, unix.S_IFLNK: fs.ModeSymlink, unix.S_IFIFO: fs.ModeNamedPipe,
		unix.S_IFSOCK: fs.ModeSocket, unix.S_IFCHR: fs.ModeDevice | fs.ModeCharDevice, unix.S_IFBLK: fs.ModeDevice,
	}[mode&unix.S_IFMT]
}

// xattrs describes the user's attributes of a path.
func xattrs(path string) string {
	b := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, b)
	if err != nil {
		return ", xattrs: " + errno(err)
	}
	names := bytes.Split(b[:n], []byte{0})
	slices.SortFunc(names, bytes.Compare)
	var out strings.Builder
	for _, name := range names {
		if !bytes.HasPrefix(name, []byte("user.")) {
			continue
		}
		v := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, string(name), v)
		fmt.Fprintf(&out, ", %s=%x %s", name, sha256.Sum256(v[:max(0, n)]), errno(err))
	}
	return out.String()
}
