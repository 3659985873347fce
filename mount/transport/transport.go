// Package transport carries FUSE messages between the kernel's device and a
// go-fuse protocol server.
//
// go-fuse's own loop sleeps in read(2) between messages. On a machine with few
// processors the two wake-ups of a message, of the daemon and of the program
// that waits for it, cost several times what the daemon does for it. So here
// one thread, the listener, looks for the next message for a short while before
// it sleeps, handles it itself, and only when that takes longer does another
// thread take over listening. Programs that send one message after the other,
// which is what cp, tar, find and git do, then wake the daemon once and not
// for each message.
//
// Looking costs processor time that nobody else could have used: it ends after
// [Spin] without a message, and the thread yields to any other that can run.
package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	// spin is how long the listener looks for a message before it sleeps: about
	// what the program needs between two messages, and less than two wake-ups.
	spin = 100 * time.Microsecond
	// patience is how long the listener handles one message before another
	// thread listens. Longer than anything that does not wait.
	patience = 200 * time.Microsecond
	// resting is how long a goroutine that was the listener waits to be it again.
	resting = time.Second

	headerSize = int(unsafe.Sizeof(fuse.InHeader{}))
	replySize  = int(unsafe.Sizeof(fuse.OutHeader{}))
	// requestRoom is what a message has besides its payload, generously.
	requestRoom = 4096
	// smallReply holds every reply but those of READ and READDIR: the largest
	// is an extended attribute of 64 KiB.
	smallReply = 64<<10 + requestRoom

	devFuseClone = 0x8004e500 // FUSE_DEV_IOC_CLONE, linux/fuse.h
)

// Opcodes that matter to the transport (linux/fuse.h).
const (
	opRead        = 15
	opWrite       = 16
	opFsync       = 20
	opFsyncdir    = 30
	opReaddir     = 28
	opReaddirplus = 44
)

// Conn is one FUSE connection. Its methods may be called concurrently.
type Conn struct {
	server   *fuse.ProtocolServer
	log      *slog.Logger
	settings fuse.InitIn

	fd    int // messages are waited for here
	clone int // and looked for here, without waiting; -1 without
	large int // size of buffers that hold a whole READ or WRITE

	requests, replies sync.Pool // *[]byte of size large
	slots             chan struct{}
	next              chan struct{}            // wakes a goroutine that was the listener before
	leader            atomic.Pointer[handover] // of the listener
	synced            atomic.Uint32            // the thread that asked for the last fsync

	count   sync.Mutex
	threads int           // that listen or handle a message, or are about to; guarded by count
	ended   chan struct{} // closed when there is none left
	mu      sync.RWMutex  // held shared while fd is used by Notify
	closed  bool
}

// Options of a connection. MaxWrite and MaxInflight are required.
type Options struct {
	MaxWrite    int // bytes of one READ or WRITE
	MaxInflight int // messages handled at a time; then the kernel has to wait
	Logger      *slog.Logger
}

// New takes over fd, a device that is mounted already, and answers INIT.
func New(fd int, server *fuse.ProtocolServer, o Options) (*Conn, error) {
	c := &Conn{server: server, log: o.Logger, fd: fd, clone: -1, large: o.MaxWrite + requestRoom,
		slots: make(chan struct{}, o.MaxInflight), next: make(chan struct{}), ended: make(chan struct{})}
	newBuffer := func() any { b := make([]byte, c.large); return &b }
	c.requests.New, c.replies.New = newBuffer, newBuffer
	if err := c.init(); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("transport: init: %w", err)
	}
	c.openClone()
	return c, nil
}

// init answers the first message, with which the kernel and the protocol server
// agree on what they can do.
func (c *Conn) init() error {
	buf := c.requests.Get().(*[]byte)
	defer c.requests.Put(buf)
	n, errno := c.wait(*buf)
	if errno != 0 {
		return errno
	}
	if n < int(unsafe.Sizeof(fuse.InitIn{})) {
		return fmt.Errorf("message of %d bytes", n)
	}
	// The kernel's structures have no padding before their end, and the buffer
	// is aligned for them.
	c.settings = *(*fuse.InitIn)(unsafe.Pointer(&(*buf)[0]))
	c.handle(c.fd, (*buf)[:n])
	return nil
}

// openClone opens a second description of the connection for reading without
// waiting. Where that is not possible the listener only ever sleeps.
func (c *Conn) openClone() {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		c.log.Debug("messages are waited for asleep", "error", err)
		return
	}
	arg := uint32(c.fd)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), devFuseClone, uintptr(unsafe.Pointer(&arg))); errno != 0 {
		unix.Close(fd)
		c.log.Debug("messages are waited for asleep", "error", errno)
		return
	}
	c.clone = fd
}

// Settings are what the kernel offered in INIT.
func (c *Conn) Settings() *fuse.InitIn { return &c.settings }

// Serve handles messages until the connection ends, and returns when the last
// one has been answered. It must be called once.
func (c *Conn) Serve() {
	c.slots <- struct{}{}
	c.threads = 1
	c.listen()
	<-c.ended
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	unix.Close(c.fd)
	if c.clone >= 0 {
		unix.Close(c.clone)
	}
}

// listen is the connection's listener, and waits for a while to be it again.
// What has handled messages before has a stack that is large enough for them; a
// new goroutine would have to grow it.
func (c *Conn) listen() {
	h := handover{conn: c}
	h.timer = time.AfterFunc(time.Hour, h.pass)
	defer h.timer.Stop()
	rest := time.NewTimer(resting)
	defer rest.Stop()
	for {
		c.lead(&h)
		rest.Reset(resting)
		select {
		case <-c.next:
		case <-rest.C:
			return
		case <-c.ended:
			return
		}
	}
}

// lead handles one message after the other for as long as it is the
// connection's listener. It owns a slot and is counted, up to then.
func (c *Conn) lead(h *handover) {
	defer c.leave()
	defer func() { <-c.slots }()
	buf := c.requests.Get().(*[]byte)
	defer c.requests.Put(buf)
	c.leader.Store(h)
	for {
		fd, n, err := c.receive(*buf)
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ECONNABORTED) {
			return // unmounted or aborted
		}
		if err != nil {
			c.log.Error("reading a FUSE message", "error", err)
			return
		}
		msg := (*buf)[:n]
		if c.slow(msg) {
			h.arm(0)
		} else {
			h.arm(patience)
		}
		c.handle(fd, msg)
		if !h.disarm() {
			return // another thread listens
		}
	}
}

// Outside runs fn, which may wait until other messages have been answered, within
// the handling of one that does not count as one of MaxInflight meanwhile.
func (c *Conn) Outside(fn func()) {
	<-c.slots
	c.leader.Load().pass() // if there was no slot for that when its time came
	fn()
	c.slots <- struct{}{}
}

// join counts another thread; false when the last one has left.
func (c *Conn) join() bool {
	c.count.Lock()
	defer c.count.Unlock()
	if c.threads == 0 {
		return false
	}
	c.threads++
	return true
}

func (c *Conn) leave() {
	c.count.Lock()
	defer c.count.Unlock()
	if c.threads--; c.threads == 0 {
		close(c.ended)
	}
}

// slow tells whether a message is worth another thread from the start: one that
// moves many bytes, while others of its kind probably are on their way, or one
// that waits for the disk, when others do so too: they can share a flush.
func (c *Conn) slow(msg []byte) bool {
	const many = 128 << 10
	if len(msg) < headerSize {
		return false
	}
	header := (*fuse.InHeader)(unsafe.Pointer(&msg[0]))
	switch header.Opcode {
	case opFsync, opFsyncdir:
		return c.synced.Swap(header.Pid) != header.Pid
	case opRead:
		return len(msg) >= int(unsafe.Sizeof(fuse.ReadIn{})) && (*fuse.ReadIn)(unsafe.Pointer(&msg[0])).Size > many
	case opWrite:
		return len(msg) > many
	}
	return false
}

// handover passes the role of the listener on while a message is handled.
type handover struct {
	conn  *Conn
	timer *time.Timer
	state atomic.Uint32
}

// States of a handover.
const (
	listening = iota // no message is being handled
	handling         // one is; the timer may pass the role on
	passed           // another thread listens
)

func (h *handover) arm(after time.Duration) {
	h.state.Store(handling)
	if after == 0 {
		h.pass()
		return
	}
	h.timer.Reset(after)
}

// pass starts another listener, unless too many messages are under way already.
func (h *handover) pass() {
	select {
	case h.conn.slots <- struct{}{}:
	default:
		return
	}
	// Counted before the role is passed on: the one that had it may leave at
	// once, and there must never be none in between.
	if !h.conn.join() {
		<-h.conn.slots
		return
	}
	if !h.state.CompareAndSwap(handling, passed) {
		h.conn.leave()
		<-h.conn.slots
		return
	}
	select {
	case h.conn.next <- struct{}{}:
	default:
		go h.conn.listen()
	}
}

// disarm reports whether the caller still is the listener.
func (h *handover) disarm() bool {
	h.timer.Stop()
	return h.state.CompareAndSwap(handling, listening)
}

// receive returns the next message and the descriptor that it must be answered
// on: those of a device and of its clone are kept apart by the kernel.
func (c *Conn) receive(buf []byte) (fd, n int, err error) {
	if c.clone >= 0 {
		if n, errno := c.look(buf); errno != unix.EAGAIN {
			return c.clone, n, asError(errno)
		}
	}
	n, errno := c.wait(buf)
	return c.fd, n, asError(errno)
}

func asError(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// look reads without waiting until something came or the time is over. The
// system calls do not tell the scheduler of goroutines: none of them waits.
func (c *Conn) look(buf []byte) (int, syscall.Errno) {
	start := time.Now()
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(c.clone), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		switch errno {
		case unix.EAGAIN:
			if time.Since(start) > spin {
				return 0, errno
			}
			unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		case unix.EINTR, unix.ENOENT: // ENOENT: interrupted before it was read
		default:
			return int(n), errno
		}
	}
}

// wait reads the next message, asleep until it comes.
func (c *Conn) wait(buf []byte) (int, syscall.Errno) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		if errno != unix.EINTR && errno != unix.ENOENT && errno != unix.EAGAIN {
			return int(n), errno
		}
	}
}

// handle has a message answered.
func (c *Conn) handle(fd int, msg []byte) {
	if len(msg) < headerSize {
		c.log.Error("FUSE message too short", "bytes", len(msg))
		return
	}
	header := (*fuse.InHeader)(unsafe.Pointer(&msg[0]))
	var reply []byte
	switch header.Opcode {
	case opRead, opReaddir, opReaddirplus:
		b := c.replies.Get().(*[]byte)
		defer c.replies.Put(b)
		reply = *b
	default:
		b := smallReplies.Get().(*[smallReply]byte)
		defer smallReplies.Put(b)
		reply = b[:]
	}
	useAlias(msg)
	n, status := c.server.HandleRequest([][]byte{msg}, [][]byte{reply})
	if !status.Ok() {
		n = errorReply(reply, header.Unique, status)
	}
	if n == 0 {
		return // a message without an answer
	}
	_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&reply[0])), uintptr(n))
	// ENOENT: the program was killed and the kernel waits no longer.
	if errno != 0 && errno != unix.ENOENT && errno != unix.ENODEV {
		c.log.Warn("answering a FUSE message", "opcode", header.Opcode, "error", errno)
	}
}

var smallReplies = sync.Pool{New: func() any { return new([smallReply]byte) }}

// errorReply answers a message that the protocol server could not make sense of.
func errorReply(reply []byte, unique uint64, status fuse.Status) int {
	*(*fuse.OutHeader)(unsafe.Pointer(&reply[0])) = fuse.OutHeader{Length: uint32(replySize), Status: -int32(status), Unique: unique}
	return replySize
}
