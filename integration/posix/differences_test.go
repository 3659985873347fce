package posix_test

import (
	"errors"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cafs/integration/harness"
)

// TestDifferences: what doc/posix.md says of the differences from ext4 is so.
func TestDifferences(t *testing.T) {
	harness.NeedDaemon(t)
	harness.NeedRoot(t)
	m := setup(t)
	f, g := m.Path("f"), m.Path("g")
	must(t, os.WriteFile(f, make([]byte, 8192), 0o644))
	must(t, os.WriteFile(g, make([]byte, 8192), 0o644))
	fd, to := open(t, f, unix.O_RDWR), open(t, g, unix.O_RDWR)
	ioctl := func(request, arg uintptr) error {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg); e != 0 {
			return e
		}
		return nil
	}
	swap := make([]byte, 64<<10) // as mkswap(8) makes it
	copy(swap[4086:], "SWAPSPACE2")
	swap[1024], swap[1028] = 1, 15 // version, last page
	must(t, os.WriteFile(m.Path("swap"), swap, 0o600))
	swapon := func() error {
		path, err := unix.BytePtrFromString(m.Path("swap"))
		must(t, err)
		_, _, e := unix.Syscall(unix.SYS_SWAPON, uintptr(unsafe.Pointer(path)), 0, 0)
		if e == 0 {
			_, _, _ = unix.Syscall(unix.SYS_SWAPOFF, uintptr(unsafe.Pointer(path)), 0, 0)
			return nil
		}
		return e
	}
	var fiemap [32]byte // struct fiemap: no extents wanted
	const fsIocFiemap = 0xc020660b
	for _, c := range []struct {
		name string
		got  error
		want error
	}{
		{"FIEMAP", ioctl(fsIocFiemap, uintptr(unsafe.Pointer(&fiemap))), unix.EOPNOTSUPP},
		{"FICLONE", unix.IoctlFileClone(to, fd), unix.EOPNOTSUPP},
		{"FIDEDUPERANGE", unix.IoctlFileDedupeRange(fd, &unix.FileDedupeRange{Src_length: 4096, Info: []unix.FileDedupeRangeInfo{{Dest_fd: int64(to)}}}), unix.EOPNOTSUPP},
		{"COLLAPSE_RANGE", unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096), unix.EOPNOTSUPP},
		{"INSERT_RANGE", unix.Fallocate(fd, unix.FALLOC_FL_INSERT_RANGE, 0, 4096), unix.EOPNOTSUPP},
		{"swapon", swapon(), unix.EINVAL},
		{"chattr", unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, 0x10), unix.ENOTTY},
		{"making .cafs", os.Mkdir(m.Path(".cafs"), 0o755), unix.EEXIST},
		{"writing in .cafs", os.WriteFile(m.Path(".cafs", "f"), nil, 0o644), unix.EROFS},
		{"removing .cafs", unix.Rmdir(m.Path(".cafs")), unix.EROFS},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}

	must(t, unix.Chown(f, harness.UserB, harness.UserB))
	must(t, unix.Chmod(f, 0o6755))
	harness.AsUser(harness.UserA, harness.UserA, nil, func() { want(t, "a chown to nobody new", unix.Chown(f, -1, -1), nil) })
	if st := stat(t, f); st.Mode&0o7777 != 0o6755 {
		t.Errorf("after a chown to nobody new, mode %o", st.Mode)
	}

	past := []unix.Timespec{{Sec: 1e9}, {Sec: 1e9}}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, g, past, 0))
	harness.DropCaches()
	content(t, g, make([]byte, 8192))
	if st := stat(t, g); st.Atim != past[0] {
		t.Errorf("reading moved the time of access to %v", time.Unix(st.Atim.Unix()))
	}
}
