package daemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cafs/mount/repo"
)

// cut ends the connection of a mount, so that whoever waits for its daemon gets
// an error. Either way of cutting it may be missing: MNT_FORCE needs the rights
// of root, the control file a mounted fusectl.
func cut(at MountInfo) {
	if all, err := Mounts(); err == nil {
		if now, ok := MountAt(all, at.Dir); ok && now.ID == at.ID {
			_ = unix.Unmount(at.Dir, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW) // aborts, then finds it busy
		}
	}
	if _, minor, ok := strings.Cut(at.Dev, ":"); ok {
		_ = os.WriteFile(filepath.Join("/sys/fs/fuse/connections", minor, "abort"), []byte("1"), 0)
	}
}

// endKilled lets go of a daemon that was killed and cannot end: while it told
// the kernel that a name has changed, which waits for the lock of a directory,
// a program had that lock and waited for the daemon (fuse_reverse_inval_entry
// in fs/fuse/dir.c). It tells whether the daemon is gone then, or which it is that
// only root can end.
func endKilled(at MountInfo) (ended bool, pid int) {
	h, held, err := repo.LockedBy(at.Source)
	if err != nil || !held || !killed(h.PID) {
		return false, 0
	}
	cut(at)
	for end := time.Now().Add(abortWait); time.Now().Before(end); time.Sleep(abortWait / 100) {
		if now, held, err := repo.LockedBy(at.Source); err == nil && (!held || now.PID != h.PID) {
			return true, 0
		}
	}
	return false, h.PID
}

// killed tells whether a process has got SIGKILL: its first thread has ended, or
// the signal is pending (proc_pid_status(5)).
func killed(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	const sigkill = 1 << (unix.SIGKILL - 1)
	for line := range bytes.Lines(status) {
		key, value, _ := strings.Cut(string(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "State":
			if strings.HasPrefix(value, "Z") {
				return true
			}
		case "SigPnd", "ShdPnd":
			if set, err := strconv.ParseUint(value, 16, 64); err == nil && set&sigkill != 0 {
				return true
			}
		}
	}
	return false
}
