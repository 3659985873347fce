package mount

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var (
	// ErrNoDevice: the kernel offers no FUSE: no module, or no /dev/fuse.
	ErrNoDevice = errors.New("no FUSE device")
	// ErrNoFusermount: an ordinary user cannot mount without fusermount3.
	ErrNoFusermount = errors.New("fusermount3 not found (package fuse3)")
	// ErrNotPermitted: the kernel or fusermount3 refuses this user.
	ErrNotPermitted = errors.New("mounting is not permitted")
)

const (
	devicePath = "/dev/fuse"
	// fsType is what mount(8) and /proc/mounts show.
	subtype = "cafs"
	fsType  = "fuse." + subtype
)

// attach mounts on dir and returns the device, closed on exec. Root calls
// mount(2), so that no helper need be installed; anybody else needs fusermount3.
func (p policy) attach(dir string) (fd int, direct bool, err error) {
	if os.Geteuid() == 0 {
		fd, err = p.mountDirect(dir)
		return fd, true, err
	}
	fd, err = p.mountHelper(dir)
	return fd, false, err
}

func (p policy) mountDirect(dir string) (int, error) {
	fd, err := unix.Open(devicePath, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, deviceError(err)
	}
	flags, data := p.mountFlags()
	data = append(data, fmt.Sprintf("fd=%d", fd), "rootmode=40000",
		fmt.Sprintf("user_id=%d", os.Geteuid()), fmt.Sprintf("group_id=%d", os.Getegid()))
	err = unix.Mount(p.source(), dir, fsType, flags, strings.Join(data, ","))
	switch {
	case err == nil:
		return fd, nil
	case err == unix.EPERM:
		err = fmt.Errorf("%w: mount(2): %w (in a container without CAP_SYS_ADMIN?)", ErrNotPermitted, err)
	case err == unix.ENODEV:
		err = fmt.Errorf("%w: the kernel does not know the file system type fuse", ErrNoDevice)
	}
	unix.Close(fd)
	return -1, fmt.Errorf("mount: %s: %w", dir, err)
}

func deviceError(err error) error {
	switch err {
	case unix.ENOENT, unix.ENXIO, unix.ENODEV:
		return fmt.Errorf("mount: %w: %s: %w", ErrNoDevice, devicePath, err)
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("mount: %w: %s: %w", ErrNotPermitted, devicePath, err)
	}
	return fmt.Errorf("mount: %s: %w", devicePath, err)
}

// mountHelper has fusermount3, which is setuid root, mount and send the device
// over a socket pair whose number it finds in its environment.
func (p policy) mountHelper(dir string) (int, error) {
	if _, err := os.Stat(devicePath); err != nil {
		return -1, deviceError(unix.ENOENT)
	}
	bin, err := fusermount()
	if err != nil {
		return -1, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("mount: socketpair: %w", err)
	}
	defer unix.Close(pair[0])
	remote := os.NewFile(uintptr(pair[1]), "fusermount")
	var stderr bytes.Buffer
	cmd := exec.Command(bin, "-o", strings.Join(p.helperOptions(), ","), "--", dir)
	cmd.Env = append(os.Environ(), "_FUSE_COMMFD=3")
	cmd.ExtraFiles = []*os.File{remote}
	cmd.Stderr = &stderr
	err = cmd.Run()
	remote.Close()
	if err != nil {
		return -1, helperError(dir, err, stderr.String())
	}
	fd, err := receive(pair[0])
	if err != nil {
		return -1, fmt.Errorf("mount: %s: fusermount3 sent no device: %w", dir, err)
	}
	return fd, nil
}

// helperError makes an error of what fusermount3 printed, which is all it says.
func helperError(dir string, err error, text string) error {
	if _, said, ok := strings.Cut(text, "fusermount3: "); ok {
		text = said
	}
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return fmt.Errorf("mount: %s: fusermount3: %w", dir, err)
	case strings.Contains(text, "not permitted") || strings.Contains(text, "ermission denied") || strings.Contains(text, "user_allow_other") || strings.Contains(text, "no write access"):
		return fmt.Errorf("mount: %s: %w: %s", dir, ErrNotPermitted, text)
	case strings.Contains(text, "busy"):
		return fmt.Errorf("mount: %s: %w: %s", dir, unix.EBUSY, text)
	case strings.Contains(text, "device not found"):
		return fmt.Errorf("mount: %w: %s", ErrNoDevice, text)
	}
	return fmt.Errorf("mount: %s: fusermount3: %s", dir, text)
}

func fusermount() (string, error) {
	const name = "fusermount3"
	if bin, err := exec.LookPath(name); err == nil {
		return bin, nil
	}
	for _, dir := range []string{"/bin", "/usr/bin", "/usr/local/bin"} {
		if bin, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return bin, nil
		}
	}
	return "", fmt.Errorf("mount: %w", ErrNoFusermount)
}

// receive takes one descriptor from a socket.
func receive(sock int) (int, error) {
	var data [4]byte
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(sock, data[:], oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	for _, m := range msgs {
		if fds, err := unix.ParseUnixRights(&m); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, fs.ErrNotExist
}

// detach takes the mount from its directory: unless lazy only when nothing
// uses it (EBUSY). That nothing is mounted is no error.
func detach(dir string, direct, lazy bool) error {
	if direct {
		flags := unix.UMOUNT_NOFOLLOW
		if lazy {
			flags |= unix.MNT_DETACH
		}
		if err := unix.Unmount(dir, flags); err != nil && err != unix.EINVAL {
			return err
		}
		return nil
	}
	bin, err := fusermount()
	if err != nil {
		return err
	}
	args := []string{"-u", "--", dir}
	if lazy {
		args = []string{"-u", "-z", "--", dir}
	}
	out, err := exec.Command(bin, args...).CombinedOutput()
	switch {
	case err == nil || bytes.Contains(out, []byte("not found in")) || bytes.Contains(out, []byte("Invalid argument")):
		return nil
	case bytes.Contains(out, []byte("busy")):
		return unix.EBUSY
	}
	return fmt.Errorf("fusermount3: %s: %w", bytes.TrimSpace(out), err)
}

// readAhead is how much the kernel reads ahead: INIT can only lower its
// default of 128 KiB, so the mount's entry in sysfs is raised afterwards.
// With 1 MiB a sequential reader needs one message per MiB instead of eight.
const readAhead = 1 << 20

// setReadAhead needs root; without it, reading is slower and nothing else.
func setReadAhead(dir string, log *slog.Logger) {
	var st unix.Statx_t
	// The number of the device is known without asking the daemon.
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		log.Debug("read-ahead not raised", "err", err)
		return
	}
	name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", st.Dev_major, st.Dev_minor)
	if err := os.WriteFile(name, strconv.AppendInt(nil, readAhead>>10, 10), 0); err != nil {
		log.Debug("read-ahead not raised", "err", err)
	}
}
