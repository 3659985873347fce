package mount

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"

	"cafs/mount/tree"
)

// member tells of the caller of a request whether it is in a group. A message
// names one group only; the others are asked of the kernel, and who cannot be
// seen there has none.
func member(h *fuse.InHeader) tree.Member {
	if h.Uid == 0 {
		return func(uint32) bool { return true }
	}
	caller := h.Caller
	return func(gid uint32) bool {
		if gid == caller.Gid {
			return true
		}
		groups, _ := threadStatus(caller.Pid, "Groups")
		return slices.Contains(strings.Fields(groups), strconv.FormatUint(uint64(gid), 10))
	}
}

// ordinary is member for the messages that do not tell whether suid and sgid
// have to go: they do unless root calls.
func ordinary(h *fuse.InHeader) tree.Member {
	if h.Uid == 0 {
		return nil
	}
	return member(h)
}

// threadStatus is the line of /proc/PID/status that begins with key; not ok
// when the thread is gone or cannot be seen (pid 0: another pid namespace).
func threadStatus(pid uint32, key string) (value string, ok bool) {
	if pid == 0 {
		return "", false
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", false
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(value), true
		}
	}
	return "", false
}
