package integration_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// zoo makes a small tree with one of everything that a copy must keep, and that
// whoever runs the test can copy.
func zoo(t testing.TB, dir string) {
	t.Helper()
	for i, size := range []int{0, 1, 4095, 4096, 4097, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5<<20 + 3} {
		write(t, fmt.Sprintf("%s/sizes/%d", dir, size), stream(uint64(i), size))
	}
	modes := "0000 0400 0644 0755 4755 2755 1777 6711"
	if os.Geteuid() != 0 {
		modes = "0700 0755 4755 2755 1777 6711"
	}
	script := `mkdir -p modes links deep/a/b/c/d empty 'odd names'
		for m in ` + modes + `; do echo $m >modes/$m; chmod $m modes/$m; mkdir -m $m modes/d$m; done
		echo one >links/1; ln links/1 links/2; ln links/1 deep/a/b/c/3; ln -s 1 links/s; ln -s /no/such links/dangling; ln -s . links/dot
		mkfifo links/fifo; truncate -s 3M sparse; printf end | dd of=sparse bs=1 seek=2000000 conv=notrunc status=none
		echo x >$'odd names/nl\n tab\t \xff "quote"'; echo x >"odd names/$(printf '%0255d' 0)"; : >.hidden
		chmod 555 empty; for i in $(seq 300); do echo $i >deep/$i; done
		touch -d '1999-12-31T23:59:59.123456789Z' links/1; touch -h -d '2033-05-18T03:33:20.000000001Z' links/s; touch -d '1960-01-01T00:00:00.5Z' deep/a`
	bash(t, dir, script)
	for name, size := range map[string]int{"user.short": 1, "user.empty": 0, "user.long": 3000} {
		for _, path := range []string{"links/1", "deep"} {
			if err := unix.Setxattr(filepath.Join(dir, path), name, stream(9, size), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if os.Geteuid() == 0 {
		bash(t, dir, `chown 61001:61002 links/1; chown -h 61001 links/s; chown 61002 deep; mknod links/chr c 1 3; mknod links/blk b 7 300`)
	}
}

// same compares all that a copy must keep: names, types, modes, owners,
// nanosecond mtimes, sizes, contents, targets, devices, xattrs, and which
// names are links to one file.
func same(t testing.TB, want, got string) {
	t.Helper()
	a, b := manifest(t, want), manifest(t, got)
	n := 0
	for _, path := range slices.Sorted(maps.Keys(a)) {
		if a[path] != b[path] {
			t.Errorf("%q:\n  want %s\n  got  %s", path, a[path], b[path])
			if n++; n > 10 {
				t.Fatal("and more")
			}
		}
	}
	for path := range b {
		if _, ok := a[path]; !ok {
			t.Errorf("%q must not be there", path)
		}
	}
	if len(a) < 2 {
		t.Errorf("nothing to compare in %s", want)
	}
}

func manifest(t testing.TB, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	first := map[uint64]string{} // least path of an inode
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("lstat %s: %w", path, err)
		}
		if _, ok := first[st.Ino]; !ok {
			first[st.Ino] = rel
		}
		if rel == "." {
			return nil
		}
		s := fmt.Sprintf("%o %d:%d rdev %d mtime %d.%09d", st.Mode, st.Uid, st.Gid, st.Rdev, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			s += fmt.Sprintf(" %d links as %q, size %d, %d bytes %x", st.Nlink, first[st.Ino], st.Size, len(b), sha256.Sum256(b))
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			s += fmt.Sprintf(" -> %q (%d)", target, st.Size)
		}
		out[rel] = s + userXattrs(path)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return out
}

func userXattrs(path string) string {
	b := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, b)
	if err != nil {
		return " " + err.Error()
	}
	names := strings.Split(string(b[:n]), "\x00")
	slices.Sort(names)
	var out strings.Builder
	for _, name := range names {
		if strings.HasPrefix(name, "user.") {
			n, err := unix.Lgetxattr(path, name, b)
			fmt.Fprintf(&out, " %s=%x (%d, %v)", name, sha256.Sum256(b[:max(0, n)]), n, err)
		}
	}
	return out.String()
}
