package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"cafs/mount/api"
	"cafs/mount/repo"
)

// Exit codes of a command that could not be run, as shells have them.
const (
	exitCannotRun    = 126
	exitNoSuchFile   = 127
	mountpointEnvVar = "CAFS_MOUNTPOINT"
)

// runCommand mounts, runs a command, unmounts and returns the command's status.
// The mount is served by another process: one that starts programs must not
// wait for itself while the kernel reads them.
func runCommand(ctx context.Context, o mountOptions) error {
	m, err := launch(ctx, o)
	if err != nil {
		return err
	}
	status := runChild(o.command, m.Mountpoint)
	if err := endMount(m); err != nil {
		if status == nil {
			return err
		}
		report(os.Stderr, err)
	}
	return status
}

// runChild runs a command; its status is an exitStatus. A terminal's signals
// reach it without us, others are passed on.
func runChild(command []string, mountpoint string) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), mountpointEnvVar+"="+mountpoint)
	if err := cmd.Start(); err != nil {
		notef("run %s: %v", command[0], err)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			return exitStatus(exitNoSuchFile)
		}
		return exitStatus(exitCannotRun)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			if sig == unix.SIGTERM || sig == unix.SIGHUP {
				cmd.Process.Signal(sig)
			}
		case err := <-ended:
			return childStatus(err)
		}
	}
}

func childStatus(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitStatus(exitSignal + int(ws.Signal()))
	}
	return exitStatus(exit.ExitCode())
}

// endMount unmounts and waits until the repository is free. A program that the
// command left behind does not keep it mounted.
func endMount(m *mounted) error {
	ctx := context.Background()
	holder, held, err := repo.LockedBy(m.Repo)
	if err != nil || !held || holder.PID != m.PID {
		return errors.Join(err, background(m.wait())) // unmounted by somebody else
	}
	c, err := api.Dial(ctx, m.Repo)
	if err == nil {
		defer c.Close()
		if err = c.Stop(ctx, api.StopArg{}); errors.Is(err, unix.EBUSY) {
			notef("%s", plain(err))
			notef("unmounting nevertheless")
			err = c.Stop(ctx, api.StopArg{Detach: true})
		}
	}
	if err != nil && !errors.Is(err, api.ErrNoDaemon) {
		return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
	}
	if err := waitFree(ctx, m.Repo, holder); err != nil {
		return err
	}
	return background(m.wait())
}

// background says whose end an error tells of.
func background(err error) error {
	if err != nil {
		return fmt.Errorf("the background process ended badly: %w", err)
	}
	return nil
}
