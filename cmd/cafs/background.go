package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"cafs/mount/daemon"
	"cafs/mount/repo"
)

// readyFD is where the background process says that the mount answers, or why
// there is none.
const readyFD = 3

// word is what it says, once.
type word struct {
	Info    *daemon.Info `json:"info,omitempty"`
	Failure *failure     `json:"failure,omitempty"`
}

// launch starts the background process and returns when its mount answers. The
// process is a session of its own: a Ctrl-C meant for us does not reach it.
func launch(ctx context.Context, o mountOptions) (*mounted, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("background: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("background: %w", err)
	}
	defer r.Close()
	// Absolute paths, since the daemon must not keep our directory busy.
	if o.dir, err = filepath.Abs(o.dir); err == nil {
		o.repo, err = filepath.Abs(o.repo)
	}
	if err != nil {
		return nil, fmt.Errorf("background: %w", err)
	}
	cmd := exec.Command(self, o.args()...)
	cmd.Args[0] = "cafs" // whatever we are called (helper.go)
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr // until it is ready
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return nil, fmt.Errorf("background: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Signal(unix.SIGTERM) })
	defer stop()
	said, err := io.ReadAll(r)
	var answer word
	if err == nil && len(said) > 0 {
		err = json.Unmarshal(said, &answer)
	}
	if err == nil && answer.Info != nil {
		return &mounted{Info: *answer.Info, wait: cmd.Wait}, nil
	}
	ended := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case answer.Failure != nil:
		return nil, answer.Failure
	}
	return nil, fmt.Errorf("%w: %w", errSilent, errors.Join(err, ended))
}

// serveBackground is the background process.
func serveBackground(o mountOptions) error {
	pipe := os.NewFile(uintptr(o.readyFD), "ready")
	unix.CloseOnExec(o.readyFD)
	say := func(w word) {
		b, _ := json.Marshal(w)
		pipe.Write(b) // nobody may be listening any more, which is no reason to end
		pipe.Close()
	}
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	log := &lateLog{}
	opts := o.daemon(slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level})))
	ready := false
	opts.Ready = func(info daemon.Info) {
		if err := log.open(filepath.Join(info.Repo, repo.LogName)); err != nil {
			opts.Logger.Error("no log", "err", err)
		}
		opts.Logger.Info("mounted", "version", opts.Version, "pid", info.PID, "repo", info.Repo, "mountpoint", info.Mountpoint,
			"profile", info.Profile, "created", info.Created, "recovered", info.Recovered, "replaced", info.Replaced)
		ready = true
		say(word{Info: &info})
	}
	err := daemon.Run(context.Background(), opts)
	if !ready {
		say(word{Failure: newFailure(err)})
		return exitStatus(exitCode(err))
	}
	return err // to the log, which is stderr by now
}

// maxLog is the size of a log from which on the next mount starts a new one, in bytes.
const maxLog = 8 << 20

// lateLog keeps what is logged until there is a file for it.
type lateLog struct {
	mu   sync.Mutex
	held []byte
	f    *os.File
}

func (l *lateLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		l.held = append(l.held, p...)
		return len(p), nil
	}
	return l.f.Write(p)
}

// open turns the log, stdout and stderr to a file, to which a crash report of
// the runtime goes too; stdin becomes /dev/null.
func (l *lateLog) open(path string) error {
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		if err := os.Rename(path, path+".old"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err = f.Write(l.held)
	l.f, l.held = f, nil
	return err
}
