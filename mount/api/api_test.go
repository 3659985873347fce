package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ipfs/go-cid"
	mh "github.com/multiformats/go-multihash"

	"cafs/mount/api"
	"cafs/mount/repo"
	"cafs/store"
)

type handlers map[string]api.Handler

// serve runs a server with these handlers and returns a client of it.
func serve(t *testing.T, h handlers) (*api.Server, *api.Client, string) {
	t.Helper()
	// A path longer than a socket address can be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &api.Server{Handlers: h, Logger: slog.New(slog.DiscardHandler)}
	if err := s.Listen(dir); err != nil {
		t.Fatal(err)
	}
	go s.Serve()
	c, err := api.Dial(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return s, c, dir
}

func block(s string) (cid.Cid, []byte) {
	sum, err := mh.Sum([]byte(s), mh.SHA2_256, -1)
	if err != nil {
		panic(err)
	}
	return cid.NewCidV1(cid.Raw, sum), []byte(s)
}

func TestSocket(t *testing.T) {
	s, _, dir := serve(t, handlers{})
	path := filepath.Join(dir, repo.SocketName)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || info.Mode().Type() != fs.ModeSocket {
		t.Errorf("socket: %v, %v", info.Mode(), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket after Close: %v", err)
	}
	if _, err := api.Dial(context.Background(), dir); !errors.Is(err, api.ErrNoDaemon) {
		t.Errorf("dial without a socket: %v", err)
	}
	// What a killed daemon leaves: a name that nobody listens at.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: shortName(t, dir), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := api.Dial(context.Background(), dir); !errors.Is(err, api.ErrNoDaemon) {
		t.Errorf("dial of a dead socket: %v", err)
	}
	again := &api.Server{Logger: slog.New(slog.DiscardHandler)}
	if err := again.Listen(dir); err != nil {
		t.Errorf("listen over a dead socket: %v", err)
	}
	again.Close()
}

func shortName(t *testing.T, dir string) string {
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), repo.SocketName)
}

// TestErrors: sentinels and hints survive the socket, wrapped as they were.
func TestErrors(t *testing.T) {
	ctx := context.Background()
	answers := make(chan error, 1)
	_, c, _ := serve(t, handlers{
		api.OpSync: func(context.Context, *api.Call) (any, []byte, error) { return nil, []byte("ignored"), <-answers },
		api.OpStop: func(context.Context, *api.Call) (any, []byte, error) { panic("broken") },
	})
	for _, want := range []error{
		store.ErrNotFound, store.ErrPoisoned, store.ErrFull, fs.ErrNotExist, fs.ErrPermission, syscall.EROFS,
		syscall.ENOSPC, syscall.EBUSY, syscall.EIO, syscall.EINVAL, syscall.ENOTDIR, syscall.EISDIR, context.Canceled,
	} {
		fail := repo.Hint(fmt.Errorf("one: %w", fmt.Errorf("two: %w", want)), "do something")
		answers <- fail
		err := c.Sync(ctx)
		var e *api.Error
		if !errors.Is(err, want) || !errors.As(err, &e) || e.Hint != "do something" || e.Msg != fail.Error() {
			t.Errorf("%v came as %#v", want, err)
		}
	}
	answers <- &store.CorruptError{Want: mh.Multihash("\x12\x01x"), Detail: "short"}
	if err := c.Sync(ctx); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("corrupt block came as %v", err)
	}
	answers <- errors.New("something else")
	if err := c.Sync(ctx); err == nil || errors.Is(err, fs.ErrNotExist) || err.Error() != "something else" {
		t.Errorf("unknown error came as %v", err)
	}
	if _, err := c.Status(ctx); !errors.Is(err, api.ErrUnknownOp) {
		t.Errorf("unknown operation: %v", err)
	}
	if err := c.Stop(ctx, api.StopArg{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("handler that panics: %v", err)
	}
	answers <- nil
	if err := c.Sync(ctx); err != nil {
		t.Errorf("after all that: %v", err)
	}
}

// TestStore: the client is a store with a store's errors, from many goroutines
// at once; a block that does not match its CID is never handed out.
func TestStore(t *testing.T) {
	ctx := context.Background()
	mem := store.NewMem()
	lie, _ := block("a lie")
	blockOp := func(f func(cid.Cid, []byte) (any, []byte, error)) api.Handler {
		return func(_ context.Context, c *api.Call) (any, []byte, error) {
			var arg api.BlockArg
			if err := c.Arg(&arg); err != nil {
				return nil, nil, err
			}
			return f(arg.Cid, c.Body)
		}
	}
	_, c, _ := serve(t, handlers{
		api.OpBlockPut: blockOp(func(k cid.Cid, b []byte) (any, []byte, error) {
			return nil, nil, store.PutVerified(ctx, mem, k, b)
		}),
		api.OpBlockGet: blockOp(func(k cid.Cid, _ []byte) (any, []byte, error) {
			if k == lie {
				return nil, []byte("the truth"), nil
			}
			b, err := mem.Get(ctx, k)
			return nil, b, err
		}),
		api.OpBlockLen: blockOp(func(k cid.Cid, _ []byte) (any, []byte, error) {
			n, err := mem.Size(ctx, k)
			return n, nil, err
		}),
		api.OpBlockAll: func(ctx context.Context, call *api.Call) (any, []byte, error) {
			for e, err := range mem.All(ctx) {
				if err != nil {
					return nil, nil, err
				}
				if err := call.Send([]api.BlockInfo{{Cid: cid.NewCidV1(cid.Raw, e.Hash), Size: e.Size}}, nil); err != nil {
					return nil, nil, err
				}
			}
			return nil, nil, nil
		},
	})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			k, b := block(strings.Repeat(fmt.Sprint(i), i*1000))
			if err := c.Put(ctx, k, b); err != nil {
				t.Errorf("put %d: %v", i, err)
			}
			if got, err := c.Get(ctx, k); err != nil || !bytes.Equal(got, b) {
				t.Errorf("get %d: %d bytes, %v", i, len(got), err)
			}
			if n, err := c.Size(ctx, k); err != nil || n != int64(len(b)) {
				t.Errorf("size %d: %d, %v", i, n, err)
			}
		})
	}
	wg.Wait()
	k, b := block("absent")
	if _, err := c.Get(ctx, k); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("absent block: %v", err)
	}
	if err := c.Put(ctx, k, append(b, '!')); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("put of other bytes: %v", err)
	}
	if _, err := c.Get(ctx, lie); !errors.Is(err, store.ErrMismatch) {
		t.Errorf("get of a lie: %v", err)
	}
	count := 0
	for _, err := range c.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	if count != 40 {
		t.Errorf("%d blocks listed, want 40", count)
	}
	for range c.All(ctx) {
		break // leaves the connection in the middle of an answer
	}
	if _, err := c.Size(ctx, k); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("after a list that was given up: %v", err)
	}
}

// TestDescriptor: a descriptor arrives as what it is, and a pipe stays one whose
// reads can be ended.
func TestDescriptor(t *testing.T) {
	ctx := context.Background()
	seen := make(chan string, 1)
	_, c, _ := serve(t, handlers{api.OpAdd: func(ctx context.Context, call *api.Call) (any, []byte, error) {
		if err := call.Send(api.AddEvent{Skipped: "x"}, nil); err != nil {
			return nil, nil, err
		}
		if len(call.Files) != 1 {
			return nil, nil, fmt.Errorf("%d descriptors", len(call.Files))
		}
		b, err := io.ReadAll(call.Files[0])
		seen <- string(b)
		return api.Added{Root: api.Root{Size: uint64(len(b))}}, nil, err
	}})
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	events := 0
	a, err := c.Add(ctx, f, api.AddArg{}, func(e api.AddEvent) { events++ })
	if err != nil || a.Size != 7 || events != 1 || <-seen != "content" {
		t.Errorf("add of a file: %+v, %d events, %v", a, events, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() { w.WriteString("through a pipe"); w.Close() }()
	if a, err = c.Add(ctx, r, api.AddArg{}, nil); err != nil || a.Size != 14 || <-seen != "through a pipe" {
		t.Errorf("add of a pipe: %+v, %v", a, err)
	}
}

// TestCancel: a command that goes away ends its handler, and so does the end of
// the server, which waits for it.
func TestCancel(t *testing.T) {
	started, ended := make(chan bool), make(chan error)
	s, c, _ := serve(t, handlers{api.OpSync: func(ctx context.Context, _ *api.Call) (any, []byte, error) {
		started <- true
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, nil, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- c.Sync(ctx) }()
	<-started
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled command: %v", err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("its handler: %v", err)
	}
	go func() { got <- c.Sync(context.Background()) }()
	<-started
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("handler at the end of the server: %v", err)
	}
	if err := <-got; !errors.Is(err, api.ErrEnding) {
		t.Errorf("command at the end of the server: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
}
