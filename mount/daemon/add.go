package daemon

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cafs/linksys/add"
	"cafs/mount/api"
	"cafs/mount/repo"
)

// progressEvery is the time between two progress replies of an import.
const progressEvery = 100 * time.Millisecond

func (d *daemon) onAdd(ctx context.Context, c *api.Call) (any, []byte, error) {
	var arg api.AddArg
	if err := c.Arg(&arg); err != nil {
		return nil, nil, err
	}
	f, own, err := d.passed(c, arg.Name)
	if err != nil {
		return nil, nil, err
	}
	run := d.repo.Store.Sweep() // what is put, or found, no collection deletes
	later := false
	defer func() {
		if !later {
			run.End()
		}
	}()
	p := progress{send: func(e api.AddEvent) { _ = c.Send(e, nil) }}
	done := p.start()
	root, stats, err := d.repo.Import(ctx, f, repo.ImportOptions{
		Name:      arg.Name,
		Profile:   arg.Profile,
		Recursive: arg.Recursive,
		NoRoot:    arg.NoRoot,
		Options: add.Options{
			Hidden:        !arg.NoHidden,
			NoEmptyDirs:   arg.NoEmptyDirs,
			PreserveMode:  arg.PreserveMode,
			PreserveMtime: arg.PreserveMtime,
			Stats:         arg.Stats,
			NoSync:        arg.NoSync,
			Enter:         own,
			Progress:      func(n int64) { p.bytes.Add(n) },
			Skipped:       func(path string) { p.emit(api.AddEvent{Skipped: path}) },
		},
	})
	done()
	if err != nil {
		return nil, nil, err
	}
	if arg.NoSync && !arg.NoRoot {
		later = true
		d.later.Go(func() {
			defer run.End()
			d.keepLater(repo.Root{Cid: root.Cid, Name: arg.Name, Time: time.Now()})
		})
	}
	return api.Added{Root: api.Root{Cid: root.Cid, Size: root.Size, Tsize: root.Tsize}, Stats: stats}, nil, nil
}

// keepLater remembers a root once its blocks are durable. The answer has been
// given by then, so failures go to the log.
func (d *daemon) keepLater(r repo.Root) {
	ctx := context.Background()
	err := d.repo.Store.Sync(ctx)
	if err == nil {
		err = d.repo.AddRoot(ctx, r)
	}
	if err != nil {
		d.log.Error("what was added without waiting is not kept", "cid", r.Cid, "name", r.Name, "err", err)
	}
}

// passed returns the one descriptor of a request, after making sure that it does
// not lie on our own mount, and the check for what it leads to.
func (d *daemon) passed(c *api.Call, name string) (*os.File, func(string, *os.File) error, error) {
	if len(c.Files) != 1 {
		return nil, nil, fmt.Errorf("daemon: %d descriptors instead of one: %w", len(c.Files), syscall.EINVAL)
	}
	own, err := d.ownCheck()
	if err == nil {
		err = own(name, c.Files[0])
	}
	return c.Files[0], own, err
}

// ownCheck returns a function that refuses what lies on our own mount: reading
// it here would make the daemon wait for itself. The mount is told by its id,
// which costs no request.
func (d *daemon) ownCheck() (func(path string, f *os.File) error, error) {
	all, err := Mounts()
	if err != nil {
		return nil, err
	}
	at, ok := MountAt(all, d.info.Mountpoint)
	return func(path string, f *os.File) error {
		raw, err := f.SyscallConn()
		if err != nil {
			return fmt.Errorf("daemon: add: %w", err)
		}
		var info []byte
		if e := raw.Control(func(fd uintptr) { info, err = os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd)) }); e != nil {
			err = e
		}
		if err != nil {
			return fmt.Errorf("daemon: add: %w", err)
		}
		if ok && at.ID == mountID(info) {
			return repo.Hint(fmt.Errorf("daemon: %s is on the mount of this repository itself", path),
				"add what is on the mount by itself; its files have CIDs already, and 'cafs cid' prints them")
		}
		return nil
	}, nil
}

func (d *daemon) onKeep(ctx context.Context, c *api.Call) (any, []byte, error) {
	var arg api.NamedRoot
	if err := c.Arg(&arg); err != nil {
		return nil, nil, err
	}
	if _, err := d.repo.Store.Size(ctx, arg.Cid); err != nil {
		return nil, nil, err
	}
	return nil, nil, d.history.Pin(ctx, repo.Root{Cid: arg.Cid, Name: arg.Name, Time: time.Now()})
}

// progress sends how far an import is, while it lasts.
type progress struct {
	bytes atomic.Int64

	mu   sync.Mutex // one reply at a time
	send func(api.AddEvent)
}

func (p *progress) emit(e api.AddEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.send(e)
}

// start begins sending; done ends it, after which no reply is under way.
func (p *progress) start() (done func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(progressEvery)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-t.C:
				p.emit(api.AddEvent{Bytes: p.bytes.Load()})
			}
		}
	}()
	return func() { close(stop); <-ended }
}
