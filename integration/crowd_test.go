package integration_test

import (
	"bytes"
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
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// TestCrowd: sixteen processes do random things to the same few names, on a
// daemon with the race detector: no race, no hang, no EIO; afterwards everything
// can be removed, the root has the CID of an empty folder, the daemon holds no
// more goroutines, inodes and memory than before, and the index has nothing more.
func TestCrowd(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{Race: true, Args: []string{"--commit-interval", "200ms", "--dirty-limit", "16MiB"}, Limit: harness.MountLimit()})
	empty := cidOf(t, m.Dir)
	start := loadOf(t, m)
	s := seed(t)
	var wg sync.WaitGroup
	for i := range 16 {
		cmd := process("TestCrowdWorker", crowdDir+"="+m.Dir)
		cmd.Args = append(cmd.Args, "-seed", fmt.Sprint(s+int64(i)))
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v\n%s", i, err, out)
			} else {
				t.Logf("process %d: %s", i, bytes.TrimSpace(did.Find(out)))
			}
		})
	}
	wg.Wait()
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
	m.Umount()
	m.MustCafs("verify", "-q", "--repo", m.Repo)
	m.Mount()
	if log := m.Log(); strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic") {
		t.Errorf("in the log:\n%s", log[max(0, strings.Index(log, "DATA RACE")):])
	}
}

// crowdDir is where a process started by TestCrowd works.
const crowdDir = "CAFS_CROWD_DIR"

// did is how a process tells what it has done.
var did = regexp.MustCompile(`\d+ operations, \d+ of them succeeded`)

// TestCrowdWorker is one of the processes of TestCrowd.
func TestCrowdWorker(t *testing.T) {
	dir := os.Getenv(crowdDir)
	if dir == "" {
		t.Skip("only as a process of TestCrowd")
	}
	r := rand.New(rand.NewPCG(uint64(seed(t)), 0))
	end := time.Now().Add(time.Duration(harness.Scale(60, 600)) * time.Second)
	n, ok := 0, 0
	for ; time.Now().Before(end); n++ {
		err := meddle(dir, r)
		if err == nil {
			ok++
		} else if !expected(err) {
			t.Fatal(err)
		}
	}
	t.Logf("%d operations, %d of them succeeded", n, ok)
}

// load is what a daemon has in hand.
type load struct {
	Goroutines, Heap, RSS     int64
	Inodes                    int64
	DirtyBytes, DirtyFiles    int64
	StagedBytes, PendingBytes int64
}

// mayFill is what may be in the heap of a daemon that has nothing to do: the
// index (64 + 32 MiB), nodes and leaves (64 MiB), and buffers that the next
// collection takes. See ARCHITECTURE.md, Memory.
const mayFill = (64 + 32 + 64 + 32) << 20

// within says whether l is no more than another load but for caches that have
// filled, and for what the race detector adds to memory outside the heap and does
// not give back.
func (l load) within(o load) bool {
	return l.Goroutines <= o.Goroutines && l.Inodes <= o.Inodes && l.DirtyBytes == 0 && l.DirtyFiles == 0 && l.PendingBytes == 0 &&
		l.Heap <= o.Heap+mayFill && l.RSS <= o.RSS+2<<30
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
	// The values of a profile of the heap are objects and bytes that were
	// allocated, then those in use.
	l.Goroutines, l.Heap = profileSum(t, m, "goroutine", 0), profileSum(t, m, "heap", 3)
	if l.Goroutines == 0 {
		t.Fatal("no goroutines in the profile")
	}
	return l
}

// profileSum sums one of the values that each stack of a profile has. In pprof's
// profile.proto, field 2 is a stack, and its field 2 the packed values.
func profileSum(t testing.TB, m *harness.Mount, kind string, value int) (sum int64) {
	t.Helper()
	profile, err := gzip.NewReader(strings.NewReader(m.MustCafs("profile", kind, m.Dir)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(profile)
	if err != nil {
		t.Fatal(err)
	}
	protoField(b, 2, func(_ uint64, stack []byte) {
		protoField(stack, 2, func(n uint64, packed []byte) {
			for i := 0; len(packed) > 0 && i <= value; i++ {
				k := 0
				n, k = binary.Uvarint(packed)
				packed = packed[k:]
			}
			sum += int64(n)
		})
	})
	return sum
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
