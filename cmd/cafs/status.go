package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"cafs/mount/api"
	"cafs/mount/daemon"
	"cafs/mount/repo"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "show a mount and what is not durable yet",
		ArgsUsage: "[DIR]",
		Description: "Shows the mount that DIR is on, or that of the repository.\n\n" +
			example("cafs status ~/c", "cafs status --json | jq .dirty_bytes"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.BoolFlag{Name: "json", Usage: "one JSON object"},
		},
		Action: func(c *cli.Context) error {
			r, err := repoOrMount(c)
			if err != nil {
				return err
			}
			return runStatus(c.Context, r, c.Bool("json"))
		},
	}
}

func syncCommand() *cli.Command {
	return &cli.Command{
		Name:      "sync",
		Usage:     "make all that was written durable",
		ArgsUsage: "[DIR]",
		Description: "sync(1) and syncfs(2) do not reach a FUSE file system; this does.\n\n" +
			example("cp -a photos ~/c && cafs sync ~/c"),
		Flags: []cli.Flag{repoFlag()},
		Action: func(c *cli.Context) error {
			r, err := repoOrMount(c)
			if err != nil {
				return err
			}
			return runSync(c.Context, r)
		},
	}
}

// repoOrMount is the repository of the mount that the one argument is on, or
// without an argument the chosen one.
func repoOrMount(c *cli.Context) (string, error) {
	switch c.NArg() {
	case 0:
		return repoPath(c)
	case 1:
		at, err := mountOf(c.Args().First())
		return at.Source, err
	}
	return "", usagef("%s takes at most one directory; see 'cafs %s --help'", c.Command.Name, c.Command.Name)
}

// mountOf finds the cafs mount that a path is on.
func mountOf(path string) (daemon.MountInfo, error) {
	real, _, err := daemon.ResolveMountpoint(path)
	if err != nil {
		return daemon.MountInfo{}, err
	}
	all, err := daemon.Mounts()
	if err != nil {
		return daemon.MountInfo{}, err
	}
	at, ok := daemon.MountOf(all, real)
	if !ok {
		return at, fmt.Errorf("%s: %w", real, daemon.ErrNotMounted)
	}
	return at, nil
}

// dial connects to a mount's daemon.
func dial(ctx context.Context, repository string) (*api.Client, error) {
	c, err := api.Dial(ctx, repository)
	if errors.Is(err, api.ErrNoDaemon) {
		if h, held, e := repo.LockedBy(repository); e == nil && held {
			return nil, &repo.LockedError{Path: repository, Holder: h} // closing, or a command
		}
	}
	return c, err
}

func runSync(ctx context.Context, repository string) error {
	c, err := dial(ctx, repository)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Sync(ctx)
}

func runStatus(ctx context.Context, repository string, asJSON bool) error {
	var s api.Status
	// A daemon is asked before anything is read: it answers over a dead disk.
	if c, err := api.Dial(ctx, repository); err == nil {
		defer c.Close()
		if s, err = c.Status(ctx); err != nil {
			return err
		}
	} else if !errors.Is(err, api.ErrNoDaemon) {
		return err
	} else {
		path, err := repo.Resolve(repository)
		if err != nil {
			return err
		}
		cfg, err := repo.ReadConfig(path)
		if err != nil {
			return err
		}
		s = api.Status{Repo: path, Profile: cfg.Profile, Shard: cfg.Shard}
	}
	if asJSON {
		return printJSON(os.Stdout, s)
	}
	if s.PID == 0 {
		return printIdle(os.Stdout, s)
	}
	printStatus(os.Stdout, s)
	return nil
}

// printIdle describes a repository that is not mounted.
func printIdle(w io.Writer, s api.Status) error {
	state := "not mounted"
	switch h, held, err := repo.LockedBy(s.Repo); {
	case err != nil:
		return err
	case held:
		state = (&repo.LockedError{Path: s.Repo, Holder: h}).Error()
	case h.PID != 0:
		state = fmt.Sprintf("not mounted; pid %d (%s) ended without closing it, the next mount recovers", h.PID, h.Command)
	}
	fmt.Fprintf(w, "%s\nrepository  %s\nprofile     %s\n", escape(state), escape(s.Repo), s.Profile)
	return nil
}

func printStatus(w io.Writer, s api.Status) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-12s%s\n", name, escape(fmt.Sprintf(format, args...)))
	}
	row("mounted at", "%s", s.Mountpoint)
	row("repository", "%s", s.Repo)
	row("profile", "%s", s.Profile)
	row("daemon", "pid %d, version %s, up %s", s.PID, s.Version, time.Since(s.Since).Round(time.Second))
	row("in memory", "%s not yet on disk, in %d files; %d inodes", size(s.DirtyBytes+s.PendingBytes), s.DirtyFiles, s.Inodes)
	row("staged", "%s on disk and not yet blocks; %d files wait for that", size(s.StagedBytes), s.UnsealedFiles)
	row("free", "%s of %s", size(s.FreeBytes), size(s.TotalBytes))
	if !s.Collected.IsZero() {
		row("history", "%s that only snapshots and automatic commits hold, as of %s", size(s.HistoryBytes), s.Collected.Local().Format(time.DateTime))
	}
	if s.Failed != "" {
		row("READ-ONLY", "%s", s.Failed)
	}
}
