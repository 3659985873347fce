package daemon

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// FSType is the file system type of our mounts in /proc/self/mountinfo.
const FSType = "fuse.cafs"

// MountInfo is one line of /proc/self/mountinfo.
type MountInfo struct {
	ID     int
	Dev    string // "major:minor", as stat(2) gives it for what is below
	Dir    string
	Type   string
	Source string // of ours: the repository's path
}

// Mounts lists the mounts of this process's namespace, in the order they were
// made: where several are at one place, the last is the one seen.
func Mounts() ([]MountInfo, error) { return mountsOf("/proc/self/mountinfo") }

// mountsOf lists the mounts of the namespace of the process whose mountinfo is at path.
func mountsOf(path string) ([]MountInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("daemon: mounts: %w", err)
	}
	defer f.Close()
	return parseMounts(f)
}

// parseMounts reads lines as proc(5) describes them:
//
//	36 35 98:0 /root /dir rw,noatime master:1 - type source options
func parseMounts(r io.Reader) ([]MountInfo, error) {
	var all []MountInfo
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		f := strings.Split(lines.Text(), " ")
		sep := 6
		for sep < len(f) && f[sep] != "-" {
			sep++
		}
		if sep+2 >= len(f) {
			continue
		}
		id, err := strconv.Atoi(f[0])
		if err != nil {
			continue
		}
		all = append(all, MountInfo{
			ID:     id,
			Dev:    f[2],
			Dir:    unescape(f[4]),
			Type:   f[sep+1],
			Source: unescape(f[sep+2]),
		})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("daemon: mounts: %w", err)
	}
	return all, nil
}

// unescape undoes the kernel's \ooo for blanks, tabs, newlines and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// MountAt finds what is mounted at dir, a resolved path.
func MountAt(all []MountInfo, dir string) (m MountInfo, ok bool) {
	for _, e := range all {
		if e.Dir == dir {
			m, ok = e, true
		}
	}
	return m, ok
}

// MountOf finds our mount that path, a resolved one, is on.
func MountOf(all []MountInfo, path string) (m MountInfo, ok bool) {
	for dir := path; ; dir = filepath.Dir(dir) {
		if m, ok = MountAt(all, dir); ok {
			return m, m.Type == FSType
		}
		if dir == filepath.Dir(dir) {
			return m, false
		}
	}
}

// mountsBelow lists the mounts inside dir.
func mountsBelow(all []MountInfo, dir string) []MountInfo {
	var below []MountInfo
	for _, e := range all {
		if e.Dir != dir && strings.HasPrefix(e.Dir, strings.TrimSuffix(dir, "/")+"/") {
			below = append(below, e)
		}
	}
	return below
}
