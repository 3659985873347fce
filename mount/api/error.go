package api

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"cafs/store"
)

// Error is a failure that crossed the socket. errors.Is finds the same
// sentinels as on the daemon's side.
type Error struct {
	Kind string `json:"kind"`
	Msg  string `json:"msg"`
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
	{"unknown-op", ErrUnknownOp},
	{"refused", ErrRefused},
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
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return &Error{k.name, err.Error()}
		}
	}
	return &Error{"other", err.Error()}
}

var (
	// ErrNoDaemon: nobody answers at the repository's socket.
	ErrNoDaemon = errors.New("no daemon has this repository open")
	// ErrUnknownOp: the daemon does not know the operation, or this version of it.
	ErrUnknownOp = errors.New("the daemon does not know this operation")
	// ErrRefused: the peer may not use this socket.
	ErrRefused = errors.New("connection refused by the daemon")
)
