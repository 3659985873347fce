package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cafs/mount/repo"
)

// Call is one request as its handler sees it.
type Call struct {
	Body  []byte     // the handler's
	Files []*os.File // closed after the handler returned

	arg  json.RawMessage
	conn *net.UnixConn
}

// Arg decodes the request's argument into v. Errors: syscall.EINVAL.
func (c *Call) Arg(v any) error {
	if err := json.Unmarshal(c.arg, v); err != nil {
		return fmt.Errorf("api: argument: %w: %v", syscall.EINVAL, err)
	}
	return nil
}

// Send sends a reply that is not the last one. It blocks while the command does
// not read, and fails when the command is gone.
func (c *Call) Send(val any, body []byte) error {
	js, err := json.Marshal(val)
	if err != nil {
		return err
	}
	return writeFrame(c.conn, Reply{Val: js}, body, nil)
}

// Handler answers a request: with zero or more Sends, and with the value and
// body it returns. The context ends when the command goes away or the server is
// closed. Handlers run concurrently, one for each connection.
type Handler func(ctx context.Context, c *Call) (val any, body []byte, err error)

// Server answers at a repository's socket. Set the fields before Serve.
type Server struct {
	Handlers map[string]Handler
	Logger   *slog.Logger

	life context.Context
	stop context.CancelFunc
	l    *net.UnixListener
	path string

	mu     sync.Mutex // guards closed, and makes an Add come before the Wait
	closed bool
	conns  sync.WaitGroup // connections being served
}

// maxConns bounds the connections served at a time; more wait to be accepted.
const maxConns = 64

// Listen makes the socket in the repository folder, replacing what an earlier
// daemon left. The caller holds the repository's lock.
func (s *Server) Listen(repository string) error {
	dir, err := os.Open(repository)
	if err != nil {
		return fmt.Errorf("api: listen: %w", err)
	}
	defer dir.Close()
	s.path = filepath.Join(repository, repo.SocketName)
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("api: listen: %w", err)
	}
	// The mask is the process's: other files made in this moment get fewer
	// rights, never more.
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: shortPath(dir), Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return fmt.Errorf("api: listen at %s: %w", s.path, err)
	}
	l.SetUnlinkOnClose(false) // by a path that is gone by then
	s.l = l
	s.life, s.stop = context.WithCancel(context.Background())
	return nil
}

// shortPath names the socket in an open folder: socket addresses hold 107
// bytes, repository paths can be longer.
func shortPath(dir *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), repo.SocketName)
}

// Serve answers until Close.
func (s *Server) Serve() {
	slots := make(chan struct{}, maxConns)
	for {
		slots <- struct{}{}
		c, err := s.l.AcceptUnix()
		if err != nil {
			if s.life.Err() == nil && !errors.Is(err, net.ErrClosed) {
				s.Logger.Error("api.sock gave up", "err", err)
			}
			return
		}
		if !s.admit() {
			c.Close()
			return
		}
		go func() {
			defer func() { c.Close(); s.conns.Done(); <-slots }()
			if err := s.serveConn(c); err != nil {
				s.Logger.Debug("api connection", "err", err)
			}
		}()
	}
}

// admit counts a connection in, unless the server has been closed.
func (s *Server) admit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns.Add(1)
	}
	return !s.closed
}

// Close stops accepting, cancels what runs, waits for it and removes the socket.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	err := s.l.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	s.conns.Wait()
	if e := os.Remove(s.path); err == nil && !errors.Is(e, os.ErrNotExist) {
		err = e
	}
	return err
}

// serveConn answers the requests of one connection, one after the other.
func (s *Server) serveConn(c *net.UnixConn) error {
	if err := checkPeer(c); err != nil {
		return errors.Join(err, writeFrame(c, Reply{Last: true, Err: toError(err)}, nil, nil))
	}
	defer context.AfterFunc(s.life, func() {
		c.CloseRead()                                 // no more requests; ends what runs
		c.SetWriteDeadline(time.Now().Add(lastWords)) // the answers still go out
	})()
	head := make([]byte, headSize)
	for {
		files, err := readHead(c, head)
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		var req Request
		body, err := readFrame(c, head, &req)
		if err != nil {
			closeAll(files)
			return err
		}
		ctx, done := watch(s.life, c)
		val, out, err := s.handle(ctx, &req, &Call{Body: body, Files: files, arg: req.Arg, conn: c})
		done()
		closeAll(files)
		if err := answer(c, val, out, err); err != nil {
			return err
		}
	}
}

// lastWords is how long a command may take to read its answer from a server
// that is being closed.
const lastWords = 2 * time.Second

// handle runs a request's handler. One that panics answers with an error, as a
// FUSE request would.
func (s *Server) handle(ctx context.Context, req *Request, call *Call) (val any, body []byte, err error) {
	if req.Op == OpHello {
		return nil, nil, nil
	}
	h, ok := s.Handlers[req.Op]
	if !ok || req.Version != Version {
		return nil, nil, fmt.Errorf("api: %q, version %d: %w", req.Op, req.Version, ErrUnknownOp)
	}
	defer func() {
		if p := recover(); p != nil {
			s.Logger.Error("api handler panicked", "op", req.Op, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("api: %s: %w: internal error, see the log", req.Op, syscall.EIO)
		}
	}()
	val, body, err = h(ctx, call)
	if errors.Is(err, context.Canceled) && s.life.Err() != nil {
		err = fmt.Errorf("api: %s: %w", req.Op, ErrEnding)
	}
	return val, body, err
}

// answer sends the last reply.
func answer(c *net.UnixConn, val any, body []byte, err error) error {
	r := Reply{Last: true}
	if err != nil {
		r.Err, body = toError(err), nil
	} else if r.Val, err = json.Marshal(val); err != nil {
		return err
	}
	return writeFrame(c, r, body, nil)
}

// watch returns a context that ends when the peer closes its side. done must be
// called before the next read.
func watch(parent context.Context, c *net.UnixConn) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancel(parent)
	ended := make(chan struct{})
	raw, err := c.SyscallConn()
	if err != nil {
		return ctx, cancel
	}
	go func() {
		defer close(ended)
		var gone bool
		err := raw.Read(func(fd uintptr) bool {
			var b [1]byte
			n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			gone = n <= 0 && err != unix.EAGAIN && err != unix.EINTR
			return err != unix.EAGAIN && err != unix.EINTR
		})
		if err == nil && gone {
			cancel()
		}
	}()
	return ctx, func() {
		c.SetReadDeadline(time.Unix(1, 0)) // wakes the goroutine
		<-ended
		c.SetReadDeadline(time.Time{})
		cancel()
	}
}

// checkPeer lets in the daemon's own user and root.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("api: peer: %w", err)
	}
	if cred.Uid != 0 && cred.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("api: %w: user %d is not the one who mounted", ErrRefused, cred.Uid)
	}
	return nil
}
