package mount_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ipfs/go-cid"
	"golang.org/x/sys/unix"

	"cafs/mount"
	"cafs/mount/repo"
	"cafs/mount/tree"
	"cafs/mount/tree/index"
)

// A process must not use its own mount, so the server is this test binary
// started again: it mounts what its environment tells, says so on its standard
// output, answers a line "ops" with its counters, and unmounts when its
// standard input ends.
const serveEnv = "CAFS_MOUNT_TEST_SERVE"

// serveOptions are the part of mount.Options that tests choose.
type serveOptions struct {
	Repo, Dir           string
	AllowOther          bool
	AllowSuid, AllowDev bool
}

func TestMain(m *testing.M) {
	if text := os.Getenv(serveEnv); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, "serve:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func serve(text string) error {
	var o serveOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx := context.Background()
	r, err := repo.Open(ctx, o.Repo, repo.Options{Create: &repo.Config{}, Logger: log})
	if err != nil {
		return err
	}
	var live atomic.Pointer[mount.Server]
	t, _, err := r.OpenTree(ctx, repo.TreeOptions{Owner: me(), Changed: func(ino tree.Ino) {
		if s := live.Load(); s != nil {
			s.Changed(ino)
		}
	}})
	if err != nil {
		return err
	}
	s, err := mount.Mount(ctx, mount.Options{
		Tree: t, Sys: r.Sys, Dir: o.Dir, FsName: o.Repo, Logger: log,
		AllowOther: o.AllowOther, AllowSuid: o.AllowSuid, AllowDev: o.AllowDev,
		Roots: func(ctx context.Context) ([]cid.Cid, error) { return roots(ctx, t, o.Repo) },
	})
	if err != nil {
		return err
	}
	live.Store(s)
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if err := command(ctx, s, t, in.Text()); err != nil {
			return err
		}
	}
	if err := s.Unmount(context.Background(), false); err != nil {
		return err
	}
	return r.Close()
}

// refused tells whether the kernel found that the mode forbids it, before the
// daemon could say that nobody may: only on the mounts of ordinary users.
func refused(err error) bool { return os.Geteuid() != 0 && errors.Is(err, unix.EACCES) }

func me() tree.Cred { return tree.Cred{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())} }

// roots lists the tree's own root. While the file "hang" is beside the
// repository it does not return, like a store that does not answer; while
// "panic" is there it fails as our own mistakes do.
func roots(ctx context.Context, t *tree.Tree, repo string) ([]cid.Cid, error) {
	hang := filepath.Join(filepath.Dir(repo), "hang")
	if _, err := os.Stat(filepath.Join(filepath.Dir(repo), "panic")); err == nil {
		panic("a test asked for it")
	}
	for {
		if _, err := os.Stat(hang); err != nil {
			root, err := t.Seal(ctx, tree.RootIno)
			return []cid.Cid{root.Cid}, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// command does what a test asks of its server, and answers with one line. What
// changes the tree does so behind the kernel's back and then tells it, as
// commands that reach a daemon do.
func command(ctx context.Context, s *mount.Server, t *tree.Tree, line string) error {
	words := strings.Fields(line)
	switch words[0] {
	case "ops":
		return json.NewEncoder(os.Stdout).Encode(s.Ops())
	case "unmount": // while the test sees to it that the mount is in use
		return json.NewEncoder(os.Stdout).Encode(errors.Is(s.Unmount(context.Background(), false), unix.EBUSY))
	case "make", "remove": // a name in the root
		if words[0] == "remove" {
			if err := t.Unlink(tree.RootIno, words[1]); err != nil {
				return err
			}
		} else if _, err := t.Create(me(), tree.RootIno, words[1], tree.Node{Kind: index.File, Perm: 0o600}); err != nil {
			return err
		}
		if err := s.NotifyEntry(tree.RootIno, words[1]); err != nil {
			return err
		}
	case "write": // the second word as content of the file in the root
		a, err := t.Lookup(tree.RootIno, words[1])
		if err != nil {
			return err
		}
		defer t.Forget(a.Ino, 1)
		if _, err := t.Write(ctx, a.Ino, []byte(words[2]), 0, nil); err != nil {
			return err
		}
		if err := s.NotifyContent(a.Ino); err != nil {
			return err
		}
	default:
		return fmt.Errorf("unknown command %q", line)
	}
	_, err := fmt.Println("true")
	return err
}

// mounted is a server and its mount.
type mounted struct {
	t       *testing.T
	Dir     string
	opts    serveOptions
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	hanging uint64 // listings that TestInterrupt has started
}

// limit is how long a test may use its mount before the watchdog ends it. What
// hangs in a FUSE request cannot be killed, only have its connection aborted.
const limit = 2 * time.Minute

// mountTest mounts a new repository until the test ends.
func mountTest(t *testing.T, o serveOptions) *mounted {
	t.Helper()
	needFUSE(t)
	if o.AllowOther && os.Geteuid() != 0 {
		t.Skip("others may use only root's mounts, unless /etc/fuse.conf says else")
	}
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // for tests as another user
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	o.Repo, o.Dir = filepath.Join(dir, "repo"), filepath.Join(dir, "m")
	if err := os.Mkdir(o.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := &mounted{t: t, Dir: o.Dir, opts: o}
	m.start()
	t.Cleanup(func() {
		if m.cmd != nil {
			m.stop()
		}
		if t.Failed() {
			t.Logf("log of the server:\n%s", m.log())
		}
	})
	return m
}

func needFUSE(t *testing.T) {
	t.Helper()
	gate := os.Getenv("CAFS_FUSE")
	if gate == "0" {
		t.Skip("CAFS_FUSE=0")
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	if err != nil && gate != "1" {
		t.Skipf("cannot mount: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (m *mounted) start() {
	m.t.Helper()
	text, err := json.Marshal(m.opts)
	if err != nil {
		m.t.Fatal(err)
	}
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(os.Environ(), serveEnv+"="+string(text))
	// A file, not a pipe: what the server wrote is there at once.
	log, err := os.OpenFile(m.logName(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close()
	m.cmd.Stderr = log
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		m.t.Fatal(err)
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	m.out = bufio.NewReader(out)
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	if line, err := m.out.ReadString('\n'); err != nil || line != "ready\n" {
		m.cmd.Wait()
		m.cmd = nil
		m.t.Fatalf("server: %q, %v\n%s", line, err, m.log())
	}
	m.watch()
}

// watch aborts the connection when the test takes too long.
func (m *mounted) watch() {
	var st unix.Stat_t
	if err := unix.Stat(m.Dir, &st); err != nil {
		m.t.Fatal(err)
	}
	cmd := m.cmd
	dog := time.AfterFunc(limit, func() {
		os.WriteFile(fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", unix.Minor(st.Dev)), []byte("1"), 0)
		cmd.Process.Kill()
	})
	m.t.Cleanup(func() { dog.Stop() })
}

// stop unmounts and waits for the server, which must end well.
func (m *mounted) stop() {
	m.t.Helper()
	m.in.Close()
	if err := m.cmd.Wait(); err != nil {
		m.t.Errorf("server: %v", err)
		unix.Unmount(m.Dir, unix.MNT_DETACH)
	}
	m.cmd = nil
}

func (m *mounted) remount() {
	m.t.Helper()
	m.stop()
	m.start()
}

func (m *mounted) logName() string { return filepath.Join(filepath.Dir(m.opts.Repo), "log") }

// log is what the server has logged so far.
func (m *mounted) log() string {
	text, err := os.ReadFile(m.logName())
	if err != nil {
		m.t.Error(err)
	}
	return string(text)
}

func (m *mounted) path(names ...string) string {
	return filepath.Join(append([]string{m.Dir}, names...)...)
}

// ask sends the server a command and decodes its answer.
func (m *mounted) ask(line string, answer any) {
	m.t.Helper()
	if _, err := fmt.Fprintln(m.in, line); err != nil {
		m.t.Fatal(err)
	}
	text, err := m.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", line, err, m.log())
	}
}

// tell has the server do something.
func (m *mounted) tell(line string) {
	m.t.Helper()
	var done bool
	m.ask(line, &done)
}

// ops returns the messages that fn causes, but for FORGET, which comes when
// the kernel likes.
func (m *mounted) ops(fn func()) map[string]uint64 {
	m.t.Helper()
	var before, after map[string]uint64
	m.ask("ops", &before)
	fn()
	m.ask("ops", &after)
	maps.DeleteFunc(after, func(k string, n uint64) bool { return k == "FORGET" || n == before[k] })
	for k := range after {
		after[k] -= before[k]
	}
	return after
}
