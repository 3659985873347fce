package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Options of New. The zero value mounts a new repository with the defaults.
type Options struct {
	Repo  string        // "": a new one
	Dir   string        // mountpoint; "": a new one
	Args  []string      // further flags of cafs mount
	Env   []string      // further environment of the daemon
	Race  bool          // use the binary with the race detector
	Limit time.Duration // the watchdog's patience for the whole test; default MountLimit
}

// Mount is a repository and the place where it is mounted.
type Mount struct {
	Dir  string // the mountpoint, which is empty while nothing is mounted
	Repo string
	Pid  int // of the daemon; 0 while there is none

	t    testing.TB
	opts Options
	bin  string
	mu   sync.Mutex // guards Pid against the watchdog
}

// New mounts and undoes it when the test ends.
func New(t testing.TB, o Options) *Mount {
	t.Helper()
	dir := Scratch(t)
	m := &Mount{Dir: o.Dir, Repo: o.Repo, t: t, opts: o}
	if m.Dir == "" {
		m.Dir = filepath.Join(dir, "m")
	}
	if m.Repo == "" {
		m.Repo = filepath.Join(dir, "r")
	}
	if err := os.MkdirAll(m.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if Plain() {
		return m
	}
	needFUSE(t)
	m.bin = Binary(t)
	if o.Race {
		m.bin = RaceBinary(t)
	}
	limit := o.Limit
	if limit == 0 {
		limit = MountLimit()
	}
	dog := time.AfterFunc(limit, func() { m.bite(limit) })
	t.Cleanup(func() {
		dog.Stop()
		if t.Failed() {
			t.Logf("end of the log:\n%s", m.LogTail())
		}
		if m.Pid != 0 {
			m.Umount()
		}
	})
	m.Mount()
	return m
}

// Mount mounts the repository (again).
func (m *Mount) Mount() {
	m.t.Helper()
	if Plain() {
		return
	}
	if err := m.TryMount(); err != nil {
		m.t.Fatal(err)
	}
}

// TryMount is Mount for tests that expect an error.
func (m *Mount) TryMount() error {
	args := append([]string{"mount", "-b", "--repo", m.Repo}, m.opts.Args...)
	if r := m.Cafs(append(args, m.Dir)...); r.Code != 0 {
		return fmt.Errorf("cafs mount: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	r := m.Cafs("status", "--json", "--repo", m.Repo)
	var status struct{ Pid int }
	if err := json.Unmarshal([]byte(r.Stdout), &status); err != nil || status.Pid == 0 {
		return fmt.Errorf("cafs status: no pid: %v: %s%s", err, r.Stdout, r.Stderr)
	}
	m.mu.Lock()
	m.Pid = status.Pid
	m.mu.Unlock()
	return nil
}

// Umount unmounts with cafs umount, which must succeed, and leaves the
// repository free.
func (m *Mount) Umount() {
	m.t.Helper()
	if Plain() {
		return
	}
	r := m.Cafs("umount", m.Dir)
	if r.Code != 0 {
		m.t.Errorf("cafs umount: exit %d: %s%s\nlog:\n%s", r.Code, r.Stdout, r.Stderr, m.LogTail())
		m.Kill()
		return
	}
	m.forget()
}

// Remount unmounts cleanly and mounts again. No file of the mount may be open.
func (m *Mount) Remount() {
	m.t.Helper()
	m.Umount()
	m.Mount()
}

// killWait is how long a daemon that was killed may take to end.
const killWait = 5 * time.Second

// Kill ends the daemon with SIGKILL and waits until it is gone. The dead
// mount stays in the mount table until the next Mount, or until the test
// ends.
func (m *Mount) Kill() {
	m.t.Helper()
	pid := m.Pid
	if pid == 0 {
		return
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	// One that was just telling the kernel of a change cannot always end by
	// itself (doc/durability.md). The next mount would see to it: TestKilledTelling.
	if !gone(m.t, pid, killWait) {
		abort(m.Dir)
	}
	WaitGone(m.t, pid)
	m.forget()
	m.t.Cleanup(func() {
		if m.Pid == 0 {
			detach(m.Dir)
		}
	})
}

// Signal sends the daemon a signal.
func (m *Mount) Signal(sig syscall.Signal) {
	m.t.Helper()
	if err := syscall.Kill(m.Pid, sig); err != nil {
		m.t.Fatal(err)
	}
}

// Forget tells the harness that the daemon has ended by another way than
// Umount and Kill.
func (m *Mount) Forget() { m.forget() }

func (m *Mount) forget() {
	m.mu.Lock()
	m.Pid = 0
	m.mu.Unlock()
}

// Sync makes all that was written durable.
func (m *Mount) Sync() {
	m.t.Helper()
	if Plain() {
		unix.Sync()
		return
	}
	m.MustCafs("sync", m.Dir)
}

// Path joins names to the mountpoint.
func (m *Mount) Path(names ...string) string {
	return filepath.Join(append([]string{m.Dir}, names...)...)
}

// Result is what a command did.
type Result struct {
	Stdout, Stderr string
	Code           int // -1: ended by a signal, or by the time limit
}

// Cafs runs the binary with the given arguments and waits for it, at most two
// minutes.
func (m *Mount) Cafs(args ...string) Result {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.bin, args...)
	cmd.Env = append(os.Environ(), m.opts.Env...)
	return run(cmd)
}

// MustCafs is Cafs for a command that must succeed; it returns its output
// without the last newline.
func (m *Mount) MustCafs(args ...string) string {
	m.t.Helper()
	r := m.Cafs(args...)
	if r.Code != 0 {
		m.t.Fatalf("cafs %s: exit %d: %s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return strings.TrimSuffix(r.Stdout, "\n")
}

// run runs a command whose output goes to files: a daemon that the command
// leaves behind may keep them open, which would block a pipe's reader.
func run(cmd *exec.Cmd) Result {
	var r Result
	var files [2]*os.File
	for i := range files {
		f, err := os.CreateTemp(scratch, "out-")
		if err != nil {
			return Result{Stderr: err.Error(), Code: -1}
		}
		defer f.Close()
		defer os.Remove(f.Name())
		files[i] = f
	}
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
	case err != nil:
		return Result{Stderr: err.Error(), Code: -1}
	}
	for i, text := range []*string{&r.Stdout, &r.Stderr} {
		b, _ := os.ReadFile(files[i].Name())
		*text = string(b)
	}
	return r
}

// Log returns the daemon's log so far.
func (m *Mount) Log() string {
	b, _ := os.ReadFile(filepath.Join(m.Repo, "log"))
	return string(b)
}

// LogTail returns the end of the log, for messages.
func (m *Mount) LogTail() string {
	log := m.Log()
	return log[max(0, len(log)-8000):]
}

// RSS returns the daemon's resident memory in bytes.
func (m *Mount) RSS() int64 { return m.statusBytes("VmRSS:") }

// PeakRSS returns the most resident memory that the daemon ever had, in bytes.
func (m *Mount) PeakRSS() int64 { return m.statusBytes("VmHWM:") }

func (m *Mount) statusBytes(key string) int64 {
	m.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.Pid))
	if err != nil {
		m.t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(b, []byte(key))
	fields := strings.Fields(string(rest))
	if len(fields) == 0 {
		m.t.Fatalf("no %s in the status of the daemon", key)
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		m.t.Fatal(err)
	}
	return kib << 10
}

// DropCaches writes back and drops the kernel's caches of pages, entries and
// inodes. It says false where only root may.
func DropCaches() bool {
	unix.Sync()
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0) == nil
}
