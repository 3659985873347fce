// Package api is how commands talk to the daemon that has a repository open:
// over api.sock in the repository, which only the daemon's own user (and root)
// can reach.
//
// # Protocol
//
// A connection carries one request at a time. Either side sends frames:
//
//	uint32  length of the JSON part, big-endian, at most 1 MiB
//	uint32  length of the body, big-endian, at most 4 MiB
//	JSON    a Request to the daemon, a Reply to the command
//	body    raw bytes: a block
//
// Descriptors travel with the first byte of a request (SCM_RIGHTS). A request is
// answered by any number of replies and a last one, which has Last set and, when
// it went wrong, Err. A command that goes away cancels what it asked for.
// The daemon opens no path for a command: it gets descriptors, or names inside
// the tree.
//
// An unknown operation or protocol version is refused with a message; fields
// that are not known are ignored.
package api

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Version is the protocol's.
const Version = 1

const (
	maxJSON  = 1 << 20
	maxBody  = 4 << 20
	maxFiles = 8
	headSize = 8
)

// errFrame: the peer does not speak this protocol.
var errFrame = errors.New("malformed message")

// Request is what a command sends.
type Request struct {
	Version int             `json:"v"`
	Op      string          `json:"op"`
	Arg     json.RawMessage `json:"arg,omitempty"`
}

// Reply is what the daemon answers.
type Reply struct {
	Last bool            `json:"last,omitempty"`
	Val  json.RawMessage `json:"val,omitempty"`
	Err  *Error          `json:"err,omitempty"`
}

// frameSizes decodes and checks a frame's head.
func frameSizes(head []byte) (js, body int, err error) {
	js = int(binary.BigEndian.Uint32(head))
	body = int(binary.BigEndian.Uint32(head[4:]))
	if js == 0 || js > maxJSON || body > maxBody {
		return 0, 0, fmt.Errorf("api: %w: %d+%d bytes announced", errFrame, uint32(js), uint32(body))
	}
	return js, body, nil
}

// readFrame reads what follows a head: msg is decoded into, body is fresh.
func readFrame(r io.Reader, head []byte, msg any) (body []byte, err error) {
	js, n, err := frameSizes(head)
	if err != nil {
		return nil, err
	}
	buf := make([]byte, js+n)
	if _, err := io.ReadFull(r, buf); err != nil {
		return nil, fmt.Errorf("api: read: %w", noEOF(err))
	}
	if err := json.Unmarshal(buf[:js], msg); err != nil {
		return nil, fmt.Errorf("api: %w: %v", errFrame, err)
	}
	return buf[js:], nil
}

// noEOF keeps a connection that broke inside a frame from looking like one that ended.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// appendHead encodes msg and the head of its frame.
func appendHead(msg any, body []byte) ([]byte, error) {
	js, err := json.Marshal(msg)
	if err != nil {
		return nil, err
	}
	if len(js) > maxJSON || len(body) > maxBody {
		return nil, fmt.Errorf("api: message of %d+%d bytes is too long", len(js), len(body))
	}
	buf := make([]byte, headSize, headSize+len(js))
	binary.BigEndian.PutUint32(buf, uint32(len(js)))
	binary.BigEndian.PutUint32(buf[4:], uint32(len(body)))
	return append(buf, js...), nil
}

// writeFrame sends a frame; files stay the caller's.
func writeFrame(c *net.UnixConn, msg any, body []byte, files []*os.File) error {
	buf, err := appendHead(msg, body)
	if err != nil {
		return err
	}
	if len(files) > 0 {
		// The head goes by itself: eight bytes are sent whole or not at all, so
		// the descriptors are with the first byte.
		err := withFds(files, nil, func(fds []int) error {
			_, _, err := c.WriteMsgUnix(buf[:headSize], syscall.UnixRights(fds...), nil)
			return err
		})
		if err != nil {
			return fmt.Errorf("api: write: %w", err)
		}
		buf = buf[headSize:]
	}
	if _, err := (&net.Buffers{buf, body}).WriteTo(c); err != nil {
		return fmt.Errorf("api: write: %w", err)
	}
	return nil
}

// withFds calls f with the descriptors of files. os.File.Fd will not do: it
// would take pipes out of the non-blocking mode, for both ends of the socket.
func withFds(files []*os.File, fds []int, f func([]int) error) error {
	if len(files) == 0 {
		return f(fds)
	}
	raw, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = withFds(files[1:], append(fds, int(fd)), f) }); e != nil {
		return e
	}
	return err
}

// readHead reads a frame's head and the descriptors with it, which are the
// caller's to close. A connection that ended between frames is io.EOF.
func readHead(c *net.UnixConn, head []byte) ([]*os.File, error) {
	oob := make([]byte, syscall.CmsgSpace(4*maxFiles))
	n, oobn, _, _, err := c.ReadMsgUnix(head, oob)
	files, ferr := parseFiles(oob[:oobn])
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && n < headSize {
		_, err = io.ReadFull(c, head[n:])
		err = noEOF(err)
	}
	if err == nil {
		err = ferr
	}
	if err != nil {
		closeAll(files)
		if err == io.EOF {
			return nil, io.EOF
		}
		return nil, fmt.Errorf("api: read: %w", err)
	}
	return files, nil
}

func parseFiles(oob []byte) ([]*os.File, error) {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range msgs {
		fds, err := syscall.ParseUnixRights(&msgs[i])
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
