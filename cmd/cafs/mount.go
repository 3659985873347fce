package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"

	"cafs/linksys/unixfs"
	"cafs/mount/daemon"
	"cafs/mount/repo"
)

type mountOptions struct {
	repo           string
	profile        string
	dir            string
	command        []string // after "--"
	background     bool
	verbose        bool
	quiet          bool
	dirtyLimit     int64 // bytes
	commitInterval time.Duration
	allowOther     bool
	allowSuid      bool
	allowDev       bool
	autoCommit     time.Duration
	keep           *repo.Keep // nil: the default
	readyFD        int        // we are the background process: report there
}

func mountCommand() *cli.Command {
	return &cli.Command{
		Name:      "mount",
		Usage:     "mount a repository on a directory",
		ArgsUsage: "DIR [-- CMD ARG…]",
		Description: "Makes DIR and the repository when they are missing, and serves until DIR is\n" +
			"unmounted: by Ctrl-C, 'cafs umount DIR', 'umount DIR' or SIGTERM, all of which\n" +
			"lose nothing. With CMD, runs it while mounted and exits with its status.\n\n" +
			example("cafs mount ~/c", "cafs mount -b --repo /data/repo /mnt/c", "cafs mount ~/c -- make -C ~/c/src"),
		Flags: append([]cli.Flag{
			repoFlag(),
			&cli.BoolFlag{Name: "background", Aliases: []string{"b"}, Usage: "return as soon as the mount answers"},
			&cli.StringFlag{Name: "profile", Usage: "how contents get their CIDs, in a repository that is made now", DefaultText: repo.DefaultProfile},
			&cli.StringFlag{Name: "dirty-limit", Usage: "memory for contents that are not on disk yet", DefaultText: "256MiB"},
			&cli.DurationFlag{Name: "commit-interval", Usage: "how often contents become durable without fsync", DefaultText: "5s"},
			&cli.DurationFlag{Name: "auto-commit", Usage: "how often a commit is made if anything changed; 0: never", Value: daemon.AutoCommit},
			&cli.BoolFlag{Name: "allow-other", Usage: "let other users in; permissions are checked"},
			&cli.BoolFlag{Name: "allow-suid", Usage: "honour set-user-ID bits (root only)"},
			&cli.BoolFlag{Name: "allow-dev", Usage: "honour device files (root only)"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log more"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "say nothing when all is well"},
			&cli.IntFlag{Name: "ready-fd", Hidden: true, Value: -1},
		}, keepFlags()...),
		Action: func(c *cli.Context) error {
			o, err := mountFlags(c)
			if err != nil {
				return err
			}
			return runMount(c.Context, o)
		},
	}
}

func mountFlags(c *cli.Context) (o mountOptions, err error) {
	args := c.Args().Slice()
	if i := slices.Index(args, "--"); i >= 0 {
		args, o.command = args[:i], args[i+1:]
		if len(o.command) == 0 {
			return o, usagef("there is no command after '--'")
		}
	}
	if len(args) != 1 {
		return o, usagef("mount takes one directory, and a command only after '--'; see 'cafs mount --help'")
	}
	o.dir = args[0]
	o.profile = c.String("profile")
	o.background, o.verbose, o.quiet = c.Bool("background"), c.Bool("verbose"), c.Bool("quiet")
	o.allowOther, o.allowSuid, o.allowDev = c.Bool("allow-other"), c.Bool("allow-suid"), c.Bool("allow-dev")
	o.readyFD = c.Int("ready-fd")
	o.commitInterval = c.Duration("commit-interval")
	if o.commitInterval < 0 || c.IsSet("commit-interval") && o.commitInterval == 0 {
		return o, usagef("--commit-interval must be more than 0")
	}
	if o.autoCommit = c.Duration("auto-commit"); o.autoCommit < 0 {
		return o, usagef("--auto-commit must not be negative")
	}
	if s := c.String("dirty-limit"); s != "" {
		n, err := humanize.ParseBytes(s)
		if err != nil || n < minDirty || n > maxDirty {
			return o, usagef("--dirty-limit %q is not a size from 16MiB to 64GiB", s)
		}
		o.dirtyLimit = int64(n)
	}
	if (o.allowSuid || o.allowDev) && os.Geteuid() != 0 {
		return o, usagef("--allow-suid and --allow-dev are for root")
	}
	if o.keep, err = keepOf(c); err != nil {
		return o, err
	}
	if err := checkProfile(o.profile); err != nil {
		return o, err
	}
	if o.background && o.command != nil {
		return o, usagef("--background and a command exclude each other")
	}
	o.repo, err = repoPath(c)
	return o, err
}

const (
	minDirty = 16 << 20 // the largest write and a few chunks must fit
	maxDirty = 64 << 30
)

// args are the flags that make the background process do what o says.
func (o mountOptions) args() []string {
	args := []string{"mount", "--repo", o.repo, "--auto-commit", o.autoCommit.String()}
	if o.profile != "" {
		args = append(args, "--profile", o.profile)
	}
	if o.dirtyLimit > 0 {
		args = append(args, "--dirty-limit", fmt.Sprint(o.dirtyLimit))
	}
	if o.commitInterval > 0 {
		args = append(args, "--commit-interval", o.commitInterval.String())
	}
	if k := o.keep; k != nil {
		args = append(args, "--keep-last", fmt.Sprint(k.Last), "--keep-hourly", fmt.Sprint(k.Hourly),
			"--keep-daily", fmt.Sprint(k.Daily), "--keep-weekly", fmt.Sprint(k.Weekly))
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"--allow-other", o.allowOther}, {"--allow-suid", o.allowSuid}, {"--allow-dev", o.allowDev}, {"--verbose", o.verbose}} {
		if f.set {
			args = append(args, f.name)
		}
	}
	return append(args, "--ready-fd", fmt.Sprint(readyFD), "--", o.dir)
}

func runMount(ctx context.Context, o mountOptions) error {
	switch {
	case o.readyFD >= 0:
		return serveBackground(o)
	case o.command != nil:
		return runCommand(ctx, o)
	case o.background:
		m, err := launch(ctx, o)
		if err != nil {
			return err
		}
		m.announce(o, "'cafs umount "+o.dir+"'")
		return nil
	}
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	opts := o.daemon(slog.New(newMessages(os.Stderr, level)))
	opts.Ready = func(info daemon.Info) {
		(&mounted{Info: info}).announce(o, "Ctrl-C, or 'cafs umount "+o.dir+"'")
	}
	opts.Busy = func(err error) {
		report(os.Stderr, err)
		notef("still mounted; another Ctrl-C unmounts nevertheless")
	}
	return daemon.Run(context.WithoutCancel(ctx), opts)
}

// daemon is what the daemon needs of the options.
func (o mountOptions) daemon(log *slog.Logger) daemon.Options {
	return daemon.Options{
		Repo:           o.repo,
		Dir:            o.dir,
		Create:         &repo.Config{Profile: o.profile},
		DirtyLimit:     o.dirtyLimit,
		CommitInterval: o.commitInterval,
		AllowOther:     o.allowOther,
		AllowSuid:      o.allowSuid,
		AllowDev:       o.allowDev,
		AutoCommit:     o.autoCommit,
		Keep:           *cmp.Or(o.keep, &repo.DefaultKeep),
		Version:        versionString(),
		Logger:         log,
		Waiting:        waiting,
	}
}

// mounted is a mount that answers.
type mounted struct {
	daemon.Info
	wait func() error // for the background process to end
}

// announce says what has been mounted, and how it ends.
func (m *mounted) announce(o mountOptions, how string) {
	if m.Replaced {
		notef("removed the dead mount that was left at %s", m.Mountpoint)
	}
	if m.Recovered {
		notef("the last mount did not end properly; the tree is as it was at its last commit")
	}
	if o.quiet {
		return
	}
	made := ""
	if m.Created {
		made = " (new)"
	} else if o.profile != "" && o.profile != m.Profile {
		notef("the repository keeps its profile %s; --profile is for new ones", m.Profile)
	}
	notef("mounted at %s, pid %d", m.Mountpoint, m.PID)
	notef("repository %s%s, profile %s", m.Repo, made, m.Profile)
	notef("unmount with %s", how)
}

// repoFlag is --repo, which most commands have.
func repoFlag() cli.Flag {
	return &cli.StringFlag{Name: "repo", Aliases: []string{"R"}, Usage: "the repository `FOLDER`", EnvVars: []string{"CAFS_REPO"}, DefaultText: "~/.cafs"}
}

// checkProfile refuses what is no profile.
func checkProfile(text string) error {
	if text == "" {
		return nil
	}
	if _, err := unixfs.ParseProfile(text); err != nil {
		return usagef("--profile: %s", plain(err))
	}
	return nil
}

// repoPath is the repository that --repo, $CAFS_REPO or the default names.
func repoPath(c *cli.Context) (string, error) {
	if p := c.String("repo"); p != "" {
		return p, nil
	}
	if c.IsSet("repo") && !envSet("CAFS_REPO") {
		return "", usagef("--repo is empty")
	}
	return repo.DefaultPath()
}

func envSet(name string) bool { _, ok := os.LookupEnv(name); return ok }

// errSilent is the error of a background process that ended without a word.
var errSilent = errors.New("the background process ended without saying why")

// shellQuote makes an argument fit for a command line in a message.
func shellQuote(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./~:+@%,=", r)
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
