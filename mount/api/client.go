package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/linksys"
	"cafs/linksys/car"
	"cafs/mount/repo"
	"cafs/store"

	"golang.org/x/sys/unix"
)

// Client talks to the daemon that has a repository open. Its methods may be
// called concurrently; each uses a connection of its own for as long as it
// runs. As a store it reads and writes the daemon's blocks, with the errors of
// package store; blocks it returns were checked against their CIDs here as
// well as there.
type Client struct {
	dir *os.File // the repository folder

	mu     sync.Mutex
	idle   []*net.UnixConn
	closed bool
}

// maxIdle bounds the connections kept for later calls.
const maxIdle = 8

// answerWait is how long a daemon may take to say that it is there. Whatever it
// does meanwhile, it does beside that; the machine may be slow.
const answerWait = 10 * time.Second

// Dial connects to the daemon of the repository at path, and returns when it has
// answered. Errors: ErrNoDaemon, ErrSilent, ErrRefused.
func Dial(ctx context.Context, path string) (*Client, error) {
	// O_PATH asks the file system nothing: a daemon is reached over a dead disk.
	dir, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("api: %s: %w", path, ErrNoDaemon)
	} else if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	c := &Client{dir: dir}
	conn, err := c.connect(ctx)
	if err != nil {
		dir.Close()
		return nil, err
	}
	c.put(conn)
	if err := c.hello(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// hello makes sure that the daemon answers: the kernel takes connections and
// requests for one that is stopped or stuck, too.
func (c *Client) hello(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	_, err := c.call(limited, OpHello, nil, nil, nil, nil, nil)
	switch {
	case errors.Is(err, ErrUnknownOp): // an answer, of an older version
		return nil
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return silent(c.dir.Name(), answerWait)
	}
	return err
}

// silent says what can be done about a daemon that does not answer.
func silent(path string, waited time.Duration) error {
	err := fmt.Errorf("%s: %w, for %v now", path, ErrSilent, waited)
	h, held, e := repo.LockedBy(path)
	if e != nil || !held || h.PID == 0 {
		return err
	}
	return repo.Hint(err, "its process is %d: if it was stopped, 'kill -CONT %[1]d' lets it go on; if it is stuck, 'kill -9 %[1]d' ends it, which loses only what was not durable", h.PID)
}

// Close ends the idle connections; calls that run end by themselves.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.idle {
		conn.Close()
	}
	c.idle = nil
	return c.dir.Close()
}

func (c *Client) connect(ctx context.Context) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", shortPath(c.dir))
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("api: %s: %w", c.dir.Name(), ErrNoDaemon)
	} else if err != nil {
		return nil, fmt.Errorf("api: connect: %w", err)
	}
	return conn.(*net.UnixConn), nil
}

func (c *Client) get(ctx context.Context) (*net.UnixConn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		conn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return conn, nil
	}
	c.mu.Unlock()
	return c.connect(ctx)
}

func (c *Client) put(conn *net.UnixConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) >= maxIdle {
		conn.Close()
		return
	}
	c.idle = append(c.idle, conn)
}

// call makes one request. each gets every reply but the last, and may be nil;
// an error of its ends the call. The last reply's value goes into val, which
// may be nil.
func (c *Client) call(ctx context.Context, op string, arg any, body []byte, files []*os.File, val any, each func(Reply) error) ([]byte, error) {
	js, err := json.Marshal(arg)
	if err != nil {
		return nil, err
	}
	conn, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	ok := false
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer func() {
		if stop() && ok {
			c.put(conn)
		} else {
			conn.Close()
		}
	}()
	err = writeFrame(conn, Request{Version, op, js}, body, files)
	for err == nil {
		var r Reply
		var out []byte
		if r, out, err = readReply(conn); err != nil {
			break
		}
		if !r.Last {
			if each != nil {
				err = each(r)
			}
			continue
		}
		ok = true
		if r.Err != nil {
			return nil, r.Err
		}
		if val != nil {
			err = json.Unmarshal(r.Val, val)
		}
		return out, err
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return nil, fmt.Errorf("api: %s: %w", op, err)
}

func readReply(conn *net.UnixConn) (r Reply, body []byte, err error) {
	head := make([]byte, headSize)
	if _, err := io.ReadFull(conn, head); err != nil {
		return r, nil, noEOF(err)
	}
	body, err = readFrame(conn, head, &r)
	return r, body, err
}

// Status asks how the daemon is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	_, err := c.call(ctx, OpStatus, nil, nil, nil, &s, nil)
	return s, err
}

// Sync returns when everything done before is durable.
func (c *Client) Sync(ctx context.Context) error {
	_, err := c.call(ctx, OpSync, nil, nil, nil, nil, nil)
	return err
}

// Stop asks the daemon to unmount and end; see repo.WaitFree for when it has.
// Errors: syscall.EBUSY.
func (c *Client) Stop(ctx context.Context, arg StopArg) error {
	_, err := c.call(ctx, OpStop, arg, nil, nil, nil, nil)
	return err
}

// Profile asks for a profile. Errors: syscall.EBUSY when one for cpu is taken
// already, syscall.EINVAL.
func (c *Client) Profile(ctx context.Context, arg ProfileArg) ([]byte, error) {
	return c.call(ctx, OpProfile, arg, nil, nil, nil, nil)
}

// Cid asks for the address of an object of the tree as it is now.
func (c *Client) Cid(ctx context.Context, arg CidArg) (Root, error) {
	var r Root
	_, err := c.call(ctx, OpCid, arg, nil, nil, &r, nil)
	return r, err
}

// Add imports what f is open on: a file, a pipe or a folder. f stays the
// caller's; event, which may be nil, is called for each AddEvent. What was
// imported is durable when Add returns, unless arg says otherwise.
func (c *Client) Add(ctx context.Context, f *os.File, arg AddArg, event func(AddEvent)) (a Added, err error) {
	return a, c.transfer(ctx, OpAdd, arg, f, &a, event)
}

// Export writes a CAR to f, which stays the caller's; event as in Add.
func (c *Client) Export(ctx context.Context, f *os.File, arg ExportArg, event func(AddEvent)) (s car.ExportStats, err error) {
	return s, c.transfer(ctx, OpExport, arg, f, &s, event)
}

// Import stores the blocks of the CAR that f, which stays the caller's, is open
// on; event as in Add. What was imported is durable when Import returns. Errors:
// linksys.ErrIncomplete, store.ErrMismatch.
func (c *Client) Import(ctx context.Context, f *os.File, arg ImportArg, event func(AddEvent)) (r car.ImportResult, err error) {
	return r, c.transfer(ctx, OpImport, arg, f, &r, event)
}

// transfer makes a request that passes a descriptor and is answered by events
// and a result.
func (c *Client) transfer(ctx context.Context, op string, arg any, f *os.File, val any, event func(AddEvent)) error {
	_, err := c.call(ctx, op, arg, nil, []*os.File{f}, val, func(r Reply) error {
		var e AddEvent
		if err := json.Unmarshal(r.Val, &e); err != nil {
			return err
		}
		if event != nil {
			event(e)
		}
		return nil
	})
	return err
}

// DagSize counts the blocks of a DAG.
func (c *Client) DagSize(ctx context.Context, root cid.Cid) (n linksys.DagSize, err error) {
	_, err = c.call(ctx, OpDagSize, BlockArg{root}, nil, nil, &n, nil)
	return n, err
}

// Keep makes content that is in the store already one of the roots.
func (c *Client) Keep(ctx context.Context, r NamedRoot) error {
	_, err := c.call(ctx, OpKeep, r, nil, nil, nil, nil)
	return err
}

// Roots lists what the repository knows by name.
func (c *Client) Roots(ctx context.Context) iter.Seq2[NamedRoot, error] {
	return list[NamedRoot](ctx, c, OpRoots)
}

// Get is store.Getter's.
func (c *Client) Get(ctx context.Context, k cid.Cid) ([]byte, error) {
	block, err := c.call(ctx, OpBlockGet, BlockArg{k}, nil, nil, nil, nil)
	if err != nil {
		return nil, err
	}
	sum, err := k.Prefix().Sum(block)
	if err != nil {
		return nil, fmt.Errorf("api: %s: %w", k, err)
	}
	if !sum.Equals(k) {
		return nil, fmt.Errorf("api: %s: %w", k, store.ErrMismatch)
	}
	return block, nil
}

// Put is store.Putter's.
func (c *Client) Put(ctx context.Context, k cid.Cid, block []byte) error {
	_, err := c.call(ctx, OpBlockPut, BlockArg{k}, block, nil, nil, nil)
	return err
}

// Has is store.Haser's.
func (c *Client) Has(ctx context.Context, k cid.Cid) (ok bool, err error) {
	_, err = c.call(ctx, OpBlockHas, BlockArg{k}, nil, nil, &ok, nil)
	return ok, err
}

// Size is store.Sizer's.
func (c *Client) Size(ctx context.Context, k cid.Cid) (n int64, err error) {
	_, err = c.call(ctx, OpBlockLen, BlockArg{k}, nil, nil, &n, nil)
	return n, err
}

// All is store.Enumerator's.
func (c *Client) All(ctx context.Context) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for b, err := range list[BlockInfo](ctx, c, OpBlockAll) {
			var e store.Entry
			if err == nil {
				e = store.Entry{Hash: mh.Multihash(b.Cid.Hash()), Size: b.Size}
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

// errStop ends a call whose caller wants no more.
var errStop = errors.New("enough")

// list runs a request whose replies are lists.
func list[T any](ctx context.Context, c *Client, op string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		_, err := c.call(ctx, op, nil, nil, nil, nil, func(r Reply) error {
			var batch []T
			if err := json.Unmarshal(r.Val, &batch); err != nil {
				return err
			}
			for _, v := range batch {
				if !yield(v, nil) {
					return errStop
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(none, err)
		}
	}
}
