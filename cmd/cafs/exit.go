package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"cafs/mount/api"
	"cafs/mount/daemon"
	"cafs/mount/repo"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
)

// Exit codes; doc/exit-codes.md. Once published they do not change.
const (
	exitOther      = 1
	exitUsage      = 2
	exitNoRepo     = 3  // no repository, or one that this program cannot read
	exitLocked     = 4  // another process has the repository
	exitDamaged    = 5  // damage was found
	exitMount      = 6  // cannot mount there, or at all
	exitBusy       = 7  // the mount is in use
	exitNotFound   = 8  // no such name, content, block or mount
	exitNoSpace    = 9  // no room, or not writable
	exitNotDurable = 10 // what was written last may be lost
	exitSignal     = 128
)

// usageErr is a command line that makes no sense.
type usageErr struct{ msg string }

func (e *usageErr) Error() string { return e.msg }

func usagef(format string, args ...any) error { return &usageErr{fmt.Sprintf(format, args...)} }

// exitStatus is an exit code that needs no message: that of a command run by
// mount, or of damage that was reported already.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// errDamage: verify found damage.
var errDamage = errors.New("damage found")

// exitCode picks the code; the first match counts.
func exitCode(err error) int {
	var usage *usageErr
	var status exitStatus
	var failed *failure
	switch is := func(target error) bool { return errors.Is(err, target) }; {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &failed):
		return failed.Code
	case errors.As(err, &usage):
		return exitUsage
	case is(context.Canceled):
		return exitSignal + int(syscall.SIGINT)
	case readerGone(err):
		return exitSignal + int(syscall.SIGPIPE)
	case is(repo.ErrLocked):
		return exitLocked
	case is(errDamage), is(repo.ErrDamaged), is(store.ErrCorrupt), is(index.ErrCorrupt):
		return exitDamaged
	case is(repo.ErrNotRepo), is(repo.ErrVersion), is(index.ErrVersion), is(store.ErrResharding):
		return exitNoRepo
	case is(repo.ErrNested), is(daemon.ErrMountpoint), is(daemon.ErrNoFUSE):
		return exitMount
	case is(syscall.EBUSY):
		return exitBusy
	case is(repo.ErrUnclean), is(daemon.ErrLosses), is(content.ErrLost):
		return exitNotDurable
	case is(syscall.ENOSPC), is(store.ErrFull), is(syscall.EDQUOT), is(syscall.EROFS), is(index.ErrReadOnly):
		return exitNoSpace
	case is(fs.ErrNotExist), is(store.ErrNotFound), is(daemon.ErrNotMounted), is(api.ErrNoDaemon):
		return exitNotFound
	}
	return exitOther
}

// report prints an error and its hints and returns the exit code.
func report(w io.Writer, err error) int {
	var status exitStatus
	if err == nil || errors.As(err, &status) || readerGone(err) {
		return exitCode(err)
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(w, "cafs: interrupted")
		return exitCode(err)
	}
	f := newFailure(err)
	f.print(w)
	return f.Code
}

// readerGone tells whether nobody reads stdout any more, as with "| head": no
// reason for a message.
func readerGone(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && path.Path == os.Stdout.Name() && errors.Is(err, syscall.EPIPE)
}

// failure is an error in the form in which it is printed, and in which a
// background mount hands it to the process that started it.
type failure struct {
	Msg   string   `json:"msg"`
	Hints []string `json:"hints,omitempty"`
	Code  int      `json:"code"`
}

func (f *failure) Error() string { return f.Msg }

func newFailure(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return &failure{plain(err), hints(err), exitCode(err)}
}

func (f *failure) print(w io.Writer) {
	fmt.Fprintf(w, "cafs: %s\n", escape(f.Msg))
	for _, h := range f.Hints {
		fmt.Fprintf(w, "cafs: hint: %s\n", escape(h))
	}
}

// plain is an error's text for users: without the names of our packages, and
// without parts that only name again the long thing, a CID, that an earlier part
// ended with.
func plain(err error) string {
	lines := strings.Split(err.Error(), "\n") // of errors.Join
	for i, s := range lines {
		seen := map[string]bool{}
		lines[i] = strings.Join(slices.DeleteFunc(strings.Split(s, ": "), func(p string) bool {
			last := p[strings.LastIndexByte(p, ' ')+1:]
			again := len(last) > 40 && seen[last]
			seen[last] = true
			return packages[p] || again
		}), ": ")
	}
	return strings.Join(lines, "; ")
}

var packages = map[string]bool{
	"repo": true, "daemon": true, "api": true, "mount": true, "tree": true,
	"content": true, "index": true, "seal": true, "linksys": true, "add": true, "car": true, "unixfs": true, "store": true, "disk": true,
}

// hints collects the remedies attached to an error, and those that only the
// command line knows.
func hints(err error) []string {
	var all []string
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) {
		case *repo.Hinted:
			all = append(all, e.Hint)
			walk(e.Err)
		case *api.Error:
			if e.Hint != "" {
				all = append(all, e.Hint)
			}
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				walk(err)
			}
		}
	}
	walk(err)
	if len(all) > 0 {
		return all
	}
	var locked *repo.LockedError
	switch {
	case errors.As(err, &locked) && locked.Holder.Mountpoint != "":
		return []string{fmt.Sprintf("use that mount, end it with 'cafs umount %s', or choose another repository with --repo", locked.Holder.Mountpoint)}
	case errors.As(err, &locked):
		return []string{"wait until it is done; the lock ends with the process, there is no file to delete"}
	case errors.Is(err, syscall.EBUSY):
		return []string{"end these programs or leave the directory; 'cafs umount --force' unmounts although it is in use"}
	case errors.Is(err, index.ErrReadOnly):
		return []string{"the log of the mount says why; unmount and mount again once the cause is gone"}
	}
	return nil
}
