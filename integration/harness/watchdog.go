package harness

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bite ends a mount that has had its time, so that every system call that
// hangs in it returns: it has the daemon print its goroutines, aborts the
// connection and kills the daemon.
func (m *Mount) bite(limit time.Duration) {
	m.mu.Lock()
	pid := m.Pid
	m.mu.Unlock()
	if pid == 0 {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGQUIT)
	time.Sleep(2 * time.Second) // for the goroutines to reach the log
	m.t.Errorf("watchdog: the test took longer than %v; the daemon is killed\nlog:\n%s", limit, m.LogTail())
	abort(m.Dir)
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// abort ends the FUSE connection of a mountpoint where the kernel offers it.
func abort(dir string) {
	for _, e := range mounts() {
		if e.dir == dir {
			_ = unix.Unmount(dir, unix.MNT_FORCE) // aborts, also where there is no fusectl
			name := fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", unix.Minor(e.dev))
			_ = os.WriteFile(name, []byte("1"), 0)
		}
	}
}

// detach takes every mount at dir out of the mount table.
func detach(dir string) {
	for _, e := range mounts() {
		if e.dir != dir {
			continue
		}
		if unix.Unmount(dir, unix.MNT_DETACH) != nil {
			_ = exec.Command("fusermount3", "-u", "-z", dir).Run()
		}
	}
}

// WaitGone waits until a process that is not a child of ours has ended.
func WaitGone(t testing.TB, pid int) {
	t.Helper()
	if !gone(t, pid, time.Minute) {
		t.Fatalf("process %d has not ended in a minute", pid)
	}
}

// gone waits for the end of a process, for so long at most.
func gone(t testing.TB, pid int, limit time.Duration) bool {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return true
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, int(limit.Milliseconds()))
		if err == nil {
			return n > 0
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
}

type mountEntry struct {
	dir    string
	fstype string
	dev    uint64
}

// mounts reads the mount table, which asks no file system anything.
func mounts() []mountEntry {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	var list []mountEntry
	for s := bufio.NewScanner(f); s.Scan(); {
		left, right, _ := strings.Cut(s.Text(), " - ")
		fields := strings.Fields(left)
		var major, minor uint32
		if _, err := fmt.Sscanf(fields[2], "%d:%d", &major, &minor); err != nil {
			continue
		}
		dir := strings.NewReplacer(`\040`, " ", `\134`, `\`).Replace(fields[4])
		list = append(list, mountEntry{dir, strings.Fields(right)[0], unix.Mkdev(major, minor)})
	}
	return list
}

// Mounted says whether something is mounted at dir, alive or not.
func Mounted(dir string) bool {
	for _, e := range mounts() {
		if e.dir == dir {
			return true
		}
	}
	return false
}

// FSType returns the type of the file system mounted at dir, as the mount
// table has it.
func FSType(dir string) string {
	for _, e := range mounts() {
		if e.dir == dir {
			return e.fstype
		}
	}
	return ""
}

// leftovers names the mounts below scratch and the processes that run a
// binary from there, and ends them.
func leftovers() []string {
	var left []string
	for _, e := range mounts() {
		if strings.HasPrefix(e.dir, scratch+"/") {
			left = append(left, "mount "+e.dir)
			detach(e.dir)
		}
	}
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		target, err := os.Readlink(exe)
		if err != nil || !strings.HasPrefix(target, scratch+"/") {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(exe, "/proc/%d/exe", &pid); err != nil {
			continue
		}
		left = append(left, fmt.Sprintf("process %d %s", pid, target))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	return left
}
