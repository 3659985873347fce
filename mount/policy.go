package mount

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The kernel is told as much as it can keep. A message costs two changes of
// process, far more than what the daemon does for it, and nobody but this
// daemon changes the tree: so what the kernel knows stays true until the kernel
// itself changes it, or until notify.go tells it otherwise.
const (
	// keep is how long the kernel may believe names, their absence and
	// attributes. Any long time would do.
	keep = 24 * time.Hour

	// maxWrite is the most a READ or WRITE carries: the kernel's own limit of
	// 256 pages. A chunk of 1 MiB can then be hashed where it lies.
	maxWrite = 1 << 20
	// maxBackground bounds the reads ahead the kernel has under way at a time;
	// with the reads a program waits for they are the response buffers.
	maxBackground = 32
	// maxRequests bounds the requests being served, and so their memory: 1 MiB
	// each. Writers that are held back sit on theirs.
	maxRequests = 128
)

// policy is what is asked of the kernel at mount time.
type policy struct {
	fsName              string
	allowOther          bool
	allowSuid, allowDev bool
	debug               bool
	log                 *slog.Logger
	checksPermissions   bool // the kernel does, by mode and ACL
}

func newPolicy(o Options) policy {
	return policy{
		fsName:     o.FsName,
		allowOther: o.AllowOther,
		allowSuid:  o.AllowSuid,
		allowDev:   o.AllowDev,
		debug:      o.Debug,
		log:        o.Logger,
		// Without default_permissions the kernel saves a GETATTR of the parent
		// after each change of a directory. That is safe only where nobody but
		// root can come in, whom no mode stops; ACCESS then answers for the
		// one thing root may not do, execute what is not executable.
		checksPermissions: o.AllowOther || os.Geteuid() != 0,
	}
}

// mountFlags are the arguments of mount(2). Content comes from anywhere, so
// set-user-id programs and device nodes in it count only when asked for.
func (p policy) mountFlags() (flags uintptr, data []string) {
	flags = unix.MS_NOSUID | unix.MS_NODEV
	if p.allowSuid {
		flags &^= unix.MS_NOSUID
	}
	if p.allowDev {
		flags &^= unix.MS_NODEV
	}
	return flags, p.commonOptions()
}

// helperOptions are the same for fusermount3, which always adds nosuid and nodev.
func (p policy) helperOptions() []string {
	escape := strings.NewReplacer(`\`, `\\`, `,`, `\,`)
	return append(p.commonOptions(), "fsname="+escape.Replace(p.source()), "subtype="+subtype)
}

func (p policy) commonOptions() []string {
	data := []string{fmt.Sprintf("max_read=%d", maxWrite)}
	if p.checksPermissions {
		data = append(data, "default_permissions")
	}
	if p.allowOther {
		data = append(data, "allow_other")
	}
	return data
}

func (p policy) source() string {
	if p.fsName == "" {
		return subtype
	}
	return p.fsName
}

// fuseOptions are what INIT agrees on. Not asked for, on purpose:
//   - the writeback cache: the kernel would own sizes and times, and small
//     writes are not faster for it here;
//   - ASYNC_DIO: the kernel does not throw away pages that a reader filled
//     while an asynchronous direct write (AIO, io_uring) was under way, so that
//     others read old data for ever; done one after the other, it does;
//   - ATOMIC_O_TRUNC: with OPEN switched off the truncation would reach nobody;
//     without it, it arrives as a SETATTR;
//   - locks: the kernel does flock, fcntl and OFD locks by itself, completely
//     and without messages, when the daemon does not want to see them;
//   - READDIRPLUS_AUTO: tools read all names before they look at the first, so
//     that the kernel would ask for attributes with the first piece of a listing
//     only, and one by one for the rest; dir.go decides instead;
//   - passthrough: bytes nobody verified, and no news of what was written.
func (p policy) fuseOptions(f *fileSystem) *fuse.MountOptions {
	return &fuse.MountOptions{
		Name:          subtype,
		FsName:        p.source(),
		MaxWrite:      maxWrite,
		MaxBackground: maxBackground,
		// Pages stay cached over changes of mtime, which are ours; else each
		// write would throw away what was just written.
		ExplicitDataCacheControl: true,
		EnableSymlinkCaching:     true,
		// ACLs checked by the kernel. This turns default_permissions on, so
		// only where that is wanted; without it they are stored all the same.
		EnableAcl: p.checksPermissions,
		// Reads go from our buffers by writev(2); splicing 1 MiB fails anyway,
		// a pipe cannot hold it with the header.
		DisableSplice: true,
		ExtraCapabilities: 0 |
			fuse.CAP_DONT_MASK | // a default ACL replaces the umask, so the tree applies it
			fuse.CAP_HANDLE_KILLPRIV_V2 | // one GETXATTR of security.capability per file, not per write
			fuse.CAP_SETXATTR_EXT | // tells when an ACL takes the set-group-id bit away
			fuse.CAP_NO_OPENDIR_SUPPORT,
		DisabledCapabilities: fuse.CAP_PASSTHROUGH | fuse.CAP_ASYNC_DIO,
		Debug:                p.debug,
		Logger:               log.New(logWriter{p.log, p.debug}, "", 0),
		PanicHandler: func(v any) fuse.Status {
			f.log.Error("panic in a request; it is answered with EIO", "panic", v, "stack", string(debug.Stack()))
			return fuse.EIO
		},
	}
}

// logWriter takes the lines of go-fuse, which are messages of the protocol in
// debug mode and else mishaps.
type logWriter struct {
	log   *slog.Logger
	debug bool
}

func (w logWriter) Write(p []byte) (int, error) {
	level := slog.LevelWarn
	if w.debug {
		level = slog.LevelDebug
	}
	w.log.Log(context.Background(), level, "fuse: "+strings.TrimSpace(string(p)))
	return len(p), nil
}
