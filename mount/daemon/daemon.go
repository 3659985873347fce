// Package daemon is the life of a mount: it checks the mountpoint, opens the
// repository and its tree, mounts, answers commands at api.sock, and ends all
// of it in the order that loses nothing, whoever asked for the end.
//
// A mount ends when the kernel closes the device: after `cafs umount`,
// umount(8), fusermount3 -u, a signal, or an abort of the connection. No request
// can come then. What follows is a barrier: the lock says "closing", the api
// stops, the tree makes everything durable, the repository is marked as
// properly closed and its lock is released, the process ends. Whoever waits for
// the lock (`cafs umount`, the next `cafs mount`) knows then that the
// repository is complete. A process that is killed leaves the mark unset and the
// dead mount in place; the next mount finds and replaces both.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cafs/mount"
	"cafs/mount/api"
	"cafs/mount/repo"
	"cafs/mount/tree"
	"cafs/mount/tree/content"
)

// Options of Run. Repo and Dir are required.
type Options struct {
	Repo   string       // the repository's path
	Dir    string       // the mountpoint
	Create *repo.Config // for a repository that is missing

	DirtyLimit     int64         // bytes; 0: the default
	CommitInterval time.Duration // 0: the default

	AllowOther, AllowSuid, AllowDev bool

	AutoCommit time.Duration // how often changes are committed; 0: never
	Keep       repo.Keep     // which automatic commits are kept

	Version string // of the program, for status
	Logger  *slog.Logger
	// Waiting is called when somebody else has the repository for a while.
	Waiting func(*repo.LockedError)
	// Ready is called once, when the mount answers.
	Ready func(Info)
	// Busy is called when a signal asked for the end and the mount is in use;
	// a second signal ends it nevertheless.
	Busy func(error)
}

// Info says what has been mounted.
type Info struct {
	PID        int    `json:"pid"`
	Repo       string `json:"repo"`
	Mountpoint string `json:"mountpoint"`
	Profile    string `json:"profile"`
	Created    bool   `json:"created"`   // the repository is a new one
	Recovered  bool   `json:"recovered"` // the last mount did not end properly
	Replaced   bool   `json:"replaced"`  // its dead mount was in the way
}

// How long Run waits for a command to give the repository up, and for a daemon
// that is writing out its last changes.
const (
	busyWait    = time.Second
	closingWait = 30 * time.Second
)

// Daemon is one mount while it runs.
type daemon struct {
	opts   Options
	log    *slog.Logger
	info   Info
	repo   *repo.Repo
	tree   *tree.Tree
	files  *content.Files
	server *mount.Server
	at     MountInfo // of the mount; the zero value where the kernel does not tell
	api    api.Server
	live   atomic.Pointer[mount.Server] // server, for callbacks that may come before it is set

	stopping sync.Mutex // one attempt to unmount at a time
	history  *repo.History
	// sealAtEnd: commit before the tree is closed.
	sealAtEnd atomic.Bool
	house     *housekeeper
	idle      context.CancelFunc // ends house.run
	later     sync.WaitGroup     // what requests left to be done after their answer
	forced    chan struct{}      // closed to end although the connection has not
}

// Run mounts and serves until the mount ends; its error is what kept the mount
// from coming up, or what could not be made durable at the end. The context
// bounds only the start. It handles SIGINT, SIGTERM and SIGHUP.
func Run(ctx context.Context, o Options) error {
	spare()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)

	d := &daemon{opts: o, log: o.Logger, forced: make(chan struct{})}
	if err := interruptible(ctx, signals, d.start); err != nil {
		return err
	}
	o.Ready(d.info)
	d.serve(signals)
	return d.end()
}

// spare lets two goroutines more run at a time than there are processors, unless
// GOMAXPROCS says how many. One that comes back from a flush has others waiting
// for it, and so has one that hashes; with a turn for each processor, all of them
// busy with messages, it would stand in line, and the device would idle meanwhile.
var spare = sync.OnceFunc(func() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 2)
	}
})

// interruptible runs f with a context that the first signal ends. A signal that
// came too late for f is left to the next reader.
func interruptible(ctx context.Context, signals chan os.Signal, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done, ended := make(chan struct{}), make(chan os.Signal, 1)
	go func() {
		defer close(ended)
		select {
		case sig := <-signals:
			ended <- sig
			cancel()
		case <-done:
		}
	}()
	err := f(ctx)
	close(done)
	if sig, ok := <-ended; ok && err == nil {
		signals <- sig
	}
	return err
}

// start brings everything up, or takes down again what it brought up.
func (d *daemon) start(ctx context.Context) (err error) {
	path, err := repo.Resolve(d.opts.Repo)
	if err != nil {
		return err
	}
	point, err := CheckMountpoint(d.opts.Dir, path)
	if err != nil {
		return err
	}
	_, err = repo.ReadConfig(path)
	d.info = Info{PID: os.Getpid(), Mountpoint: point.Path, Created: errors.Is(err, repo.ErrNotRepo), Replaced: point.Dead}
	d.repo, err = repo.Open(ctx, path, repo.Options{
		Holder: repo.Holder{Command: "cafs mount", State: repo.StateMounted, Mountpoint: point.Path},
		Wait:   repo.Wait{Busy: busyWait, Closing: closingWait, Tell: d.opts.Waiting},
		Create: d.opts.Create,
		Logger: d.log,
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.repo.Close())
		}
	}()
	d.info.Repo, d.info.Profile, d.info.Recovered = d.repo.Path, d.repo.Config.Profile, d.repo.Unclean && d.repo.Lock.Last.State != repo.StateBusy
	undo, err := point.Make()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			undo()
		}
	}()
	d.tree, d.files, err = d.repo.OpenTree(ctx, repo.TreeOptions{
		DirtyLimit:     d.opts.DirtyLimit,
		CommitInterval: d.opts.CommitInterval,
		Owner:          tree.Cred{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())},
		Changed:        d.changed,
	})
	if err != nil {
		return err
	}
	d.history = &repo.History{Repo: d.repo, Tree: d.tree, Touched: d.touched}
	d.api = api.Server{Handlers: d.handlers(), Logger: d.log}
	if err := d.api.Listen(d.repo.Path); err != nil {
		return err
	}
	d.house = newHousekeeper(d)
	if err := d.mount(ctx); err != nil {
		return errors.Join(err, d.api.Close())
	}
	go d.api.Serve()
	life, idle := context.WithCancel(context.WithoutCancel(ctx))
	d.idle = idle
	d.later.Go(func() { d.house.run(life) })
	return nil
}

func (d *daemon) mount(ctx context.Context) (err error) {
	d.server, err = mount.Mount(ctx, mount.Options{
		Tree:       d.tree,
		Sys:        d.repo.Sys,
		Dir:        d.info.Mountpoint,
		FsName:     d.repo.Path,
		AllowOther: d.opts.AllowOther,
		AllowSuid:  d.opts.AllowSuid,
		AllowDev:   d.opts.AllowDev,
		Logger:     d.log,
		Roots:      d.roots,
		Health:     d.repo.DB.Err,
		MakeRoom:   d.house.makeRoom,
	})
	if err != nil {
		return explain(err, d.opts.AllowOther)
	}
	d.live.Store(d.server)
	if all, err := Mounts(); err == nil {
		d.at, _ = MountAt(all, d.info.Mountpoint)
	}
	return nil
}

// changed tells the kernel of attributes that changed without its asking.
func (d *daemon) changed(ino tree.Ino) {
	if s := d.live.Load(); s != nil {
		s.Changed(ino)
	}
}

// serve waits for the end of the mount and lets signals bring it about.
func (d *daemon) serve(signals <-chan os.Signal) {
	failed := d.repo.DB.Failed()
	insist := false
	for {
		select {
		case <-d.server.Done():
			return
		case <-d.forced:
			return
		case <-failed:
			d.log.Error("the repository can only be read until the next mount", "err", d.repo.DB.Err())
			failed = nil
		case sig := <-signals:
			// The end must not keep other signals waiting: a mount that is in use
			// needs the second one.
			force := insist || sig != unix.SIGINT
			insist = true
			go func() {
				switch err := d.stop(force); {
				case err == nil:
				case d.opts.Busy != nil:
					d.opts.Busy(err)
				default:
					d.log.Warn("not unmounted", "signal", sig.String(), "err", err)
				}
			}()
		}
	}
}

// ErrLosses: not everything could be made durable at the end of a mount.
var ErrLosses = errors.New("the last changes may be lost")

// abortWait is how long an aborted connection may take to end.
const abortWait = 2 * time.Second

// stop unmounts. With force it does so although the mount is in use: what was
// acknowledged is made durable, the connection is cut, so that what is still
// open fails, and the name goes away. Errors: a [*BusyError]; when it says Gone
// the name is away nevertheless, and the daemon ends when the last who keeps the
// mount has gone.
func (d *daemon) stop(force bool) error {
	d.stopping.Lock()
	defer d.stopping.Unlock()
	busy, err := d.unmount()
	if busy == nil || err != nil {
		return err
	}
	if !force && !busy.Gone {
		return busy
	}
	err = d.sync(context.Background())
	if !force {
		if err != nil {
			return err
		}
		return repo.Hint(busy, "end these programs, or cut them off with 'cafs umount --force --repo %s %s'", d.info.Repo, d.info.Mountpoint)
	}
	if err != nil {
		d.log.Error("sync before the end", "err", err)
	}
	d.log.Warn("unmounting although in use", "err", busy)
	d.abort(d.at)
	return nil
}

// How long the kernel may take to end a mount whose name is gone before it is
// asked who keeps it, and until that is the answer although nobody is found: a
// namespace that no process is in.
const (
	goneWait  = time.Second
	goneLimit = 10 * time.Second
)

// unmount takes the name away, if it is there, and waits for the end of the
// mount, or tells who is in the way.
func (d *daemon) unmount() (*BusyError, error) {
	all, err := Mounts()
	if err != nil {
		return nil, err
	}
	limit := time.Now().Add(goneLimit)
	if at, ok := MountAt(all, d.info.Mountpoint); ok && (at.ID == d.at.ID || d.at.ID == 0) {
		ctx, cancel := context.WithTimeout(context.Background(), goneWait)
		defer cancel()
		switch err := d.server.Unmount(ctx, false); {
		case errors.Is(err, unix.EBUSY):
			return Busy(at), nil
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, err
		}
	} // else somebody took it away, and perhaps something else is there now
	for {
		select {
		case <-d.server.Done():
			return nil, nil
		case <-time.After(goneWait):
		}
		if busy := keepers(d.at); len(busy.Users)+len(busy.Below) > 0 || time.Now().After(limit) {
			return busy, nil
		}
	}
}

// abort cuts the connection and takes the name away. Where it cannot be cut the
// end of this process does it: the tree is closed by then, and requests that
// still come are answered with errors.
func (d *daemon) abort(at MountInfo) {
	cut(at)
	if all, err := Mounts(); err == nil {
		if now, ok := MountAt(all, at.Dir); ok && now.ID == at.ID {
			if err := Unmount(at.Dir, true); err != nil {
				d.log.Warn("detach", "err", err)
			}
		}
	}
	select {
	case <-d.server.Done():
	case <-time.After(abortWait):
		close(d.forced)
	}
}

// end makes everything durable and gives the repository up.
func (d *daemon) end() error {
	h := d.repo.Lock.Holder()
	h.State = repo.StateClosing
	// A record that cannot be written only makes others wait without knowing why.
	if err := d.repo.Lock.Record(h); err != nil {
		d.log.Warn("lock file", "err", err)
	}
	d.log.Info("unmounted, making the last changes durable")
	err := d.api.Close()
	d.idle()
	d.later.Wait()
	if d.sealAtEnd.Load() {
		d.autoCommit(context.Background(), "seal")
	}
	err = errors.Join(err, d.repo.Close())
	if err != nil {
		d.log.Error("closed with losses", "err", err)
		return fmt.Errorf("daemon: %w: %w", ErrLosses, err)
	}
	d.log.Info("closed")
	return nil
}

// explain adds remedies to what the kernel and fusermount3 refuse.
func explain(err error, allowOther bool) error {
	err = fmt.Errorf("daemon: %w: %w", ErrMountpoint, err)
	switch {
	case errors.Is(err, unix.EPERM) && os.Geteuid() == 0:
		return repo.Hint(err, "root lacks the right to mount here; in a container pass --cap-add SYS_ADMIN --device /dev/fuse")
	case allowOther && os.Geteuid() != 0:
		return repo.Hint(err, "--allow-other needs the line user_allow_other in /etc/fuse.conf")
	}
	return err
}
