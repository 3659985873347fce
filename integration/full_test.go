package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// TestFull (X06): the disk under the repository fills up, first with what is
// written to the mount, then to the last byte with something else. write(2)
// says so; deleting works; and with room again, so does writing.
func TestFull(t *testing.T) {
	harness.NeedDaemon(t)
	p := newPowered(t, "ext4", "512M")
	m := p.m
	file := func(i int) string { return m.Path(fmt.Sprint("n", i)) }
	n, start := 0, avail(t, m.Dir)
	for ; ; n++ {
		err := os.WriteFile(file(n), stream(uint64(n), 1<<20+n%2), 0o644)
		if errors.Is(err, syscall.ENOSPC) {
			break
		}
		if err != nil || n > 1000 {
			t.Fatalf("file %d: %v", n, err)
		}
	}
	if left := avail(t, m.Dir); left > 16<<20 || start > int64(n)<<20+32<<20 {
		t.Errorf("statfs: %d MiB available, %d after %d files of 1 MiB", start>>20, left>>20, n)
	}
	m.Sync()
	others := filepath.Join(p.disk.Dir, "others")
	eatDisk(t, others)

	for i := range n {
		switch i % 10 {
		case 0:
		case 5:
			if err := os.Truncate(file(i), 0); err != nil {
				t.Fatalf("truncate on a full disk: %v", err)
			}
		default:
			if err := os.Remove(file(i)); err != nil {
				t.Fatalf("unlink on a full disk: %v", err)
			}
		}
	}
	if err := fsync(m.Dir); err != nil {
		t.Errorf("fsync on a full disk: %v", err)
	}
	for i := 0; i < n; i += 10 {
		wantFile(t, file(i), stream(uint64(i), 1<<20+i%2))
	}
	var status struct{ Failed string }
	if err := json.Unmarshal([]byte(m.MustCafs("status", "--json", m.Dir)), &status); err != nil || status.Failed != "" {
		t.Errorf("status: %v %s", err, status.Failed)
	}
	m.MustCafs("gc", "--repo", m.Repo)
	if err := os.Remove(others); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		err := os.WriteFile(m.Path("again"), stream(7, 1<<20), 0o644)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.ENOSPC) || time.Now().After(end) {
			t.Fatalf("with room again: %v\n%s", err, m.LogTail())
		}
	}
	m.Remount()
	wantFile(t, m.Path("again"), stream(7, 1<<20))
	for i := 0; i < n; i += 10 {
		wantFile(t, file(i), stream(uint64(i), 1<<20+i%2))
	}
}

// avail is the room that statfs(2) tells ordinary users of, in bytes.
func avail(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// eatDisk takes all room of a file system.
func eatDisk(t *testing.T, path string) {
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 { // smaller and smaller pieces
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
