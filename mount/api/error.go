package api

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"cafs/linksys"
	"cafs/mount/repo"
	"cafs/mount/tree/content"
	"cafs/mount/tree/index"
	"cafs/store"
)

// Error is a failure that crossed the socket. errors.Is finds the same
// sentinels as on the daemon's side.
type Error struct {
	Kind string `json:"kind"`
	Msg  string `json:"msg"`
	Hint string `json:"hint,omitempty"` // what can be done about it
}

func (e *Error) Error() string { return e.Msg }

// kinds are the errors a command can act on; the first that matches names an error.
var kinds = []struct {
	name string
	err  error
}{
	{"missing-block", store.ErrNotFound},
	{"corrupt-block", store.ErrCorrupt},
	{"mismatch", store.ErrMismatch},
	{"poisoned", store.ErrPoisoned},
	{"full", store.ErrFull},
	{"incomplete", linksys.ErrIncomplete},
	{"not-exist", fs.ErrNotExist},
	{"exist", fs.ErrExist},
	{"permission", fs.ErrPermission},
	{"read-only", syscall.EROFS},
	{"no-space", syscall.ENOSPC},
	{"quota", syscall.EDQUOT},
	{"busy", syscall.EBUSY},
	{"io", syscall.EIO},
	{"invalid", syscall.EINVAL},
	{"not-dir", syscall.ENOTDIR},
	{"is-dir", syscall.EISDIR},
	{"canceled", context.Canceled},
	{"index-failed", index.ErrReadOnly},
	{"lost", content.ErrLost},
	{"unknown-op", ErrUnknownOp},
	{"refused", ErrRefused},
	{"ending", ErrEnding},
}

// Is matches the sentinel that Kind names.
func (e *Error) Is(target error) bool {
	for _, k := range kinds {
		if k.name == e.Kind {
			return target == k.err
		}
	}
	return false
}

// toError makes what a handler returned fit for the socket.
func toError(err error) *Error {
	e := &Error{Kind: "other", Msg: err.Error()}
	var hinted *repo.Hinted
	if errors.As(err, &hinted) {
		e.Hint = hinted.Hint
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			e.Kind = k.name
			break
		}
	}
	return e
}

var (
	// ErrNoDaemon: nobody answers at the repository's socket.
	ErrNoDaemon = errors.New("no daemon has this repository open")
	// ErrSilent: the daemon's process is there and does not answer.
	ErrSilent = errors.New("the daemon of this repository does not answer")
	// ErrUnknownOp: the daemon does not know the operation, or this version of it.
	ErrUnknownOp = errors.New("the daemon does not know this operation")
	// ErrRefused: the peer may not use this socket.
	ErrRefused = errors.New("connection refused by the daemon")
	// ErrEnding: the mount ended before the request was done.
	ErrEnding = errors.New("the mount is ending")
)
