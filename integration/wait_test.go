package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// FIFREEZE makes everything that writes to a file system wait until FITHAW.
const (
	iocFreeze = 0xc0045877
	iocThaw   = 0xc0045878
)

// TestWriters: 64 threads write to ten thousand open files with little memory
// for what is not on disk: they wait for one another and not for ever, and the
// memory is bounded. Over a disk that does not answer, writers wait until it
// does, and can be killed meanwhile.
func TestWriters(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedRoot(t)
	harness.NeedCommand(t, "dd")
	const limit, files, writers = 16 << 20, 10_000, 64
	p := newPowered(t, "ext4", "2G", "--dirty-limit", "16MiB")
	m := p.m
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files + 1000, Max: files + 1000}); err != nil {
		t.Fatal("cannot have ten thousand files open: ", err)
	}
	open := make([]*os.File, files)
	seconds(t, time.Now(), writers, func(w int) error {
		for i := w; i < files; i += writers {
			f, err := os.Create(m.Path(fmt.Sprint("f", i)))
			if err != nil {
				return err
			}
			open[i] = f
			if _, err := f.Write(stream(uint64(i), 5000)); err != nil {
				return err
			}
		}
		return nil
	})
	if peak := m.PeakRSS(); peak > 400<<20 {
		t.Errorf("%d MiB of memory for %d open files", peak>>20, files)
	}
	seconds(t, time.Now(), writers, func(w int) error {
		for i := w; i < files; i += writers {
			_, err := open[i].WriteAt(stream(uint64(i), 3), 10_000)
			if err = errors.Join(err, open[i].Close()); err != nil {
				return err
			}
		}
		return nil
	})

	thaw := freeze(t, p.disk.Dir)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { errs[i] = os.WriteFile(m.Path(fmt.Sprint("late", i)), stream(uint64(i), 4<<20), 0o644) })
	}
	dd := exec.Command("dd", "if=/dev/urandom", "of="+m.Path("noise"), "bs=64K", "count=4096")
	if err := dd.Start(); err != nil {
		t.Fatal(err)
	}
	waiting(t, dd.Process.Pid)
	var status struct {
		Dirty int64 `json:"dirty_bytes"`
	}
	if err := json.Unmarshal([]byte(m.MustCafs("status", "--json", m.Dir)), &status); err != nil || status.Dirty > limit+limit/8 {
		t.Errorf("%d bytes in memory, at most %d are allowed: %v", status.Dirty, limit, err)
	}
	begin := time.Now()
	if err := dd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = dd.Wait()
	took := time.Since(begin)
	if s, ok := dd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGTERM {
		t.Errorf("it did not wait: %v", dd.ProcessState)
	}
	if took > 5*time.Second {
		t.Errorf("a process that waits ended %v after it was killed", took)
	}
	thaw()
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	m.Remount()
	for i := range errs {
		wantFile(t, m.Path(fmt.Sprint("late", i)), stream(uint64(i), 4<<20))
	}
	for i := 0; i < files; i += 97 {
		want := append(stream(uint64(i), 5000), make([]byte, 5000)...)
		wantFile(t, m.Path(fmt.Sprint("f", i)), append(want, stream(uint64(i), 3)...))
	}
}

// freeze stops writing to the file system at dir until thaw is called.
func freeze(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.IoctlSetInt(fd, iocFreeze, 0)
	}
	if err != nil {
		t.Fatalf("freeze: %v", err)
	}
	thaw = sync.OnceFunc(func() {
		defer unix.Close(fd)
		if err := unix.IoctlSetInt(fd, iocThaw, 0); err != nil {
			t.Errorf("thaw: %v", err)
		}
	})
	t.Cleanup(thaw)
	return thaw
}

// waiting returns when a process has not written anything for a second.
func waiting(t *testing.T, pid int) {
	t.Helper()
	last, since := "", time.Now()
	waitFor(t, "end of writing", func() (string, bool) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		if err != nil {
			t.Fatal(err)
		}
		if string(b) != last {
			last, since = string(b), time.Now()
		}
		return last, time.Since(since) > time.Second
	})
}
