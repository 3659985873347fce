// Package posix tells what file system calls do to objects of every type,
// owner and mode, for users that may and may not: the error, the state that
// is left behind, and whose times moved. Its tests run the same calls on a
// tmpfs and on a mount, as root and as two ordinary users, and compare.
package posix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// Case is one call in one situation: a folder "p" that holds the target "t",
// a file "o", an empty folder "e" and a folder "f" that is not empty.
type Case struct {
	Call       string
	Type       string // of the target
	Mode       uint32 // of the target, 07777 bits
	Owner      int    // of the target
	ParentMode uint32
	ParentUid  int
	Acl        string // "", "access" (on the target), "default" (on the parent)
	User       string // who calls
}

func (c Case) String() string {
	return fmt.Sprintf("%s on %s (mode %o, owner %d, parent %o of %d, acl %q) as %s",
		c.Call, c.Type, c.Mode, c.Owner, c.ParentMode, c.ParentUid, c.Acl, c.User)
}

// Owns says whether the caller owns the target, or is root.
func (c Case) Owns() bool {
	switch c.User {
	case "A", "A in B's group":
		return c.Owner == harness.UserA
	case "B", "B in A's group":
		return c.Owner == harness.UserB
	}
	return true
}

// The values that each field of a Case can take.
var (
	Types       = []string{"file", "folder", "full folder", "missing", "symlink", "symlink to folder", "dangling symlink", "symlink loop", "fifo", "socket", "device"}
	Modes       = []uint32{0o644, 0, 0o400, 0o200, 0o100, 0o666, 0o777, 0o755, 0o4755, 0o2755, 0o2644, 0o2666, 0o6777, 0o1777, 0o060, 0o006, 0o6711}
	ParentModes = []uint32{0o755, 0o777, 0o1777, 0o555, 0o300, 0, 0o2777, 0o711, 0o770}
	Owners      = []int{harness.UserA, harness.UserB, 0}
	Acls        = []string{"", "", "", "access", "default"}
	Users       = []string{"root", "A", "B", "B in A's group", "A in B's group"}
)

// as runs f with the credentials of a user of Users.
func as(user string, f func()) {
	const a, b = harness.UserA, harness.UserB
	switch user {
	case "root":
		f()
	case "A":
		harness.AsUser(a, a, nil, f)
	case "B":
		harness.AsUser(b, b, nil, f)
	case "B in A's group":
		harness.AsUser(b, b, []int{a}, f)
	case "A in B's group":
		harness.AsUser(a, a, []int{b}, f)
	}
}

// Run makes the call in a folder that Prepare has made, and describes its
// outcome. A clock tick must lie between the two, or a time that was set
// looks like one that did not move.
func (c Case) Run(dir string) string {
	call := Calls[c.Call]
	before := look(dir)
	var result string
	as(c.User, func() { result = call(dir + "/p/") })
	return result + after(before, look(dir))
}

// Tick waits until the clock that file systems take their times from has
// moved.
func Tick() {
	var start, now unix.Timespec
	const coarse = unix.CLOCK_REALTIME_COARSE
	for _ = unix.ClockGettime(coarse, &start); now == start || now.Sec == 0; _ = unix.ClockGettime(coarse, &now) {
	}
}

// Calls makes each call on the folder p, whose path ends with a slash.
var Calls = map[string]func(p string) string{}

// CallNames are the keys of Calls, sorted.
func CallNames() []string {
	var names []string
	for name := range Calls {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// old is the time that everything has before the call.
var old = []unix.Timespec{{Sec: 1_000_000_000, Nsec: 1}, {Sec: 1_000_000_000, Nsec: 2}}

// Prepare makes the situation in the new folder dir, which needs root.
func (c Case) Prepare(dir string) error {
	p, t := dir+"/p", dir+"/p/t"
	errs := []error{
		unix.Mkdir(dir, 0o755),
		unix.Mkdir(p, 0o755),
		os.WriteFile(p+"/o", []byte("other"), 0o644),
		unix.Mkdir(p+"/e", 0o755),
		unix.Mkdir(p+"/f", 0o755),
		os.WriteFile(p+"/f/x", nil, 0o644),
		unix.Lchown(p+"/o", c.Owner, c.Owner),
		unix.Lchown(p+"/e", c.Owner, c.Owner),
	}
	switch c.Type {
	case "missing":
	case "file":
		errs = append(errs, os.WriteFile(t, []byte("content"), 0o644))
	case "folder", "full folder":
		errs = append(errs, unix.Mkdir(t, 0o755))
		if c.Type == "full folder" {
			errs = append(errs, os.WriteFile(t+"/x", nil, 0o644), unix.Lchown(t+"/x", c.Owner, c.Owner))
		}
	case "symlink":
		errs = append(errs, unix.Symlink("o", t))
	case "symlink to folder":
		errs = append(errs, unix.Symlink("f", t))
	case "dangling symlink":
		errs = append(errs, unix.Symlink("nowhere", t))
	case "symlink loop":
		errs = append(errs, unix.Symlink("t", t))
	case "fifo":
		errs = append(errs, unix.Mknod(t, unix.S_IFIFO|0o644, 0))
	case "socket":
		errs = append(errs, unix.Mknod(t, unix.S_IFSOCK|0o644, 0))
	case "device":
		errs = append(errs, unix.Mknod(t, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))))
	}
	if c.Type != "missing" {
		errs = append(errs, unix.Lchown(t, c.Owner, c.Owner))
		if !strings.Contains(c.Type, "symlink") {
			errs = append(errs, unix.Chmod(t, c.Mode))
			if c.Acl == "access" {
				errs = append(errs, unix.Setxattr(t, "system.posix_acl_access", acl(harness.UserB, 6, 7), 0))
			}
		}
	}
	errs = append(errs, unix.Lchown(p, c.ParentUid, c.ParentUid), unix.Chmod(p, c.ParentMode))
	if c.Acl == "default" {
		errs = append(errs, unix.Setxattr(p, "system.posix_acl_default", acl(harness.UserB, 5, 5), 0))
	}
	for _, path := range []string{t, p + "/o", p + "/e", p + "/f", p} {
		err := unix.UtimesNanoAt(unix.AT_FDCWD, path, old, unix.AT_SYMLINK_NOFOLLOW)
		if c.Type != "missing" || path != t {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// acl encodes an ACL that gives one more user some permissions: rwx for the
// owner, r-x for the group, r-- for others.
func acl(uid int, perm, mask uint16) []byte {
	const none = 0xffffffff
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, none}, {2, perm, uint32(uid)}, {4, 5, none}, {16, mask, none}, {32, 4, none}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return b
}

// look describes everything below dir: path to state, with times apart.
func look(dir string) map[string]state {
	found := map[string]state{}
	var walk func(path string)
	walk = func(path string) {
		var st unix.Stat_t
		if unix.Lstat(dir+"/"+path, &st) != nil {
			return
		}
		s := state{ino: st.Ino, mtime: st.Mtim, ctime: st.Ctim}
		size := st.Size
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			size = 0
		}
		s.text = fmt.Sprintf("%o %d links, %d:%d, %d bytes, rdev %d", st.Mode, st.Nlink, st.Uid, st.Gid, size, st.Rdev)
		b := make([]byte, 256)
		for _, name := range []string{"system.posix_acl_access", "system.posix_acl_default", "user.x"} {
			if n, err := unix.Lgetxattr(dir+"/"+path, name, b); err == nil {
				s.text += fmt.Sprintf(" %s=%x", name, b[:n])
			}
		}
		found[path] = s
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			list, _ := os.ReadDir(dir + "/" + path)
			for _, e := range list {
				walk(path + "/" + e.Name())
			}
		}
	}
	walk("p")
	return found
}

// Look describes all that can be seen below dir, with inode numbers and times.
func Look(dir string) string {
	var out []string
	for path, s := range look(dir) {
		out = append(out, fmt.Sprintf("%s: %s, inode %d, mtime %v, ctime %v", path, s.text, s.ino, s.mtime, s.ctime))
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}

type state struct {
	text         string
	ino          uint64
	mtime, ctime unix.Timespec
}

// after describes what a call changed: new and gone objects, new states, and
// which times moved. A time set to what it was has not moved.
func after(before, now map[string]state) string {
	var out []string
	times := map[uint64]state{}
	for _, b := range before {
		times[b.ino] = b
	}
	for path, n := range now {
		b, ok := before[path]
		if !ok {
			out = append(out, fmt.Sprintf("new %s: %s", path, n.text))
			continue
		}
		if b.text != n.text {
			out = append(out, fmt.Sprintf("%s: %s, was %s", path, n.text, b.text))
		}
		if b, ok := times[n.ino]; ok && b.mtime != n.mtime {
			out = append(out, path+": mtime moved")
		}
		if b, ok := times[n.ino]; ok && b.ctime != n.ctime {
			out = append(out, path+": ctime moved")
		}
	}
	for path := range before {
		if _, ok := now[path]; !ok {
			out = append(out, "gone "+path)
		}
	}
	sort.Strings(out)
	return strings.Join(append([]string{""}, out...), "\n    ")
}

// result names an error as C does.
func result(err error) string {
	var e syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &e):
		return unix.ErrnoName(e)
	}
	return err.Error()
}
