package daemon

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// User is a process that keeps a mount busy.
type User struct {
	PID     int
	Command string
	How     string // "current directory", "open file", …
}

// BusyError says why a mount cannot be ended; errors.Is finds EBUSY.
type BusyError struct {
	Dir   string
	Users []User
	Below []string // mounts inside it
	// Partial: processes of other users could not be looked at.
	Partial bool
	// Gone: the mount is not at Dir any more, and what was written is durable;
	// the others have it all the same.
	Gone bool
}

// maxNamed bounds how many users a message names.
const maxNamed = 8

func (e *BusyError) Error() string {
	var why []string
	for i, u := range e.Users {
		if i == maxNamed {
			why = append(why, fmt.Sprintf("and %d more", len(e.Users)-i))
			break
		}
		why = append(why, fmt.Sprintf("pid %d (%s: %s)", u.PID, u.Command, u.How))
	}
	for _, dir := range e.Below {
		why = append(why, "a mount at "+dir)
	}
	if len(why) == 0 {
		why = []string{"a process that cannot be seen from here"}
	}
	who := strings.Join(why, ", ")
	if e.Gone {
		return fmt.Sprintf("%s is unmounted here and everything is durable, but the mount goes on elsewhere: it is kept by %s", e.Dir, who)
	}
	return fmt.Sprintf("%s is in use by %s", e.Dir, who)
}

// Is makes errors.Is(err, unix.EBUSY) true.
func (e *BusyError) Is(target error) bool { return target == unix.EBUSY }

// Busy finds who uses a mount. It sends nothing to the mount, which may hang:
// links in /proc are read and not followed.
func Busy(m MountInfo) *BusyError {
	e := &BusyError{Dir: m.Dir}
	if all, err := Mounts(); err == nil {
		for _, b := range mountsBelow(all, m.Dir) {
			e.Below = append(e.Below, b.Dir)
		}
	}
	for _, pid := range processes() {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		how, err := usage(proc, m)
		if os.IsPermission(err) {
			e.Partial = true
		}
		if how != "" {
			e.Users = append(e.Users, User{pid, command(proc), how})
		}
	}
	return e
}

// keepers finds who keeps a mount that is not at its place any more: other mounts
// of it, processes that have something open in it, and other mount namespaces,
// each by one of its processes. A namespace without processes cannot be found.
func keepers(m MountInfo) *BusyError {
	e := &BusyError{Dir: m.Dir, Gone: true}
	all, _ := Mounts()
	for _, b := range all {
		if b.Dev == m.Dev {
			e.Below = append(e.Below, b.Dir)
		}
	}
	own, _ := os.Readlink("/proc/self/ns/mnt")
	seen := map[string]bool{own: true}
	for _, pid := range processes() {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		if how, _ := holds(proc, m); how != "" {
			e.Users = append(e.Users, User{pid, command(proc), how})
		}
		ns, err := os.Readlink(filepath.Join(proc, "ns/mnt"))
		if err != nil || seen[ns] {
			e.Partial = e.Partial || os.IsPermission(err)
			continue
		}
		there, err := mountsOf(filepath.Join(proc, "mountinfo"))
		if err != nil {
			e.Partial = e.Partial || os.IsPermission(err)
			continue // another process of the namespace may tell
		}
		seen[ns] = true
		for _, b := range there {
			if b.Dev == m.Dev && b.Type == FSType {
				how := fmt.Sprintf("in the mount namespace %s it is mounted at %s", strings.TrimPrefix(ns, "mnt:"), b.Dir)
				e.Users = append(e.Users, User{pid, command(proc), how})
				break
			}
		}
	}
	return e
}

// processes lists the processes that can be seen, except this one.
func processes() (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		if pid, err := strconv.Atoi(filepath.Base(name)); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// usage tells how a process uses a mount; "" when it does not, or is gone.
func usage(proc string, m MountInfo) (string, error) {
	within := func(path string) bool {
		return path == m.Dir || strings.HasPrefix(path, strings.TrimSuffix(m.Dir, "/")+"/")
	}
	for _, l := range []struct{ name, how string }{
		{"cwd", "current directory"}, {"root", "root directory"}, {"exe", "running program"},
	} {
		path, err := os.Readlink(filepath.Join(proc, l.name))
		if err != nil {
			return "", err
		}
		if within(path) {
			return l.how, nil
		}
	}
	return holds(proc, m)
}

// holds tells what a process has open in a mount, wherever that is.
func holds(proc string, m MountInfo) (string, error) {
	infos, err := os.ReadDir(filepath.Join(proc, "fdinfo"))
	if err != nil {
		return "", err
	}
	for _, fd := range infos {
		b, err := os.ReadFile(filepath.Join(proc, "fdinfo", fd.Name()))
		if err == nil && mountID(b) == m.ID {
			path, _ := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
			return "open file " + strings.TrimPrefix(strings.TrimPrefix(path, m.Dir), "/"), nil
		}
	}
	maps, err := os.Open(filepath.Join(proc, "maps"))
	if err != nil {
		return "", err
	}
	defer maps.Close()
	if mapped(maps, m.Dev) {
		return "mapped file", nil
	}
	return "", nil
}

// mountID reads the mnt_id line of a /proc/pid/fdinfo file; -1 without one.
func mountID(info []byte) int {
	for line := range bytes.Lines(info) {
		if v, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			if id, err := strconv.Atoi(string(bytes.TrimSpace(v))); err == nil {
				return id
			}
		}
	}
	return -1
}

// mapped looks for a device ("major:minor", decimal) in /proc/pid/maps, which
// writes it in hexadecimal with at least two digits each.
func mapped(maps io.Reader, dev string) bool {
	major, minor, _ := strings.Cut(dev, ":")
	ma, err1 := strconv.ParseUint(major, 10, 32)
	mi, err2 := strconv.ParseUint(minor, 10, 32)
	if err1 != nil || err2 != nil {
		return false
	}
	want := fmt.Sprintf("%02x:%02x", ma, mi)
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 4 && f[3] == want {
			return true
		}
	}
	return false
}

// command is a process's name, without characters that would disturb a terminal.
func command(proc string) string {
	b, err := os.ReadFile(filepath.Join(proc, "comm"))
	if err != nil {
		return "?"
	}
	return strings.Trim(strconv.Quote(strings.TrimSpace(string(b))), `"`)
}
