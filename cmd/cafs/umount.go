package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"cafs/mount/api"
	"cafs/mount/daemon"
	"cafs/mount/repo"
)

type umountOptions struct {
	repo  string
	dir   string
	lazy  bool
	force bool
	seal  bool
}

func umountCommand() *cli.Command {
	return &cli.Command{
		Name:      "umount",
		Aliases:   []string{"unmount"},
		Usage:     "unmount, and wait until everything is durable",
		ArgsUsage: "DIR",
		Description: "Returns when all that was written is on disk and the repository is free. When\n" +
			"DIR is in use, nothing changes and the programs that use it are named. When\n" +
			"another mount namespace (a container, say) has the mount too, it goes on there,\n" +
			"and a process of it is named; --force ends it.\n\n" +
			example("cafs umount ~/c"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "unmount although in use; what is open there fails from now on"},
			&cli.BoolFlag{Name: "seal", Usage: "commit the tree too, if it changed since the last commit"},
			&cli.BoolFlag{Name: "lazy", Aliases: []string{"l"}, Usage: "take DIR away now, and end the mount when the last file there is closed"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usagef("umount takes one directory; see 'cafs umount --help'")
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			return runUmount(c.Context, umountOptions{r, c.Args().First(), c.Bool("lazy"), c.Bool("force"), c.Bool("seal")})
		},
	}
}

func runUmount(ctx context.Context, o umountOptions) error {
	path, _, err := daemon.ResolveMountpoint(o.dir)
	if err != nil {
		return fmt.Errorf("umount %w", err)
	}
	all, err := daemon.Mounts()
	if err != nil {
		return err
	}
	at, ok := daemon.MountAt(all, path)
	if !ok || at.Type != daemon.FSType {
		return notMounted(ctx, o, all, path)
	}
	holder, held, err := repo.LockedBy(at.Source)
	if err != nil {
		return err
	}
	own := held && holder.Mountpoint == path // else it is dead, or a bind mount of one elsewhere
	if (o.force || o.seal) && own {
		err = stopDaemon(ctx, at.Source, api.StopArg{Detach: o.force, Seal: o.seal})
	} else {
		err = daemon.Unmount(path, o.lazy || o.force || !held)
	}
	switch {
	case err != nil || o.lazy:
		return err
	case !held:
		notef("removed the mount at %s, which no daemon served any more", path)
		return nil
	case !own:
		notef("the repository %s stays mounted at %s", at.Source, holder.Mountpoint)
		return nil
	}
	return waitFree(ctx, at.Source, holder)
}

func stopDaemon(ctx context.Context, repository string, arg api.StopArg) error {
	c, err := api.Dial(ctx, repository)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Stop(ctx, arg)
}

// notMounted is for a directory without a mount of ours: perhaps somebody else
// unmounted it and the daemon is still writing, which is waited for, or goes on
// serving it elsewhere.
func notMounted(ctx context.Context, o umountOptions, all []daemon.MountInfo, path string) error {
	if r, err := repo.Resolve(o.repo); err == nil {
		if h, held, err := repo.LockedBy(r); err == nil && held && h.Mountpoint == path {
			if h.State != repo.StateClosing && (o.force || o.seal) {
				if err := stopDaemon(ctx, r, api.StopArg{Detach: o.force, Seal: o.seal}); err != nil {
					return err
				}
			}
			return waitFree(ctx, r, h)
		}
	}
	err := fmt.Errorf("%s: %w", path, daemon.ErrNotMounted)
	if at, ok := daemon.MountOf(all, filepath.Dir(path)); ok {
		return repo.Hint(err, "it lies on the one mounted at %s", at.Dir)
	}
	return err
}

// serves tells whether h holds the repository and its mount has not ended.
func serves(repository string, h repo.Holder) bool {
	now, held, err := repo.LockedBy(repository)
	return err == nil && held && now.PID == h.PID && now.State != repo.StateClosing
}

// patience is how long waiting goes without a word.
const patience = time.Second

// exitPatience bounds the wait for a process that has nothing left to do but end.
const exitPatience = 5 * time.Second

// waitFree waits until a daemon has made everything durable and is gone. Until
// its process has ended it has files of the repository open, its log at least,
// and the disk that they are on could not be unmounted. When it is not about to
// go, since another mount namespace has the mount too, the error matches EBUSY.
func waitFree(ctx context.Context, repository string, h repo.Holder) error {
	process, noProcess := unix.PidfdOpen(h.PID, 0)
	if noProcess == nil {
		defer unix.Close(process)
	}
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := repo.WaitFree(soon, repository, h)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		if serves(repository, h) {
			// The daemon knows who is in the way, if its end does not come meanwhile.
			if err := stopDaemon(ctx, repository, api.StopArg{}); err != nil && serves(repository, h) {
				return err
			}
		}
		notef("unmounted; pid %d is writing out the last changes", h.PID)
		err = repo.WaitFree(ctx, repository, h)
	}
	if noProcess == nil {
		unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, int(exitPatience/time.Millisecond))
	}
	if errors.Is(err, repo.ErrUnclean) {
		err = repo.Hint(fmt.Errorf("the last changes may be lost: %w", err), "the log %s says why", filepath.Join(repository, repo.LogName))
	}
	return err
}
