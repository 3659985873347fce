package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// exact is manifest with what a commit keeps beyond what copies do: all times,
// ACLs, and where holes are.
func exact(t testing.TB, root string) map[string]string {
	t.Helper()
	out := manifest(t, root)
	for rel := range out {
		path := filepath.Join(root, rel)
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
			t.Fatalf("statx %s: %v", path, err)
		}
		s := fmt.Sprintf(" atime %d.%09d ctime %d.%09d btime %d.%09d", st.Atime.Sec, st.Atime.Nsec, st.Ctime.Sec, st.Ctime.Nsec, st.Btime.Sec, st.Btime.Nsec)
		b := make([]byte, 4096)
		for _, name := range []string{"system.posix_acl_access", "system.posix_acl_default"} {
			if n, err := unix.Lgetxattr(path, name, b); err == nil {
				s += fmt.Sprintf(" %s %x", name, b[:n])
			}
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			s += " data" + ranges(t, path)
		}
		out[rel] += s
	}
	return out
}

// ranges tells which chunks of a file have data: a sealed file has holes of
// whole chunks only.
func ranges(t testing.TB, path string) (s string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const chunk = 1 << 20
	last := int64(-1)
	for off := int64(0); ; {
		from, err := unix.Seek(fd, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return s
		}
		if err == nil {
			off, err = unix.Seek(fd, from, unix.SEEK_HOLE)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := max(from/chunk, last+1); i <= (off-1)/chunk; i++ {
			s += fmt.Sprint(" ", i)
			last = i
		}
	}
}

// equal compares two results of exact.
func equal(t testing.TB, what string, want, got map[string]string) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if got[path] != want[path] {
			t.Errorf("%s: %q:\n  want %s\n  got  %s", what, path, want[path], got[path])
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			t.Errorf("%s: %q must not be there", what, path)
		}
	}
}

// inView leaves out what a view of a commit has of its own: inode numbers,
// which names of one file do not share there.
func inView(all map[string]string) map[string]string {
	links := regexp.MustCompile(` \d+ links as "[^"]*"`)
	out := map[string]string{}
	for path, s := range all {
		out[path] = links.ReplaceAllString(s, "")
	}
	return out
}

// TestRestoreExactly: a commit gives back everything, whole and in part, at
// once and after a remount; undo takes that back; and the commit can be looked
// at with ordinary tools.
func TestRestoreExactly(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedCommand(t, "setfacl")
	m := harness.New(t, harness.Options{})
	cafs := func(args ...string) string { return m.MustCafs(append(args, "--repo", m.Repo)...) }
	zoo(t, m.Path("zoo"))
	bash(t, m.Dir, `setfacl -m u:61001:rw zoo/links/1; setfacl -d -m u:61002:rx zoo/empty; touch -a -d 2020-02-02T02:02:02.2Z zoo/hidden zoo/links/1`)
	want := exact(t, m.Dir)
	var all struct{ Time string }
	if err := json.Unmarshal([]byte(cafs("snapshot", "create", "all", "-m", "everything", "--json")), &all); err != nil {
		t.Fatal(err)
	}

	bash(t, m.Dir, `cd zoo; chmod 700 links; echo more >>sizes/4096; rm -r modes links/1; mv deep deeper; setfattr -x user.short deeper
		[ $(id -u) != 0 ] || chown 5:6 sparse; ln .hidden shown; printf x | dd of=sparse bs=1 seek=1000000 conv=notrunc status=none; : >new`)
	changed := exact(t, m.Dir)
	check := func(what string, want map[string]string) { // at once and, without caches, after a remount
		t.Helper()
		equal(t, what, want, exact(t, m.Dir))
		m.Remount()
		equal(t, what+", remounted", want, exact(t, m.Dir))
	}
	cafs("restore", "all")
	check("restored", want)
	if out := cafs("undo"); out != "/" {
		t.Errorf("undo says %q", out)
	}
	check("undone", changed)
	cafs("undo")
	check("undone twice", want)

	for _, dir := range []string{".cafs/snapshots/all", ".cafs/at/" + all.Time} {
		equal(t, dir, inView(want), inView(exact(t, m.Path(dir))))
	}
	if err := os.WriteFile(m.Path(".cafs/snapshots/all/zoo/new"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("writing to a snapshot: %v", err)
	}
	cafs("restore", "all:zoo/deep/a", m.Path("zoo", "a"))
	got := exact(t, m.Path("zoo", "a"))
	for path, s := range exact(t, m.Path("zoo", "deep", "a")) {
		if path != "b/c/3" && got[path] != s { // which was a link to a file elsewhere
			t.Errorf("restored elsewhere: %s: %s, want %s", path, got[path], s)
		}
	}
}

// historyFailures are commands with bad arguments: their exit code, and a word
// that the message must have.
var historyFailures = []struct {
	args string
	code int
	says string
}{
	{"snapshot create one", 1, "exists"},
	{"snapshot create a/b", 1, "without '/'"},
	{"snapshot create a:b", 1, "':'"},
	{"snapshot create latest", 1, "latest"},
	{"snapshot create ..", 1, "a name is"},
	{"snapshot rm nope", 8, "no such snapshot"},
	{"restore nope", 8, "no such snapshot"},
	{"restore one:nope", 8, "one has no /nope"},
	{"restore one:f/x", 8, "one has no /f/x"},
	{"restore one:f no/dir", 8, "/no/dir"},
	{"restore one:f .cafs/f", 1, "reserved"},
	{"restore", 2, "takes"},
	{"diff nope", 8, "no such snapshot"},
	{"diff one latest nope", 8, "/nope is in neither"},
	{"log nope", 8, "/nope"},
	{"cp bafkqaaa f", 1, "exists"},
	{"cp bafkqaaa .cafs/f", 1, "reserved"},
	{"cp bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy g", 8, "not found"},
	{"cp nothing g", 2, "no CID"},
	{"pin add bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy", 8, "not found"},
	{"pin rm nope", 8, "no pin is called"},
	{"gc --keep-last -1", 2, "negative"},
	{"stats nope", 8, "/nope"},
	{"undo", 8, "nothing to undo"},
}

// TestHistoryCommands: what the commands print, on a mount and without one, and
// what they say about bad arguments.
func TestHistoryCommands(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{})
	cafs := func(args ...string) string { return m.MustCafs(append(args, "--repo", m.Repo)...) }
	write(t, m.Path("d/same"), stream(1, 1<<20))
	write(t, m.Path("d/other"), stream(2, 5000))
	write(t, m.Path("f"), []byte("first"))
	write(t, m.Path(".dot"), nil)
	cafs("snapshot", "create", "one")
	bash(t, m.Dir, `mv d/same d/renamed; echo second >f; chmod 600 d/other; rm .dot; mkdir e; echo new >e/n`)
	both := func(name string, f func(t *testing.T)) {
		t.Run(name, f)
		m.Umount()
		t.Run(name+"/not mounted", f)
		m.Mount()
	}
	both("print", func(t *testing.T) {
		diff := "- /.dot\nm /d/other\nR /d/same -> /d/renamed\n+ /e/\nM /f"
		if got := cafs("diff", "one"); sorted(got) != sorted(diff) {
			t.Errorf("diff prints\n%s\nwant\n%s", got, diff)
		}
		if got := cafs("diff", "--tree", "one", "d"); sorted(got) != sorted("m /d/other\nR /d/same -> /d/renamed") {
			t.Errorf("diff of d prints\n%s", got)
		}
		if got := cafs("diff", "one", "latest"); got != "" {
			t.Errorf("diff of equals prints\n%s", got)
		}
		var entry struct{ Size int64 }
		if err := json.Unmarshal([]byte(cafs("log", "--json", "f")), &entry); err != nil || entry.Size != 5 {
			t.Errorf("log: size %d, %v", entry.Size, err)
		}
		if m.Pid != 0 && !strings.Contains(cafs("log", m.Path(".dot")), "one") {
			t.Error("log of the path of .dot does not list one")
		}
		var stats struct {
			Files, Dirs, Blocks int64
			Logical             int64 `json:"logical_bytes"`
			Only                int64 `json:"only_here_bytes"`
		}
		if err := json.Unmarshal([]byte(cafs("stats", "--json", "e")), &stats); err != nil || stats.Files != 1 || stats.Dirs != 1 || stats.Logical != 4 || stats.Only == 0 {
			t.Errorf("stats of e: %+v, %v", stats, err)
		}
	})
	both("fail", func(t *testing.T) {
		for _, f := range historyFailures {
			r := m.Cafs(append(strings.Fields(f.args), "--repo", m.Repo)...)
			if r.Code != f.code || !strings.Contains(r.Stderr, f.says) {
				t.Errorf("cafs %s: exit %d, want %d with %q: %s%s", f.args, r.Code, f.code, f.says, r.Stdout, r.Stderr)
			}
		}
	})
}

func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestAutomaticCommits: a mount commits what changed, and only then, and keeps
// as many as it is told to.
func TestAutomaticCommits(t *testing.T) {
	harness.NeedDaemon(t)
	m := harness.New(t, harness.Options{Args: []string{"--auto-commit", "200ms", "--keep-last", "2"}})
	type kept struct {
		Cid    json.RawMessage
		Reason string
		Name   string
	}
	list := func() (all []kept) {
		for line := range strings.Lines(m.MustCafs("snapshot", "ls", "--json", "--repo", m.Repo)) {
			var k kept
			if err := json.Unmarshal([]byte(line), &k); err != nil {
				t.Fatal(err)
			}
			all = append(all, k)
		}
		return all
	}
	m.MustCafs("snapshot", "create", "mine", "--repo", m.Repo)
	seen := map[string]bool{}
	for end := time.Now().Add(time.Minute); len(seen) < 5; {
		if time.Now().After(end) {
			t.Fatalf("%d commits seen\n%s", len(seen), m.LogTail())
		}
		write(t, m.Path("f"), fmt.Append(nil, len(seen)))
		all := list()
		if n := len(all); n > 4 || all[0].Name != "mine" { // one more before it is given up
			t.Fatalf("kept are %+v", all)
		}
		for _, k := range all[1:] {
			if k.Reason != "hourly" {
				t.Fatalf("kept is %+v", k)
			}
			seen[string(k.Cid)] = true
		}
	}
	m.MustCafs("snapshot", "create", "last", "--repo", m.Repo)
	before := list()
	time.Sleep(2 * time.Second) // ten times nothing changed
	if after := list(); !slices.EqualFunc(before, after, func(a, b kept) bool { return string(a.Cid) == string(b.Cid) }) {
		t.Errorf("commits of nothing: %+v, then %+v", before, after)
	}
}

// available is what df says of a mount, in bytes.
func available(t testing.TB, m *harness.Mount) (total, avail int64) {
	var st unix.Statfs_t
	if err := unix.Statfs(m.Dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks) * st.Frsize, int64(st.Bavail) * st.Frsize
}

// TestCapacity: a repository with a limit stops there; df says beforehand how
// much can be written, and what is removed makes room at once.
func TestCapacity(t *testing.T) {
	harness.NeedDaemon(t)
	const capacity, piece = 96 << 20, 1 << 20
	repo := filepath.Join(harness.Scratch(t), "r")
	command(t, "/", harness.Binary(t), "init", "--capacity", fmt.Sprint(capacity), "--repo", repo)
	m := harness.New(t, harness.Options{Repo: repo})
	fill := func(name string) (n int64) {
		for i := 0; ; i++ {
			path := m.Path(fmt.Sprint(name, i))
			err := os.WriteFile(path, stream(uint64(len(name)*1000+i), piece), 0o644)
			if errors.Is(err, syscall.ENOSPC) {
				if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				return n
			}
			if err != nil || n > 2*capacity {
				t.Fatalf("after %d bytes: %v", n, err)
			}
			n += piece
		}
	}
	total, promised := available(t, m)
	if total != capacity {
		t.Errorf("df says %d bytes in all, want %d", total, int64(capacity))
	}
	got := fill("a")
	if diff := got - promised; diff > 1<<20 || diff < -4<<20 {
		t.Errorf("%d bytes could be written, df said %d", got, promised)
	}
	if _, left := available(t, m); left > 3<<20 {
		t.Errorf("df says %d bytes are left, and they are not", left)
	}
	m.MustCafs("cid", m.Dir) // all of it fits in blocks, too
	m.Sync()
	var du int64 // KiB
	if _, err := fmt.Sscan(command(t, repo, "du", "-sk", "blocks"), &du); err != nil || du<<10 > capacity+8<<20 {
		t.Errorf("blocks take %d KiB of %d, %v", du, capacity>>10, err)
	}
	for round := range 3 {
		bash(t, m.Dir, "rm -f ./*")
		if n := fill("round" + fmt.Sprint(round)); n < got-8<<20 {
			t.Errorf("round %d: %d bytes could be written, %d before", round, n, got)
		}
		m.MustCafs("cid", m.Dir)
	}
}
