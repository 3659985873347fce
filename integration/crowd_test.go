package integration_test

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// TestCrowd: many threads do random things to the same few names, on a daemon
// with the race detector: no race, no hang, no EIO; afterwards everything can
// be removed, the root has the CID of an empty folder, and the daemon holds no
// more goroutines and inodes than before.
func TestCrowd(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{Race: true, Args: []string{"--commit-interval", "200ms", "--dirty-limit", "16MiB"}, Limit: harness.MountLimit()})
	empty := cidOf(t, m.Dir)
	start := loadOf(t, m)
	s := seed(t)
	end := time.Now().Add(time.Duration(harness.Scale(15, 600)) * time.Second)
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		r := rand.New(rand.NewPCG(uint64(s), uint64(i)))
		wg.Go(func() {
			for time.Now().Before(end) && errs[i] == nil {
				if err := meddle(m.Dir, r); err != nil && !expected(err) {
					errs[i] = err
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		return
	}
	command(t, "/", "find", m.Dir, "-ls")
	command(t, m.Dir, "bash", "-c", "shopt -s dotglob; rm -rf -- *")
	if left, err := os.ReadDir(m.Dir); err != nil || len(left) > 0 {
		t.Errorf("left after rm -rf: %v %v", left, err)
	}
	if got := cidOf(t, m.Dir); got != empty {
		t.Errorf("CID of the empty root is %s, was %s", got, empty)
	}
	m.Sync()
	harness.DropCaches()
	var now load
	for patience := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // what runs in the background has to end
		if now = loadOf(t, m); now.within(start) || time.Now().After(patience) {
			break
		}
	}
	t.Logf("at the start %+v, at the end %+v", start, now)
	if !now.within(start) {
		t.Errorf("at the end %+v, at the start %+v", now, start)
	}
	m.Remount()
	if log := m.Log(); strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic") {
		t.Errorf("in the log:\n%s", log[max(0, strings.Index(log, "DATA RACE")):])
	}
}

// load is what a daemon has in hand.
type load struct {
	Goroutines, RSS           int64
	Inodes                    int64
	DirtyBytes, DirtyFiles    int64
	StagedBytes, PendingBytes int64
}

// within says whether l is no more than another load: in memory, which the
// race detector multiplies and the runtime gives back late, not much more.
func (l load) within(o load) bool {
	return l.Goroutines <= o.Goroutines && l.Inodes <= o.Inodes && l.DirtyBytes == 0 && l.DirtyFiles == 0 && l.PendingBytes == 0 &&
		l.RSS <= o.RSS+1<<30
}

func loadOf(t testing.TB, m *harness.Mount) (l load) {
	t.Helper()
	var status struct {
		Inodes       int64 `json:"inodes"`
		DirtyBytes   int64 `json:"dirty_bytes"`
		DirtyFiles   int64 `json:"dirty_files"`
		StagedBytes  int64 `json:"staged_bytes"`
		PendingBytes int64 `json:"pending_bytes"`
	}
	if err := json.Unmarshal([]byte(m.MustCafs("status", "--json", m.Dir)), &status); err != nil {
		t.Fatal(err)
	}
	l = load{RSS: m.RSS(), Inodes: status.Inodes, DirtyBytes: status.DirtyBytes, DirtyFiles: status.DirtyFiles,
		StagedBytes: status.StagedBytes, PendingBytes: status.PendingBytes}
	profile, err := gzip.NewReader(strings.NewReader(m.MustCafs("profile", "goroutine", m.Dir)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(profile)
	if err != nil {
		t.Fatal(err)
	}
	// In pprof's profile.proto, field 2 is a stack, and its field 2 how many have it.
	protoField(b, 2, func(_ uint64, stack []byte) {
		protoField(stack, 2, func(n uint64, _ []byte) { l.Goroutines += int64(n) })
	})
	if l.Goroutines == 0 {
		t.Fatalf("no goroutines in a profile of %d bytes", len(b))
	}
	return l
}

// protoField calls f with each value of a field: a number, or the bytes of what
// has a length, which then is the number.
func protoField(b []byte, field uint64, f func(n uint64, body []byte)) {
	for len(b) > 0 {
		key, k := binary.Uvarint(b)
		value, v := binary.Uvarint(b[k:])
		b = b[k+v:]
		var body []byte
		if key&7 == 2 {
			body, b = b[:value], b[value:]
		}
		if key>>3 == field {
			f(value, body)
		}
	}
}

// expected says whether an error is one that others in the crowd can cause.
func expected(err error) bool {
	for _, e := range []error{fs.ErrNotExist, fs.ErrExist, syscall.ENOTEMPTY, syscall.ENOTDIR, syscall.EISDIR, syscall.EINVAL,
		syscall.ELOOP, syscall.EPERM, syscall.ENODATA, syscall.EXDEV, syscall.ENXIO, syscall.EBUSY, syscall.EMLINK, syscall.ENAMETOOLONG} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// meddle does one random thing.
func meddle(root string, r *rand.Rand) error {
	name := func() string {
		p := []string{root}
		for range 1 + r.IntN(3) {
			p = append(p, string(rune('a'+r.IntN(4))))
		}
		return filepath.Join(p...)
	}
	a, b := name(), name()
	switch r.IntN(18) {
	case 0, 1:
		return os.Mkdir(a, 0o755)
	case 2, 3:
		return os.WriteFile(a, slices.Repeat([]byte{byte(r.IntN(256))}, r.IntN(100_000)*r.IntN(20)), 0o644)
	case 4:
		return os.Remove(a)
	case 5, 6:
		return os.Rename(a, b)
	case 7:
		return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	case 8:
		return os.Link(a, b)
	case 9:
		return os.Symlink(filepath.Base(b), a)
	case 10:
		_, err := os.ReadFile(a)
		return err
	case 11:
		_, err := os.ReadDir(a)
		return err
	case 12:
		return os.Truncate(a, r.Int64N(3<<20))
	case 13:
		return fsync(a)
	case 14:
		return errors.Join(unix.Setxattr(a, "user.x", []byte(fmt.Sprint(r.IntN(100))), 0), os.Chmod(a, 0o700|os.FileMode(r.IntN(64))))
	case 15:
		_, err := unix.Getxattr(a, "ipfs.cid", make([]byte, 100))
		return err
	case 16:
		return os.RemoveAll(a)
	}
	f, err := os.OpenFile(a, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for range r.IntN(20) {
		_, err := f.WriteAt(make([]byte, 1+r.IntN(5000)), r.Int64N(4<<20))
		if err == nil {
			_, err = f.ReadAt(make([]byte, 5000), r.Int64N(1<<20))
		}
		if err != nil && err.Error() != "EOF" {
			return err
		}
	}
	return nil
}
