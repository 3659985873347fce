package harness

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The two ordinary users of the tests. They need no entry in /etc/passwd.
const (
	UserA = 61001
	UserB = 61002
)

// AsUser runs f on a thread of its own with the given credentials, real and
// effective, and no capabilities unless uid is 0. The thread ends with f. f
// must not start goroutines that touch files.
func AsUser(uid, gid int, groups []int, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		if err := become(uid, gid, groups); err != nil {
			panic("harness: change of user: " + err.Error())
		}
		f()
	}()
	<-done
}

// become changes the calling thread only, which is what the raw system calls
// do; the functions of package syscall would change every thread.
func become(uid, gid int, groups []int) error {
	list := make([]uint32, len(groups)+1)
	for i, g := range groups {
		list[i] = uint32(g)
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0); e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
		return e
	}
	if _, _, e := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
		return e
	}
	return nil
}
