package main

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"cafs/mount/api"
)

var profileKinds = []string{"cpu", "heap", "allocs", "mutex", "block", "goroutine"}

func profileCommand() *cli.Command {
	return &cli.Command{
		Name:      "profile",
		Usage:     "profile a running mount",
		ArgsUsage: "KIND [DIR]",
		Description: "Writes a profile of the daemon, for 'go tool pprof', to standard output.\n" +
			"KIND is one of " + strings.Join(profileKinds, ", ") + ". It is a file for developers and may\n" +
			"change; it holds names of functions and no contents.\n\n" +
			example("cafs profile cpu ~/c > cpu.pprof && go tool pprof -top cpu.pprof"),
		Hidden: true,
		Flags: []cli.Flag{
			repoFlag(),
			&cli.DurationFlag{Name: "for", Usage: "how long cpu, mutex and block are recorded", Value: 10 * time.Second},
		},
		Action: func(c *cli.Context) error {
			kind := c.Args().First()
			if !slices.Contains(profileKinds, kind) {
				return usagef("profile needs one of %s", strings.Join(profileKinds, ", "))
			}
			var repository string
			var err error
			switch c.NArg() {
			case 1:
				repository, err = repoPath(c)
			case 2:
				at, e := mountOf(c.Args().Get(1))
				repository, err = at.Source, e
			default:
				return usagef("profile takes at most one directory; see 'cafs profile --help'")
			}
			if err != nil {
				return err
			}
			return runProfile(c.Context, repository, api.ProfileArg{Kind: kind, For: c.Duration("for")})
		},
	}
}

func runProfile(ctx context.Context, repository string, arg api.ProfileArg) error {
	c, err := dial(ctx, repository)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := c.Profile(ctx, arg)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(p)
	return err
}
