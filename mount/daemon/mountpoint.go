package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"cafs/mount/repo"
)

var (
	// ErrMountpoint: the folder cannot be mounted on.
	ErrMountpoint = errors.New("cannot mount")
	// ErrNoFUSE: the machine lacks what mounting needs.
	ErrNoFUSE = errors.New("cannot use FUSE")
	// ErrNotMounted: no file system of ours is mounted there.
	ErrNotMounted = errors.New("not a cafs mount")
)

// Mountpoint is a checked place to mount at.
type Mountpoint struct {
	Path    string // absolute, symlinks resolved
	Dead    bool   // the mount of a daemon that was killed is still there
	Missing bool
}

// CheckMountpoint looks whether dir can be mounted on for the repository at the
// resolved path repository, and changes nothing. Errors: ErrMountpoint,
// ErrNoFUSE, repo.ErrNested, each with a hint.
func CheckMountpoint(dir, repository string) (*Mountpoint, error) {
	path, missing, err := ResolveMountpoint(dir)
	if err != nil {
		return nil, fmt.Errorf("daemon: %w at %w", ErrMountpoint, err)
	}
	m := &Mountpoint{Path: path, Missing: missing}
	// Before anything asks for what is at path: its daemon may not answer.
	if m.Dead, err = checkMount(path); err != nil {
		return nil, err
	}
	if err := repo.CheckNesting(repository, path); err != nil {
		return nil, err
	}
	if !m.Missing && !m.Dead {
		if err := checkEmpty(path); err != nil {
			return nil, err
		}
	}
	return m, checkFUSE()
}

// checkMount looks for a mount of ours at path: one that nobody serves any more
// is dead, any other is an error.
func checkMount(path string) (dead bool, err error) {
	at, ok, err := oursAt(path)
	if !ok || err != nil {
		return false, err
	}
	answer := probe(path)
	ended, pid := false, 0
	if errors.Is(answer, unix.ETIMEDOUT) {
		ended, pid = endKilled(at)
	}
	if ended {
		if at, ok, err = oursAt(path); !ok || err != nil {
			return false, err
		}
		answer = probe(path)
	}
	switch {
	case errors.Is(answer, unix.ENOTCONN) || errors.Is(answer, unix.ECONNABORTED):
		return true, nil
	case pid != 0:
		err = fmt.Errorf("daemon: %w at %s: the daemon there, pid %d, was killed while it waited for the kernel, and cannot end", ErrMountpoint, path, pid)
		return false, repo.Hint(err, "end it as root, 'umount -f %s'; where fusectl is mounted at /sys/fs/fuse/connections, 'cafs mount' does so itself", path)
	case answer != nil:
		err = fmt.Errorf("daemon: %w at %s: the cafs mount there does not answer: %w", ErrMountpoint, path, answer)
		return false, repo.Hint(err, "end it with 'cafs umount --lazy %s'", path)
	}
	err = fmt.Errorf("daemon: %w at %s: the repository %s is mounted there", ErrMountpoint, path, at.Source)
	return false, repo.Hint(err, "use it, or end it with 'cafs umount %s'", path)
}

// oursAt is the mount of ours at path, if there is one.
func oursAt(path string) (at MountInfo, ok bool, err error) {
	all, err := Mounts()
	if err != nil {
		return MountInfo{}, false, err
	}
	at, ok = MountAt(all, path)
	return at, ok && at.Type == FSType, nil
}

// ResolveMountpoint is filepath.EvalSymlinks for a folder that may be missing,
// or the mount of a dead daemon, on which every system call fails. Errors:
// fs.ErrNotExist when its parent is missing, ENOTDIR.
func ResolveMountpoint(dir string) (path string, missing bool, err error) {
	path, err = filepath.Abs(dir)
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", dir, err)
	}
	for range 40 { // as many symlinks as the kernel follows
		if path != "/" {
			parent, err := filepath.EvalSymlinks(filepath.Dir(path))
			if errors.Is(err, os.ErrNotExist) {
				err = fmt.Errorf("%s: its parent folder %s is missing: %w", path, filepath.Dir(path), os.ErrNotExist)
				return "", false, repo.Hint(err, "make it with 'mkdir -p %s'", filepath.Dir(path))
			} else if err != nil {
				return "", false, fmt.Errorf("%s: %w", path, err)
			}
			path = filepath.Join(parent, filepath.Base(path))
		}
		if _, ours, err := oursAt(path); ours || err != nil {
			return path, false, err // it may not answer
		}
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return path, true, nil
		case err != nil || info.Mode()&os.ModeSymlink == 0:
			return path, false, nil // an error shows again where it can be explained
		}
		target, err := os.Readlink(path)
		if err != nil {
			return "", false, fmt.Errorf("%s: %w", path, err)
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	return "", false, fmt.Errorf("%s: %w", dir, unix.ELOOP)
}

// probeTime is how long a mount may take to answer before it counts as stuck.
const probeTime = time.Second

// probe asks the mount at path for something the kernel has no cached answer to.
func probe(path string) error {
	answer := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		answer <- unix.Statfs(path, &st)
	}()
	select {
	case err := <-answer:
		return err
	case <-time.After(probeTime):
		return unix.ETIMEDOUT
	}
}

func checkEmpty(path string) error {
	d, err := os.Open(path)
	if err != nil {
		err = fmt.Errorf("daemon: %w at %s: %w", ErrMountpoint, path, err)
		if errors.Is(err, unix.ENOTCONN) {
			return repo.Hint(err, "the mount of another program that ended is still there: 'fusermount3 -u -z %s' removes it", path)
		}
		return err
	}
	defer d.Close()
	switch names, err := d.Readdirnames(1); {
	case err == io.EOF:
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("daemon: %w at %s: it is not a folder", ErrMountpoint, path)
	case err != nil:
		return fmt.Errorf("daemon: %w at %s: %w", ErrMountpoint, path, err)
	default:
		err := fmt.Errorf("daemon: %w at %s: it is not empty (it has %q)", ErrMountpoint, path, names[0])
		return repo.Hint(err, "choose an empty or a new folder; what is in this one would be hidden")
	}
	if err := unix.Access(path, unix.W_OK); err != nil {
		err = fmt.Errorf("daemon: %w at %s: %w", ErrMountpoint, path, err)
		return repo.Hint(err, "choose a folder that you may write to")
	}
	return nil
}

// checkFUSE looks for what mounting needs on this machine.
func checkFUSE() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		err = fmt.Errorf("daemon: %w: /dev/fuse is not there", ErrNoFUSE)
		return repo.Hint(err, "load the kernel module with 'modprobe fuse'; in a container pass --device /dev/fuse --cap-add SYS_ADMIN")
	case err != nil && os.Geteuid() == 0:
		return repo.Hint(fmt.Errorf("daemon: %w: %w", ErrNoFUSE, err), "in a container pass --device /dev/fuse --cap-add SYS_ADMIN")
	case err != nil:
		return repo.Hint(fmt.Errorf("daemon: %w: %w", ErrNoFUSE, err), "ask for read and write access to /dev/fuse")
	}
	f.Close()
	if os.Geteuid() == 0 {
		return nil // mounts without a helper
	}
	if _, err := fusermount(); err != nil {
		err = fmt.Errorf("daemon: %w: the program fusermount3 is missing, which mounts for ordinary users", ErrNoFUSE)
		return repo.Hint(err, "install the package fuse3, or mount as root")
	}
	return nil
}

func fusermount() (string, error) {
	if path, err := exec.LookPath("fusermount3"); err == nil {
		return path, nil
	}
	return exec.LookPath("/bin/fusermount3")
}

// Make removes a dead mount and makes the folder, as far as needed. undo takes
// the folder away again.
func (m *Mountpoint) Make() (undo func(), err error) {
	if m.Dead {
		if err := Unmount(m.Path, true); err != nil {
			return nil, fmt.Errorf("daemon: the dead mount at %s: %w", m.Path, err)
		}
		if err := checkEmpty(m.Path); err != nil {
			return nil, err
		}
	}
	if !m.Missing {
		return func() {}, nil
	}
	if err := os.Mkdir(m.Path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		err = fmt.Errorf("daemon: %w at %s: %w", ErrMountpoint, m.Path, err)
		return nil, repo.Hint(err, "choose a place where you may make folders")
	}
	return func() { os.Remove(m.Path) }, nil
}

// Unmount ends the mount at dir; lazy detaches it although it is in use. It
// does not wait for the daemon. Errors: a [*BusyError], ErrNotMounted.
func Unmount(dir string, lazy bool) error {
	for end := time.Now().Add(passingUse); ; time.Sleep(passingUse / 50) {
		err := unmountOnce(dir, lazy)
		var busy *BusyError
		if !errors.As(err, &busy) || len(busy.Users)+len(busy.Below) > 0 || time.Now().After(end) {
			return err
		}
	}
}

// passingUse is how long a mount may be in use by nobody who can be named: a
// process that looks up a path in it, or is about to end, has it for a moment.
const passingUse = time.Second

func unmountOnce(dir string, lazy bool) error {
	flags, args := unix.UMOUNT_NOFOLLOW, []string{"-u", "--", dir}
	if lazy {
		flags, args = flags|unix.MNT_DETACH, []string{"-u", "-z", "--", dir}
	}
	err := unix.Unmount(dir, flags)
	if err == unix.EPERM {
		err = runFusermount(args)
	}
	switch {
	case err == nil:
		return nil
	case err == unix.EINVAL || err == unix.ENOENT:
		return fmt.Errorf("daemon: %s: %w", dir, ErrNotMounted)
	}
	all, merr := Mounts()
	if merr != nil {
		return errors.Join(err, merr)
	}
	at, ok := MountAt(all, dir)
	if !ok {
		return fmt.Errorf("daemon: %s: %w", dir, ErrNotMounted)
	}
	if busy := Busy(at); err == unix.EBUSY || len(busy.Users)+len(busy.Below) > 0 {
		return busy
	}
	return fmt.Errorf("daemon: unmount %s: %w", dir, err)
}

func runFusermount(args []string) error {
	bin, err := fusermount()
	if err != nil {
		return repo.Hint(fmt.Errorf("the program fusermount3 is missing, which unmounts for ordinary users"),
			"install the package fuse3, or unmount as root")
	}
	var text bytes.Buffer
	cmd := exec.Command(bin, args...)
	cmd.Stderr = &text
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s", bytes.TrimSpace(text.Bytes()))
	}
	return nil
}
