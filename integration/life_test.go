package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cafs/integration/harness"
)

// TestMountFails: every reason for which a mount cannot be had ends the
// command within two seconds, with the cause and what to do about it.
func TestMountFails(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	dir := harness.Scratch(t)
	full, file := filepath.Join(dir, "full"), filepath.Join(dir, "file")
	write(t, full+"/x", nil)
	write(t, file, nil)
	m.MustCafs("init", "--repo", dir+"/made")
	rows := []struct {
		name string
		args []string
		want []string // all of these words in the message
		wrap []string // run below this
		root bool
	}{
		{name: "folder not empty", args: []string{"--repo", dir + "/r", full}, want: []string{full, "empty", "hint"}},
		{name: "parent missing", args: []string{"--repo", dir + "/r", dir + "/no/such"}, want: []string{dir + "/no", "hint"}},
		{name: "not a folder", args: []string{"--repo", dir + "/r", file}, want: []string{file, "not a folder"}},
		{name: "mountpoint in the repository", args: []string{"--repo", dir + "/made", dir + "/made/m"}, want: []string{"overlap", dir + "/made/m"}},
		{name: "repository in the mountpoint", args: []string{"--repo", dir + "/q/r", dir + "/q"}, want: []string{"overlap", dir + "/q/r"}},
		{name: "repository in use", args: []string{"--repo", m.Repo, dir + "/m"}, want: []string{fmt.Sprint(m.Pid), m.Dir, "cafs umount"}},
		{name: "mounted already", args: []string{"--repo", dir + "/r", m.Dir}, want: []string{m.Dir, "hint"}},
		{name: "no folder named", args: []string{"--repo", dir + "/r"}, want: []string{"directory"}},
		{name: "no /dev/fuse", root: true, args: []string{"--repo", dir + "/r", dir + "/m"}, want: []string{"/dev/fuse", "hint"},
			wrap: []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs none /dev && mknod /dev/null c 1 3 && exec "$@"`, "sh"}},
		{name: "no permission", root: true, args: []string{"--repo", dir + "/closed/r", dir + "/m2"}, want: []string{"permission denied"},
			wrap: []string{"setpriv", "--reuid", fmt.Sprint(harness.UserA), "--clear-groups"}},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			if r.root {
				harness.NeedRoot(t)
			}
			line := append(append(r.wrap, harness.Binary(t), "mount", "-b"), r.args...)
			var took time.Duration
			for range 3 { // the machine may be busy with something else
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				start := time.Now()
				out, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
				took = time.Since(start)
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() < 1 {
					t.Fatalf("%v: %v\n%s", r.args, err, out)
				}
				for _, word := range r.want {
					if !strings.Contains(string(out), word) {
						t.Errorf("the message does not name %q:\n%s", word, out)
					}
				}
				if took < 2*time.Second {
					return
				}
			}
			t.Errorf("took %v", took)
		})
	}
}

// TestEnds: each way to end a mount keeps all that was written, and frees the
// repository.
func TestEnds(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	ends := map[string]func(){
		"SIGTERM": func() { m.Signal(syscall.SIGTERM) },
		"SIGINT":  func() { m.Signal(syscall.SIGINT) },
		"SIGHUP":  func() { m.Signal(syscall.SIGHUP) },
		"umount":  func() { command(t, "/", "umount", m.Dir) },
	}
	if os.Geteuid() != 0 {
		ends["umount"] = func() { command(t, "/", "fusermount3", "-u", m.Dir) }
	}
	for name, end := range ends {
		want := stream(uint64(len(name)), 2<<20+7)
		write(t, m.Path("d", name), want)
		pid := m.Pid
		end()
		harness.WaitGone(t, pid)
		m.Forget()
		if harness.Mounted(m.Dir) {
			t.Errorf("%s: still mounted", name)
		}
		m.Mount()
		wantFile(t, m.Path("d", name), want)
	}
}

// TestEndsUnderLoad: a mount that is ended while programs write keeps every file
// that was written to its end.
func TestEndsUnderLoad(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{Args: []string{"--commit-interval", "1h"}})
	ends := []func(){
		func() { m.MustCafs("umount", "--lazy", m.Dir) },
		func() { m.MustCafs("umount", "--force", m.Dir) },
		func() { m.Signal(syscall.SIGTERM) },
	}
	for round, end := range ends {
		dir := mkdir(t, m.Path("d", fmt.Sprint(round)))
		var done [4]int // files of each writer that are complete
		var wg sync.WaitGroup
		for w := range done {
			wg.Go(func() {
				for os.WriteFile(filepath.Join(dir, fmt.Sprint(w, "-", done[w])), stream(uint64(done[w]), 1000*(done[w]%50)), 0o644) == nil {
					done[w]++
				}
			})
		}
		time.Sleep(500 * time.Millisecond) // some load; the moment is of no matter
		pid := m.Pid
		end()
		harness.WaitGone(t, pid)
		m.Forget()
		wg.Wait() // the folder is not there any more
		m.Mount()
		for w, n := range done {
			if n == 0 {
				t.Errorf("round %d: writer %d did nothing", round, w)
			}
			for i := range n {
				wantFile(t, filepath.Join(dir, fmt.Sprint(w, "-", i)), stream(uint64(i), 1000*(i%50)))
			}
		}
	}
}

// TestForeground: without -b the command serves, says how to unmount, and ends
// with 0 on Ctrl-C.
func TestForeground(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	write(t, m.Path("f"), []byte("x"))
	m.Umount()
	cmd := exec.Command(harness.Binary(t), "mount", "--repo", m.Repo, m.Dir)
	out, err := os.Create(filepath.Join(harness.Scratch(t), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	text := waitFor(t, "a message how to unmount", func() (string, bool) {
		b, _ := os.ReadFile(out.Name())
		return string(b), strings.Contains(string(b), "umount")
	})
	for _, word := range []string{m.Dir, m.Repo, "unixfs-v1-2025"} {
		if !strings.Contains(text, word) {
			t.Errorf("the messages do not name %s:\n%s", word, text)
		}
	}
	wantFile(t, m.Path("f"), []byte("x"))
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	if harness.Mounted(m.Dir) {
		t.Error("still mounted after Ctrl-C")
	}
}

// waitFor polls until what was asked for is there, at most 30 s.
func waitFor(t *testing.T, what string, ready func() (string, bool)) string {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s, ok := ready()
		if ok {
			return s
		}
		if time.Now().After(end) {
			t.Fatalf("no %s in 30 s: %s", what, s)
		}
	}
}

// TestMountCommand: mount DIR -- CMD runs CMD in the mount's time and ends with
// its status.
func TestMountCommand(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	m.Umount()
	for _, row := range []struct {
		script, out string
		code        int
	}{
		{`echo hello >"$1/f"; cat "$1/f"`, "hello\n", 0},
		{`cat "$1/f"; exit 7`, "hello\n", 7},
		{`kill -TERM $$`, "", 128 + 15},
	} {
		r := m.Cafs("mount", "--repo", m.Repo, m.Dir, "--", "sh", "-c", row.script, "sh", m.Dir)
		if r.Code != row.code || r.Stdout != row.out {
			t.Errorf("%s: exit %d with %q, must be %d with %q\n%s", row.script, r.Code, r.Stdout, row.code, row.out, r.Stderr)
		}
		if harness.Mounted(m.Dir) {
			t.Fatal("still mounted")
		}
	}
}

// TestUmountBusy: an unmount that cannot be says who is in the way.
func TestUmountBusy(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	cmd := exec.Command("sleep", "100")
	cmd.Dir = mkdir(t, m.Path("d"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := m.Cafs("umount", m.Dir)
	for _, word := range []string{fmt.Sprint(cmd.Process.Pid), "sleep"} {
		if r.Code == 0 || !strings.Contains(r.Stderr, word) {
			t.Errorf("exit %d, and the message must name %s:\n%s", r.Code, word, r.Stderr)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	m.Remount()
	if _, err := os.Stat(m.Path("d")); err != nil {
		t.Error(err)
	}
}

// TestRepoCopy (X06): when umount has returned, the repository is complete: a
// copy of the folder mounts elsewhere with the same tree.
func TestRepoCopy(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	want := filepath.Join(harness.Scratch(t), "want")
	zoo(t, want)
	command(t, "/", "cp", "-a", want+"/.", m.Dir)
	cid := cidOf(t, m.Dir)
	m.Umount()
	copied := filepath.Join(harness.Scratch(t), "copy")
	command(t, "/", "cp", "-a", m.Repo, copied)
	m.Mount()
	other := harness.New(t, harness.Options{Repo: copied})
	same(t, want, other.Dir)
	same(t, m.Dir, other.Dir)
	if got := cidOf(t, other.Dir); got != cid {
		t.Errorf("root CID is %s in the copy, was %s", got, cid)
	}
}

// TestStatus: status, sync and version of a mount, and of none.
func TestStatus(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{Args: []string{"--commit-interval", "1h"}})
	write(t, m.Path("f"), stream(3, 100_000))
	get := func() (s struct {
		PID                           int
		Repo, Mountpoint, Profile     string
		DirtyBytes, FreeBytes, Staged int64
	}) {
		var raw map[string]any
		text := m.MustCafs("status", "--json", m.Dir)
		if err := json.Unmarshal([]byte(text), &raw); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		s.PID, s.Repo, s.Mountpoint, s.Profile = int(raw["pid"].(float64)), raw["repo"].(string), raw["mountpoint"].(string), raw["profile"].(string)
		s.DirtyBytes, s.FreeBytes = int64(raw["dirty_bytes"].(float64)), int64(raw["free_bytes"].(float64))
		return s
	}
	s := get()
	if s.PID != m.Pid || s.Repo != m.Repo || s.Mountpoint != m.Dir || s.Profile != "unixfs-v1-2025" || s.FreeBytes <= 0 {
		t.Errorf("status: %+v", s)
	}
	if s.DirtyBytes < 100_000 {
		t.Errorf("%d bytes not durable, before anything made them so", s.DirtyBytes)
	}
	m.Sync()
	if s := get(); s.DirtyBytes != 0 {
		t.Errorf("%d bytes not durable after sync", s.DirtyBytes)
	}
	if v := m.MustCafs("version"); !strings.Contains(v, "cafs") {
		t.Errorf("version: %s", v)
	}
	m.Umount()
	if r := m.Cafs("status", "--json", "--repo", m.Repo); !strings.Contains(r.Stdout, `"pid":0,`) {
		t.Errorf("status without a mount: %s", r.Stdout)
	}
	m.Mount()
}

// TestLongPaths: a repository whose path is longer than a socket's may be.
func TestLongPaths(t *testing.T) {
	harness.NeedDaemon(t)
	dir := mkdir(t, filepath.Join(harness.Scratch(t), strings.Repeat("long name ", 20)))
	m := harness.New(t, harness.Options{Repo: dir + "/r", Dir: dir + "/m"})
	write(t, m.Path("f"), []byte("x"))
	m.Sync()
	m.Remount()
	wantFile(t, m.Path("f"), []byte("x"))
}

// TestOrdinaryUser: somebody who is not root mounts, owns what they make, and
// can mount it again.
func TestOrdinaryUser(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedRoot(t)
	harness.NeedCommand(t, "fusermount3", "setpriv", "unshare")
	nobody, err := user.Lookup("nobody") // fusermount3 wants a user with a name
	if err != nil {
		t.Fatal(err)
	}
	dir := harness.Scratch(t)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	script := `set -e
		"$0" mount -b --repo r m; trap '"$0" umount m' EXIT
		echo x >m/f; chmod 600 m/f; mkdir m/d; cat m/f; stat -c '%u %a' m/f
		"$0" umount m; "$0" mount -b --repo r m; cat m/f`
	// A /dev of its own, since some machines give the device to root alone.
	dev := `mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/fuse c 10 229 &&
		exec setpriv --reuid $0 --regid $0 --clear-groups sh -c "$@"`
	cmd := exec.Command("unshare", "-m", "sh", "-c", dev, nobody.Uid, script, harness.Binary(t))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf("x\n%s 600\n", nobody.Uid)) || !strings.HasSuffix(string(out), "\nx\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMountCycles (L08): mounting and unmounting again and again, with
// somebody reading, neither hangs nor loses.
func TestMountCycles(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	write(t, m.Path("f"), stream(5, 1<<20))
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = os.ReadFile(m.Path("f"))   // may find no mount
				time.Sleep(20 * time.Millisecond) // or unmount rarely finds it closed
			}
		}
	}()
	for range harness.Scale(15, 200) {
		// The reader may hold the file open at this moment.
		waitFor(t, "unmount", func() (string, bool) {
			r := m.Cafs("umount", m.Dir)
			return r.Stderr, r.Code == 0
		})
		m.Mount()
	}
	close(stop)
	<-done
	wantFile(t, m.Path("f"), stream(5, 1<<20))
}

// TestUmountElsewhere: a mount that another mount namespace has too goes on
// there. Whoever unmounts it is told who keeps it; what was written is durable;
// and the mount ends by force, by a signal, or with the last who keeps it.
func TestUmountElsewhere(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedRoot(t)
	m := harness.New(t, harness.Options{Args: []string{"--commit-interval", "1h"}})
	keep := func() *exec.Cmd {
		t.Helper()
		cmd := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", "echo there; exec sleep 300")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		if _, err := out.Read(make([]byte, 16)); err != nil { // the namespace is there
			t.Fatal(err)
		}
		return cmd
	}
	end := func(cmd *exec.Cmd) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	refused := func(cmd *exec.Cmd, args ...string) {
		t.Helper()
		begin := time.Now()
		r := m.Cafs(append([]string{"umount"}, args...)...)
		if r.Code != 7 || time.Since(begin) > 20*time.Second {
			t.Errorf("umount %q: exit %d after %v, must be 7 soon", args, r.Code, time.Since(begin))
		}
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{fmt.Sprintf("pid %d", cmd.Process.Pid), "sleep", strings.TrimPrefix(ns, "mnt:"), "--force --repo " + m.Repo} {
			if !strings.Contains(r.Stderr, word) {
				t.Errorf("the message does not name %q:\n%s", word, r.Stderr)
			}
		}
	}
	want := func(n uint64) {
		t.Helper()
		for i := range n {
			wantFile(t, m.Path(fmt.Sprint(i)), stream(i, 300_000))
		}
	}
	ends := []func(cmd *exec.Cmd){
		func(cmd *exec.Cmd) {
			refused(cmd, m.Dir)
			if harness.Mounted(m.Dir) {
				t.Error("still mounted")
			}
			refused(cmd, "--repo", m.Repo, m.Dir) // nothing is mounted there any more
			m.Kill()                              // so that nothing but umount made it durable
		},
		func(cmd *exec.Cmd) {
			refused(cmd, m.Dir)
			m.MustCafs("umount", "--force", "--repo", m.Repo, m.Dir)
		},
		func(cmd *exec.Cmd) { m.Signal(syscall.SIGTERM) },
		func(cmd *exec.Cmd) {
			refused(cmd, m.Dir)
			end(cmd)
		},
	}
	for i, finish := range ends {
		cmd := keep()
		write(t, m.Path(fmt.Sprint(i)), stream(uint64(i), 300_000))
		pid := m.Pid
		finish(cmd)
		harness.WaitGone(t, pid)
		m.Forget()
		end(cmd)
		m.Mount()
		want(uint64(i) + 1)
	}
}
