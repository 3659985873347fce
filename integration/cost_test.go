package integration_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// device is that of the file system at dir.
func device(t *testing.T, dir string) string {
	t.Helper()
	return strings.TrimSpace(command(t, "/", "findmnt", "-n", "-o", "SOURCE", dir))
}

// flushes counts the flushes that the device under dir was asked for so far.
func flushes(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device(t, dir)), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b))
	if len(fields) < 17 {
		t.Fatal("this kernel does not count flushes (since Linux 5.5 it does)")
	}
	n, err := strconv.Atoi(fields[15])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// appends appends 4 KiB n times to a file, with an fsync after each, and
// returns how long each took.
func appends(path string, n int) (took []time.Duration, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	block := stream(0, 4096)
	for i := range n {
		binary.LittleEndian.PutUint64(block, uint64(i))
		begin := time.Now()
		_, err := f.Write(block)
		if err := errors.Join(err, f.Sync()); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begin))
	}
	return took, nil
}

// TestFlushes: on a journaled ext4, to append 4 KiB and fsync is one flush of
// the device, and a copy without fsync flushes a few times in all.
func TestFlushes(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedRoot(t)
	harness.NeedCommand(t, "findmnt")
	p := newPowered(t, "ext4", "512M")
	if _, err := appends(p.m.Path("log"), 10); err != nil { // the first ones make files
		t.Fatal(err)
	}
	before := flushes(t, p.disk.Dir)
	const n = 300
	if _, err := appends(p.m.Path("log"), n); err != nil {
		t.Fatal(err)
	}
	// A commit tick, or a log that is full, adds some.
	if got := flushes(t, p.disk.Dir) - before; got < n || got > n+n/10 {
		t.Errorf("%d flushes for %d times write and fsync", got, n)
	}
	before = flushes(t, p.disk.Dir)
	for i := range n {
		write(t, p.m.Path("copy", fmt.Sprint(i)), stream(uint64(i), 10_000))
	}
	if got := flushes(t, p.disk.Dir) - before; got > n/10 {
		t.Errorf("%d flushes for a copy of %d files", got, n)
	}
}

// appenderEnv has what a process of TestCosts is to do; after didLine it says how
// much it did.
const (
	appenderEnv = "CAFS_APPENDER"
	didLine     = "appended, times:"
)

// appender is a process that appends to a file, with an fsync after each time.
type appender struct {
	Path       string
	Begin, End time.Time // the same for all that append at once
}

// run returns how many times it appended.
func (a appender) run() (int, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return 0, err
	}
	out, err := process("TestCostsAppender", appenderEnv+"="+string(text), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1").CombinedOutput()
	n := 0
	if _, line, ok := bytes.Cut(out, []byte(didLine)); err == nil && ok {
		n, err = strconv.Atoi(string(bytes.Fields(line)[0]))
	} else if err == nil {
		err = errors.New("it does not say how much it did")
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w\n%s", a.Path, err, out)
	}
	return n, nil
}

// TestCostsAppender is one of the processes of TestCosts.
func TestCostsAppender(t *testing.T) {
	text := os.Getenv(appenderEnv)
	if text == "" {
		t.Skip("only as a process of TestCosts")
	}
	var a appender
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(a.Path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, block := f.Fd(), stream(0, 4096)
	if time.Until(a.Begin) <= 0 {
		t.Fatal("too late: the others append already")
	}
	time.Sleep(time.Until(a.Begin)) // a common beginning, not an order
	i := 0
	for ; time.Until(a.End) > 0; i++ {
		// As a program in C does: around calls that wait Go's scheduler wakes other
		// threads, which takes more of the processors than the calls do.
		binary.LittleEndian.PutUint64(block, uint64(i))
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&block[0])), uintptr(len(block)))
		if errno == 0 && int(n) == len(block) {
			_, _, errno = unix.RawSyscall(unix.SYS_FSYNC, fd, 0, 0)
		}
		if errno != 0 || int(n) != len(block) {
			t.Fatalf("append %d: %d bytes, %v", i, n, errno)
		}
	}
	t.Log(didLine, i)
}

// appendRate is how many appends with fsync a second n processes do.
func appendRate(t *testing.T, m *harness.Mount, n int) float64 {
	t.Helper()
	const starting, during = time.Second, time.Second
	begin := time.Now().Add(starting)
	var sum atomic.Int64
	seconds(t, begin, n, func(i int) error {
		did, err := appender{Path: m.Path(fmt.Sprintf("%d of %d", i, n)), Begin: begin, End: begin.Add(during)}.run()
		sum.Add(int64(did))
		return err
	})
	return float64(sum.Load()) / during.Seconds()
}

// TestCosts measures what durability costs (long form, on a quiet machine): 16
// processes that append and fsync have at least 4 times the rate of one, an fsync
// beside a large copy takes at most 3 times as long as one alone, and mounting
// after kill -9 takes less than 2 s with a million files.
func TestCosts(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedRoot(t)
	if !harness.Long() {
		t.Skip("the long form only: it measures time")
	}
	for name, mount := range map[string]func(t *testing.T) *harness.Mount{
		"journaled ext4": func(t *testing.T) *harness.Mount {
			p := newPowered(t, "ext4", "4G")
			// A loop device otherwise is a disk with a cache as large as the
			// memory, which every flush has to write out.
			command(t, "/", "losetup", "--direct-io=on", device(t, p.disk.Dir))
			return p.m
		},
		"plain": func(t *testing.T) *harness.Mount {
			return harness.New(t, harness.Options{Limit: harness.MountLimit()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := mount(t)
			var times []float64
			for range 7 { // by turns: rates vary by a third from second to second
				one, together := appendRate(t, m, 1), appendRate(t, m, 16)
				t.Logf("one process %.0f/s, 16 processes %.0f/s: %.1f times", one, together, together/one)
				times = append(times, together/one)
			}
			slices.Sort(times)
			t.Logf("16 processes have %.1f times the rate of one (median)", times[len(times)/2])
			if times[len(times)/2] < 4 {
				t.Errorf("16 processes have %.1f times the rate of one, by the median of %d rounds", times[len(times)/2], len(times))
			}

			const n = 500
			alone, err := appends(m.Path("one"), n)
			if err != nil {
				t.Fatal(err)
			}
			source := filepath.Join(harness.Tmpfs(t), "large")
			write(t, source, stream(uint64(len(name)), 768<<20))
			begin := time.Now()
			copying := exec.Command("cp", source, m.Path("large"))
			if err := copying.Start(); err != nil {
				t.Fatal(err)
			}
			var beside []time.Duration
			done := make(chan error, 1)
			go func() { done <- copying.Wait() }()
			for copied := false; !copied; {
				select {
				case err := <-done:
					if err != nil {
						t.Fatalf("cp: %v", err)
					}
					copied = true
				default:
					some, err := appends(m.Path("one"), 10)
					if err != nil {
						t.Fatal(err)
					}
					beside = append(beside, some...)
				}
			}
			t.Logf("copied meanwhile: %.0f MiB/s", 768/time.Since(begin).Seconds())
			slices.Sort(alone)
			slices.Sort(beside)
			t.Logf("an append with fsync alone: median %v, mean %v; beside a copy: median %v, mean %v",
				alone[n/2], mean(alone), beside[len(beside)/2], mean(beside))
			if beside[len(beside)/2] > 3*alone[n/2] || mean(beside) > 3*mean(alone) {
				t.Error("beside a copy it takes more than 3 times as long")
			}
		})
	}
	t.Run("reopen", func(t *testing.T) {
		m := harness.New(t, harness.Options{Limit: harness.MountLimit()})
		remount := func() {
			begin := time.Now()
			m.Mount()
			took := time.Since(begin)
			t.Logf("mounted in %v", took)
			if took > 2*time.Second {
				t.Errorf("mounting after kill -9 took %v", took)
			}
		}
		// Killed again and again while four make files, a million in all.
		const files = 1_000_000
		rng := rand.New(rand.NewPCG(uint64(seed(t)), 6))
		var made atomic.Int64
		for round := 0; made.Load() < files; round++ {
			until := made.Load() + files/50 + rng.Int64N(files/5)
			seconds(t, time.Now(), 4, func(w int) error {
				for i := 0; made.Load() < until; i++ {
					dir := m.Path(fmt.Sprint(round, "-", w, "-", i/1000))
					if i%1000 == 0 {
						if err := os.Mkdir(dir, 0o755); err != nil {
							return err
						}
					}
					if err := unix.Mknod(filepath.Join(dir, fmt.Sprint(i)), unix.S_IFREG|0o644, 0); err != nil {
						return err
					}
					made.Add(1)
				}
				return nil
			})
			m.Kill()
			remount()
		}
		m.Sync()
		for i := range 10_000 {
			write(t, m.Path("late", fmt.Sprint(i)), []byte("x"))
		}
		for range 3 {
			m.Kill()
			remount()
		}
	})
}

func mean(all []time.Duration) (sum time.Duration) {
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(len(all))
}

// seconds runs f(0) to f(n-1) at once and tells how long that took since begin.
func seconds(t *testing.T, begin time.Time, n int, f func(i int) error) float64 {
	t.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return time.Since(begin).Seconds()
}
