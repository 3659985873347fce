package posix_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// TestLocks: flock, fcntl and OFD locks on two descriptors of one file: the
// last two kinds conflict, and flock knows nothing of either.
func TestLocks(t *testing.T) {
	m := setup(t)
	a := open(t, m.Path("f"), unix.O_RDWR|unix.O_CREAT)
	b := open(t, m.Path("f"), unix.O_RDWR)
	lock := func(fd, cmd int, typ int16, off, n int64) error {
		return unix.FcntlFlock(uintptr(fd), cmd, &unix.Flock_t{Type: typ, Start: off, Len: n})
	}
	const ofd, posix = unix.F_OFD_SETLK, unix.F_SETLK
	must(t, lock(a, ofd, unix.F_WRLCK, 0, 100))
	want(t, "OFD write over OFD write", lock(b, ofd, unix.F_WRLCK, 50, 1), unix.EAGAIN)
	want(t, "OFD read over OFD write", lock(b, ofd, unix.F_RDLCK, 99, 10), unix.EAGAIN)
	want(t, "behind it", lock(b, ofd, unix.F_WRLCK, 100, 0), nil)
	want(t, "fcntl over OFD", lock(a, posix, unix.F_WRLCK, 10, 1), unix.EAGAIN)
	got := unix.Flock_t{Type: unix.F_RDLCK}
	must(t, unix.FcntlFlock(uintptr(b), unix.F_OFD_GETLK, &got))
	if got.Type != unix.F_WRLCK || got.Start != 0 || got.Len != 100 || got.Pid != -1 {
		t.Errorf("who holds it: %+v", got)
	}
	must(t, lock(a, ofd, unix.F_RDLCK, 0, 50)) // the first half may be read
	want(t, "OFD read over OFD read", lock(b, ofd, unix.F_RDLCK, 0, 50), nil)
	want(t, "the second half", lock(b, ofd, unix.F_RDLCK, 50, 1), unix.EAGAIN)
	must(t, unix.Flock(a, unix.LOCK_EX|unix.LOCK_NB))
	want(t, "flock twice", unix.Flock(b, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)

	var wg sync.WaitGroup
	wg.Go(func() { want(t, "waiting for the lock", unix.Flock(b, unix.LOCK_EX), nil) })
	must(t, unix.Flock(a, unix.LOCK_UN))
	wg.Wait()
	want(t, "now the other has it", unix.Flock(a, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
	unix.Close(b)
	want(t, "closed", unix.Flock(a, unix.LOCK_EX|unix.LOCK_NB), nil)
	want(t, "closed, OFD", lock(a, ofd, unix.F_WRLCK, 0, 0), nil)

	// The locks of fcntl belong to the process: another one must not get them.
	must(t, lock(a, ofd, unix.F_UNLCK, 0, 0))
	must(t, lock(a, posix, unix.F_WRLCK, 5, 5))
	c := open(t, m.Path("f"), unix.O_RDWR)
	got = unix.Flock_t{Type: unix.F_WRLCK}
	must(t, unix.FcntlFlock(uintptr(c), unix.F_OFD_GETLK, &got))
	if got.Type != unix.F_WRLCK || got.Start != 5 || int(got.Pid) != os.Getpid() {
		t.Errorf("who holds it: %+v", got)
	}
	unix.Close(c) // which, as everyone regrets, gives up the locks of the process
	d := open(t, m.Path("f"), unix.O_RDWR)
	want(t, "after close", lock(d, ofd, unix.F_WRLCK, 0, 0), nil)
}

// TestListingUnderChange: a listing read in small parts, while names come and
// go, has every name that was there all the time, once, and can be taken up
// again at any position that was handed out.
func TestListingUnderChange(t *testing.T) {
	m := setup(t)
	keep := map[string]bool{}
	for i := range 600 {
		name := fmt.Sprintf("keep-%d", i)
		keep[name] = true
		must(t, os.WriteFile(m.Path(name), nil, 0o600))
		must(t, os.WriteFile(m.Path(fmt.Sprintf("go-%d", i)), nil, 0o600))
	}
	fd := open(t, m.Dir, unix.O_RDONLY|unix.O_DIRECTORY)
	for round := range 4 {
		seen := map[string]int{}
		must(t, second(unix.Seek(fd, 0, 0)))
		buf := make([]byte, 400+round*1000)
		for part := 0; ; part++ {
			n, err := unix.Getdents(fd, buf)
			must(t, err)
			if n == 0 {
				break
			}
			_, _, names := unix.ParseDirent(buf[:n], -1, nil)
			for _, name := range names {
				seen[name]++
			}
			pos, err := unix.Seek(fd, 0, 1)
			must(t, err)
			i := round*600 + part
			_ = os.Remove(m.Path(fmt.Sprintf("go-%d", (part*7)%600)))
			must(t, os.WriteFile(m.Path(fmt.Sprintf("new-%d", i)), nil, 0o600))
			if part%5 == 0 { // renaming what is to come must not hide others
				must(t, os.Rename(m.Path(fmt.Sprintf("new-%d", i)), m.Path(fmt.Sprintf("moved-%d", i))))
			}
			if part%9 == 0 {
				must(t, second(unix.Seek(fd, 0, 0)))
				must(t, second(unix.Seek(fd, pos, 0)))
			}
		}
		for name := range keep {
			if seen[name] != 1 {
				t.Errorf("round %d: %s was listed %d times", round, name, seen[name])
			}
		}
		for name, n := range seen {
			if n != 1 && !strings.HasPrefix(name, "new-") && !strings.HasPrefix(name, "moved-") {
				t.Errorf("round %d: %s was listed %d times", round, name, n)
			}
		}
	}
	must(t, unix.Fsync(fd))
}

// TestLargeFolder: a folder with very many names is made, listed, looked up in
// and removed.
func TestLargeFolder(t *testing.T) {
	m := setup(t)
	n := harness.Scale(4_000, 1_000_000)
	dir := m.Path("d")
	must(t, os.Mkdir(dir, 0o755))
	name := func(i int) string { return fmt.Sprintf("%s/%x-%d", dir, uint32(i)*2654435761, i) }
	began := time.Now()
	took := func(what string) {
		t.Logf("%d names %s in %v", n, what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	for i := range n {
		must(t, unix.Mknod(name(i), unix.S_IFREG|0o600, 0))
	}
	took("made")
	m.Remount()
	took("remounted")
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != n {
		t.Fatalf("%d names, %v", len(list), err)
	}
	took("listed")
	seen := map[string]bool{}
	for _, e := range list {
		seen[dir+"/"+e.Name()] = true
	}
	for i := range n {
		if !seen[name(i)] {
			t.Fatalf("%s is missing", name(i))
		}
		if st := stat(t, name(i)); st.Mode != unix.S_IFREG|0o600 || st.Size != 0 {
			t.Fatalf("%s: mode %o, %d bytes", name(i), st.Mode, st.Size)
		}
	}
	took("looked up")
	want(t, "rmdir", unix.Rmdir(dir), unix.ENOTEMPTY)
	for i := range n {
		must(t, unix.Unlink(name(i)))
	}
	must(t, unix.Rmdir(dir))
	took("removed")
}
