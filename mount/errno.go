package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"cafs/linksys"
	"cafs/linksys/unixfs"
	"cafs/mount/tree"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
)

// errnos is the one table from errors to errno, in order: what is damaged comes
// before what is missing, so that an error that is both is never ENOENT. What
// is not here is EIO. ENOSYS is in no row: the kernel remembers it for several
// operations and stops sending them, so it is only ever answered by name.
var errnos = []struct {
	err   error
	errno syscall.Errno
}{
	// Content that cannot be had: never a missing name.
	{store.ErrNotFound, syscall.EIO},
	{store.ErrCorrupt, syscall.EIO},
	{store.ErrMismatch, syscall.EIO},
	{content.ErrDamaged, syscall.EIO},
	{content.ErrLost, syscall.EIO},
	{index.ErrCorrupt, syscall.EIO},
	{unixfs.ErrMalformed, syscall.EIO},
	{linksys.ErrBudget, syscall.EIO},

	{index.ErrReadOnly, syscall.EROFS},
	{store.ErrPoisoned, syscall.EROFS},
	{store.ErrFull, syscall.ENOSPC},

	// The caller gave up. interrupt.go sees to it that only a dying one does.
	{context.Canceled, syscall.EINTR},
	{context.DeadlineExceeded, syscall.EINTR},

	{tree.ErrNoCID, syscall.ENODATA},
	{unixfs.ErrNotDir, syscall.ENOTDIR},
	{linksys.ErrNotFile, syscall.EISDIR},
	{syscall.ENOTEMPTY, syscall.ENOTEMPTY}, // which is fs.ErrExist, too
	{fs.ErrNotExist, syscall.ENOENT},
	{fs.ErrExist, syscall.EEXIST},
}

// plain are the errno that mean to the caller what they mean to us.
var plain = map[syscall.Errno]bool{
	syscall.E2BIG: true, syscall.EACCES: true, syscall.EBUSY: true, syscall.EDQUOT: true,
	syscall.EFBIG: true, syscall.EINVAL: true, syscall.EISDIR: true, syscall.ELOOP: true,
	syscall.EMLINK: true, syscall.ENAMETOOLONG: true, syscall.ENODATA: true, syscall.ENOSPC: true,
	syscall.ENOTDIR: true, syscall.ENOTEMPTY: true, syscall.ENXIO: true, syscall.EOPNOTSUPP: true,
	syscall.EPERM: true, syscall.ERANGE: true, syscall.EROFS: true, syscall.ESTALE: true,
	syscall.EXDEV: true, syscall.ENOTTY: true, syscall.EINTR: true,
}

// errno is the answer for err.
func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	// Most errors are a missing attribute or name, bare.
	if no, ok := err.(syscall.Errno); ok && plain[no] {
		return no
	}
	var no syscall.Errno
	isErrno := errors.As(err, &no)
	// An error of our own files says nothing about the caller's: a lost
	// segment is not a missing name. Only a full disk is everybody's.
	var file *fs.PathError
	if errors.As(err, &file) {
		if isErrno && (no == syscall.ENOSPC || no == syscall.EDQUOT) {
			return no
		}
		if errors.Is(err, index.ErrReadOnly) || errors.Is(err, store.ErrPoisoned) {
			return syscall.EROFS
		}
		return syscall.EIO
	}
	for _, row := range errnos {
		if errors.Is(err, row.err) {
			return row.errno
		}
	}
	if isErrno && plain[no] {
		return no
	}
	return syscall.EIO
}

// status answers for err, the result of op on the node id, and logs each EIO
// once with its cause.
func (f *fileSystem) status(op op, id uint64, err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	no := errno(err)
	if no == syscall.EIO && f.journal.first(op, id, err) {
		f.log.Error("answered with an input/output error",
			"op", op.String(), "inode", id, "path", f.path(id), "err", err)
	}
	return fuse.Status(no)
}

// path names a node in messages.
func (f *fileSystem) path(id uint64) string {
	if isView(id) {
		return f.view.path(id)
	}
	return f.tree.Path(tree.Ino(id))
}

// journal remembers which failures were reported, so that a program that reads
// a damaged file in a loop does not fill the log.
type journal struct {
	mu   sync.Mutex
	seen map[string]struct{}
}

// maxJournal bounds what is remembered; beyond it, everything is news again.
const maxJournal = 4096

func (j *journal) first(op op, id uint64, err error) bool {
	key := fmt.Sprintf("%d %d %v", op, id, err)
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.seen[key]; ok {
		return false
	}
	if j.seen == nil || len(j.seen) >= maxJournal {
		j.seen = make(map[string]struct{})
	}
	j.seen[key] = struct{}{}
	return true
}
