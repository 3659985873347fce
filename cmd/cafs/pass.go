package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"cafs/mount/daemon"
)

// What imports and exports work on, here or in a daemon, is an open file. Some
// stay with us, and the work gets a pipe instead: a file on the daemon's own
// mount, for which it would wait for itself; a terminal, and pipes that are shared
// with other programs: a wait for those cannot be ended, since their mode is not
// ours to change.

// direct tells whether the work can have f itself.
func (s *session) direct(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		return false
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	return err == nil && !s.own(path)
}

// borrow runs use with what in yields.
func (s *session) borrow(ctx context.Context, in *os.File, use func(context.Context, *os.File) error) error {
	if s.direct(in) {
		return use(ctx, in)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if _, err := io.Copy(w, in); err != nil {
			cancel(fmt.Errorf("read: %w", err)) // before the end, which would look like a short file
		}
		w.Close()
	}()
	err = use(ctx, r)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	return err
}

// lend runs use with a file whose bytes go to out, all of them by the time lend
// returns without an error.
func (s *session) lend(ctx context.Context, out *os.File, use func(context.Context, *os.File) error) error {
	if s.direct(out) {
		return use(ctx, out)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(out, r)
		r.Close() // ends a daemon that writes to nobody
		copied <- err
	}()
	err = use(ctx, w)
	w.Close() // ends the copy
	select {
	case cerr := <-copied:
		if cerr != nil {
			return cerr // the cause, of which use knows only that nobody read
		}
	case <-ctx.Done(): // the copy may wait for a reader that never comes
	}
	return err
}

// own tells whether path lies on the mount of this very repository: its daemon
// must not read that through the kernel, and need not.
func (s *session) own(path string) bool {
	real, _, err := daemon.ResolveMountpoint(filepath.Dir(path))
	if err != nil {
		return false
	}
	all, err := daemon.Mounts()
	if err != nil {
		return false
	}
	at, ok := daemon.MountOf(all, filepath.Join(real, filepath.Base(path)))
	return ok && at.Source == s.path
}
