package daemon_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cafs/mount/daemon"
	"cafs/mount/repo"
)

// place is a folder with things to mount on.
func place(t *testing.T) string {
	t.Helper()
	d, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"empty", "full", "full/x", "repo"} {
		if err := os.Mkdir(filepath.Join(d, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(d, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"toempty": "empty", "tonew": "new", "tofile": "file", "torepo": d + "/repo", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(d, name)); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestCheckMountpointRefuses(t *testing.T) {
	d := place(t)
	for _, c := range []struct {
		dir  string
		want error
		says string
	}{
		{"full", daemon.ErrMountpoint, `it has "x"`},
		{"file", daemon.ErrMountpoint, "not a folder"},
		{"tofile", daemon.ErrMountpoint, "not a folder"},
		{"no/parent", daemon.ErrMountpoint, d + "/no is missing"},
		{"loop", daemon.ErrMountpoint, ""},
		{"repo", repo.ErrNested, ""},
		{"torepo", repo.ErrNested, ""},
		{"repo/blocks", repo.ErrNested, ""},
		{"", repo.ErrNested, ""},
	} {
		m, err := daemon.CheckMountpoint(filepath.Join(d, c.dir), filepath.Join(d, "repo"))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %+v, %v", c.dir, m, err)
		}
	}
}

func TestCheckMountpointAccepts(t *testing.T) {
	d := place(t)
	for dir, want := range map[string]daemon.Mountpoint{
		"empty":   {Path: d + "/empty"},
		"toempty": {Path: d + "/empty"},
		"new":     {Path: d + "/new", Missing: true},
		"tonew":   {Path: d + "/new", Missing: true},
	} {
		m, err := daemon.CheckMountpoint(filepath.Join(d, dir), filepath.Join(d, "repo"))
		if errors.Is(err, daemon.ErrNoFUSE) && os.Getenv("CAFS_FUSE") != "1" {
			t.Skip(err) // the last thing looked at; the rest was fine
		}
		if err != nil || *m != want {
			t.Fatalf("%q: %+v, %v", dir, m, err)
		}
		undo, err := m.Make()
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(want.Path); err != nil || !info.IsDir() {
			t.Errorf("%q was not made: %v", dir, err)
		}
		undo()
		if _, err := os.Stat(want.Path); errors.Is(err, fs.ErrNotExist) != want.Missing {
			t.Errorf("%q after undo: %v", dir, err)
		}
	}
}

func TestUnmountOfNothing(t *testing.T) {
	d := place(t)
	for _, dir := range []string{"empty", "missing", "file"} {
		if err := daemon.Unmount(filepath.Join(d, dir), false); !errors.Is(err, daemon.ErrNotMounted) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestBusy finds a process by its directory.
func TestBusy(t *testing.T) {
	d := place(t)
	cmd := exec.Command("sleep", "60")
	cmd.Dir = filepath.Join(d, "empty")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	users := func(m daemon.MountInfo) (found []daemon.User) {
		for _, u := range daemon.Busy(m).Users {
			if u.PID == cmd.Process.Pid {
				found = append(found, u)
			}
		}
		return found
	}
	if got := users(daemon.MountInfo{ID: -2, Dir: filepath.Join(d, "empty"), Dev: "none"}); len(got) != 1 || got[0].How != "current directory" || got[0].Command != "sleep" {
		t.Errorf("by its directory: %+v", got)
	}
	if got := users(daemon.MountInfo{ID: -2, Dir: filepath.Join(d, "emp"), Dev: "none"}); len(got) != 0 {
		t.Errorf("by a prefix of its directory's name: %+v", got)
	}
}
