package mount

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestHelperError: what fusermount3 prints becomes an error that a program can
// act on, and its words are kept.
func TestHelperError(t *testing.T) {
	exit := errors.New("exit status 1")
	for _, c := range []struct {
		text string
		want error
	}{
		{"/usr/bin/fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf\n", ErrNotPermitted},
		{"fusermount3: failed to open /dev/fuse: Permission denied\n", ErrNotPermitted},
		{"fusermount3: user has no write access to mountpoint /mnt\n", ErrNotPermitted},
		{"fusermount3: mount failed: Operation not permitted\n", ErrNotPermitted},
		{"fusermount3: fuse device not found, try 'modprobe fuse' first\n", ErrNoDevice},
		{"fusermount3: mount failed: Device or resource busy\n", unix.EBUSY},
		{"", exit},
	} {
		err := helperError("/mnt", exit, c.text)
		_, words, _ := strings.Cut(strings.TrimSpace(c.text), "fusermount3: ")
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), words) {
			t.Errorf("%q gives %v, want it to match %v", c.text, err, c.want)
		}
	}
}

// TestDeviceError: a missing device and one that may not be opened differ.
func TestDeviceError(t *testing.T) {
	for no, want := range map[error]error{
		unix.ENOENT: ErrNoDevice, unix.ENODEV: ErrNoDevice, unix.EPERM: ErrNotPermitted, unix.EACCES: ErrNotPermitted,
	} {
		if err := deviceError(no); !errors.Is(err, want) || !errors.Is(err, no) {
			t.Errorf("%v gives %v", no, err)
		}
	}
}
