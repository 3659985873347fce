package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cafs/integration/harness"
)

// TestKilled: after kill -9 the dead mount is replaced by mounting again, by
// the same user, without another step; there is no lock to remove.
func TestKilled(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	write(t, m.Path("f"), stream(1, 3<<20))
	m.Sync()
	for range 3 {
		m.Kill()
		if _, err := os.ReadDir(m.Dir); !errors.Is(err, syscall.ENOTCONN) {
			t.Errorf("reading a dead mount: %v, must be ENOTCONN", err)
		}
		m.Mount()
		wantFile(t, m.Path("f"), stream(1, 3<<20))
	}
}

// TestStopped: that a daemon does not answer, and the kernel has kept nothing of
// its mount, is an error of every command and the end of none.
func TestStopped(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	write(t, m.Path("d", "f"), []byte("content")) // the attributes of the root are not known now
	m.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	refused := func(args ...string) {
		out, err := exec.CommandContext(ctx, harness.Binary(t), args...).CombinedOutput()
		if err == nil || ctx.Err() != nil || !strings.Contains(string(out), "does not answer") {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { refused("mount", "-b", "--repo", m.Repo, m.Dir) })
	wg.Go(func() { refused("status", m.Dir) })
	wg.Go(func() { refused("snapshot", "create", "--repo", m.Repo) })
	wg.Wait()
	refused("umount", m.Dir) // the mount goes; the daemon follows when it can
	m.Signal(syscall.SIGCONT)
	m.Forget()
	m.Mount()
	wantFile(t, m.Path("d", "f"), []byte("content"))
}

// TestKilledTelling: a daemon may be killed while it tells the kernel of a name
// that a command has changed, and a program that changes another one in that
// directory waits for it; then it cannot end by itself. The next mount sees to it.
func TestKilledTelling(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedAbort(t)
	m := harness.New(t, harness.Options{})
	write(t, m.Path("f"), []byte("content"))
	write(t, m.Path("d", "f"), []byte("content"))
	c := cidOf(t, m.Path("f"))
	m.Sync()
	rounds := 3
	if harness.Long() {
		rounds = 25
	}
	for range rounds {
		dead := make(chan struct{})
		var others sync.WaitGroup
		for i := range 8 {
			others.Go(func() {
				for name := m.Path("d", fmt.Sprint(i)); ; {
					select {
					case <-dead:
						return
					default:
						_ = errors.Join(os.Mkdir(name, 0o700), os.Remove(name)) // which fail when the daemon does
					}
				}
			})
			others.Go(func() {
				for k := 0; ; k++ {
					select {
					case <-dead:
						return
					default:
						m.Cafs("cp", "--repo", m.Repo, c, m.Path("d", fmt.Sprint("c", i, "-", k)))
					}
				}
			})
		}
		time.Sleep(rand.N(time.Second)) // any moment will do
		m.Signal(syscall.SIGKILL)
		close(dead)
		m.Forget()
		m.Mount()
		others.Wait()
		wantFile(t, m.Path("d", "f"), []byte("content"))
		command(t, m.Dir, "sh", "-c", "rm -rf d/[0-9c]*")
		m.Sync()
	}
}
