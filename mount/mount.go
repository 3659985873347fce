// Package mount serves a working tree to the kernel over FUSE: the wire
// protocol, the policy of the kernel's caches, the one table from errors to
// errno, and the view of content by CID under .cafs.
//
// It keeps no state of files. Node ids are the tree's inode numbers; ids from
// 1<<63 up belong to the CID view. A request is one call of the tree. There are
// no file handles: OPEN, OPENDIR and FLUSH are answered with ENOSYS once and
// cost no message afterwards (policy.go has the reasons for each lever).
//
// What never happens here: a lock is held while the kernel is told something
// (notify.go); the process uses its own mount in a way that needs a thread of
// the Go scheduler on both sides; a request ends without an answer, since a
// handler that panics answers EIO.
//
// # Locks
//
// view.mu guards the table of view nodes, node.mu one node's open content;
// the first is never held while a block is read, and neither while the kernel
// is called. The journal of reported errors has its own lock. None nests.
package mount

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/ipfs/go-cid"
	"golang.org/x/sys/unix"

	"cafs/linksys"
	"cafs/mount/transport"
	"cafs/mount/tree"
)

// Options of a mount. Tree and Dir are required.
type Options struct {
	Tree *tree.Tree
	Sys  *linksys.System // content for the CID view; without it there is no .cafs
	Dir  string          // the mountpoint, an existing empty directory

	// FsName is what mount(8) and df(1) show as the source: the repository.
	FsName string
	// AllowOther lets other users in; permissions are always checked then.
	AllowOther bool
	// AllowSuid and AllowDev drop nosuid and nodev. Root only.
	AllowSuid, AllowDev bool
	// Debug logs each message at level debug.
	Debug  bool
	Logger *slog.Logger

	// Roots lists the content that .cafs/ipfs shows; nil for none.
	Roots func(context.Context) ([]cid.Cid, error)
	// MakeRoom is called when a request finds no room on the disk, and tells whether
	// there may be some now; nil for nothing to be done. It may take its time: other
	// requests go on. Its error is that of ctx.
	MakeRoom func(ctx context.Context) (bool, error)
	// Health tells why nothing can be changed any more, or nil.
	Health func() error
}

// Server is a mounted tree. All methods may be called concurrently.
type Server struct {
	opts   Options
	dir    string // absolute
	direct bool   // mounted by mount(2), not by fusermount3
	fs     *fileSystem
	conn   *transport.Conn
	done   chan struct{} // closed when the device has ended
}

// answerTimeout bounds the wait for the first answer of a new mount.
const answerTimeout = 10 * time.Second

// Mount mounts o.Tree on o.Dir and returns when the mount answers. The context
// bounds only that. The tree, which stays the caller's, is used until Done. The
// caller has looked whether o.Dir is a good place (mount/daemon). Errors:
// ErrNoDevice, ErrNoFusermount, ErrNotPermitted, or the kernel's, each with
// what was tried.
func Mount(ctx context.Context, o Options) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("mount: %w", err)
	}
	p := newPolicy(o)
	fd, direct, err := p.attach(dir)
	if err != nil {
		return nil, err
	}
	s := &Server{opts: o, dir: dir, direct: direct, done: make(chan struct{})}
	s.fs = newFileSystem(o)
	s.conn, err = transport.New(fd, fuse.NewProtocolServer(s.fs, p.fuseOptions(s.fs)),
		transport.Options{MaxWrite: maxWrite, MaxInflight: maxRequests, Logger: o.Logger})
	if err != nil {
		detach(dir, direct, false)
		return nil, fmt.Errorf("mount: %s: %w", dir, err)
	}
	s.fs.start(s.conn)
	go func() {
		s.conn.Serve()
		s.fs.close()
		close(s.done)
	}()
	if err := s.answers(ctx); err != nil {
		detach(dir, direct, true)
		return nil, fmt.Errorf("mount: %s: %w", dir, err)
	}
	setReadAhead(dir, o.Logger)
	return s, nil
}

// answers waits until a statfs(2) of the mountpoint has come back from the
// tree. The call needs a thread of its own and none of the scheduler's: a
// goroutine in a system call does not keep the server's goroutines from running.
func (s *Server) answers(ctx context.Context) error {
	got := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		err := unix.Statfs(s.dir, &st)
		if err == nil && st.Type != unix.FUSE_SUPER_MAGIC {
			err = errors.New("something else is mounted there")
		}
		got <- err
	}()
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	select {
	case err := <-got:
		return err
	case <-s.done:
		return errors.New("the mount ended before it answered")
	case <-ctx.Done():
		return fmt.Errorf("the mount does not answer: %w", ctx.Err())
	}
}

// Dir is the mountpoint, absolute.
func (s *Server) Dir() string { return s.dir }

// Done is closed when the mount has ended, whoever ended it: Unmount, umount(8)
// or an abort of the connection. No request is running then and none will come.
func (s *Server) Done() <-chan struct{} { return s.done }

// Wait returns when Done is closed.
func (s *Server) Wait() { <-s.done }

// Unmount ends the mount and waits for the last request. While something is in
// use the error matches EBUSY and all goes on. With lazy the name is taken away
// at once, what is open stays usable, and Unmount does not wait. The context
// bounds the wait only: its error says that the name is gone and that the kernel
// goes on with the mount, which is somewhere else too.
func (s *Server) Unmount(ctx context.Context, lazy bool) error {
	if s.ended() {
		return nil
	}
	if err := detach(s.dir, s.direct, lazy); err != nil {
		return fmt.Errorf("mount: unmount %s: %w", s.dir, err)
	}
	if lazy {
		return nil
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("mount: unmount %s: %w", s.dir, context.Cause(ctx))
	}
}

// Ops tells how many messages of each kind the kernel has sent since the
// mount: one per FORGET in a batch, none for INIT and INTERRUPT.
func (s *Server) Ops() map[string]uint64 { return s.fs.ops.counts() }
