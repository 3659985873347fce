package transport_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"cafs/mount/transport"
)

// stub is a file system of names: "block…" is looked up for as long as release
// is open, "slow…" takes about as long as a listener may, anything else is there
// at once.
type stub struct {
	fuse.RawFileSystem
	release     chan struct{}
	blocked     atomic.Int32
	interrupted atomic.Int32
	lookups     atomic.Int32
}

var file = fuse.Attr{Ino: 2, Mode: syscall.S_IFREG | 0o644, Nlink: 1, Size: 7}

func (s *stub) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.Attr = fuse.Attr{Ino: in.NodeId, Mode: syscall.S_IFDIR | 0o755, Nlink: 2}
	if in.NodeId == file.Ino {
		out.Attr = file
	}
	return fuse.OK
}

func (s *stub) Lookup(cancel <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	s.lookups.Add(1)
	if name[0] == 'b' {
		s.blocked.Add(1)
		select {
		case <-s.release:
		case <-cancel:
			s.interrupted.Add(1)
			return fuse.EINTR
		}
	}
	if name[0] == 's' {
		for end := time.Now().Add(180*time.Microsecond + rand.N(60*time.Microsecond)); time.Now().Before(end); {
		}
	}
	out.EntryValid = 3600
	out.NodeId, out.Attr = file.Ino, file
	return fuse.OK
}

const inflight = 16

// serve mounts a stub and returns its directory. Other processes use it: this
// one must not.
func serve(t *testing.T) (*stub, *transport.Conn, string) {
	if os.Geteuid() != 0 {
		t.Skip("mounts without fusermount3, which only root may")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		if os.Getenv("CAFS_FUSE") == "1" {
			t.Fatalf("FUSE is required: %v", err)
		}
		t.Skipf("needs FUSE: %v", err)
	}
	dir := t.TempDir()
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("transport-test", dir, "fuse.test", 0, data); err != nil {
		t.Fatal(err)
	}
	s := &stub{RawFileSystem: fuse.NewDefaultRawFileSystem(), release: make(chan struct{})}
	server := fuse.NewProtocolServer(s, &fuse.MountOptions{MaxWrite: 128 << 10})
	c, err := transport.New(fd, server, transport.Options{MaxWrite: 128 << 10, MaxInflight: inflight, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { c.Serve(); close(done) }()
	t.Cleanup(func() {
		unix.Unmount(dir, unix.MNT_DETACH)
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			t.Error("the connection did not end")
		}
	})
	return s, c, dir
}

func stat(t *testing.T, path string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, "stat", "-c", "%s", path)
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// TestBlockedHandlers: messages that wait do not keep others from being handled.
func TestBlockedHandlers(t *testing.T) {
	s, _, dir := serve(t)
	var waiting []*exec.Cmd
	for i := range inflight - 2 {
		cmd := stat(t, filepath.Join(dir, fmt.Sprintf("block%d", i)))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, cmd)
		until(t, "the look-up to block", func() bool { return s.blocked.Load() == int32(i+1) })
	}
	for i := range 50 {
		if out, err := stat(t, filepath.Join(dir, fmt.Sprintf("free%d", i))).Output(); err != nil || string(out) != "7\n" {
			t.Fatalf("stat beside blocked look-ups: %q, %v", out, err)
		}
	}
	close(s.release)
	for _, cmd := range waiting {
		if err := cmd.Wait(); err != nil {
			t.Errorf("blocked stat: %v", err)
		}
	}
}

// TestInterrupt: killing a program cancels what it waits for.
func TestInterrupt(t *testing.T) {
	s, _, dir := serve(t)
	cmd := stat(t, filepath.Join(dir, "block"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, "the look-up to block", func() bool { return s.blocked.Load() == 1 })
	cmd.Process.Kill()
	until(t, "the interrupt", func() bool { return s.interrupted.Load() == 1 })
	cmd.Wait()
}

// TestNotify: the kernel keeps a name until it is told to drop it.
func TestNotify(t *testing.T) {
	s, c, dir := serve(t)
	look := func() int32 {
		before := s.lookups.Load()
		if err := stat(t, filepath.Join(dir, "name")).Run(); err != nil {
			t.Fatal(err)
		}
		return s.lookups.Load() - before
	}
	look()
	if n := look(); n != 0 {
		t.Fatalf("%d look-ups of a name that the kernel has", n)
	}
	if st := c.EntryNotify(fuse.FUSE_ROOT_ID, "name"); !st.Ok() {
		t.Fatalf("EntryNotify: %v", st)
	}
	if look() == 0 {
		t.Error("no look-up after EntryNotify")
	}
	if st := c.InodeNotify(2, 0, 0); !st.Ok() {
		t.Errorf("InodeNotify of a known inode: %v", st)
	}
	if st := c.InodeNotify(99, 0, 0); st != fuse.ENOENT {
		t.Errorf("InodeNotify of an unknown inode: %v, want ENOENT", st)
	}
}

// TestHandover: handlers that end just when their listener is replaced leave
// one listener, neither none nor a connection that counts as ended, and those who
// were it take turns.
func TestHandover(t *testing.T) {
	s, _, dir := serve(t)
	before := runtime.NumGoroutine()
	const n = 10_000
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	script := fmt.Sprintf("i=0; while [ $i -lt %d ]; do [ -e %s/slow$i ] || exit 1; i=$((i+1)); done", n, dir)
	loop := exec.CommandContext(ctx, "sh", "-c", script)
	if out, err := loop.CombinedOutput(); err != nil {
		t.Fatalf("after %d look-ups: %v %s", s.lookups.Load(), err, out)
	}
	if n := runtime.NumGoroutine(); n > before+8 {
		t.Errorf("%d goroutines, %d before", n, before)
	}
}
