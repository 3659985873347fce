package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
)

func logCommand() *cli.Command {
	return &cli.Command{
		Name:        "log",
		Usage:       "list the commits that changed a path, the newest first",
		ArgsUsage:   "[PATH]",
		Description: "PATH is one on the mount, or begins at the root of the tree.\n\n" + example("cafs log ~/c/thesis.tex", "cafs log --json docs"),
		Flags:       []cli.Flag{repoFlag(), &cli.BoolFlag{Name: "json", Usage: "one JSON object a line"}},
		Action: func(c *cli.Context) error {
			if c.NArg() > 1 {
				return usagef("log takes at most one path")
			}
			return onRepo(c, func(r string) error { return runLog(c.Context, r, c.Args().First(), c.Bool("json")) })
		},
	}
}

func runLog(ctx context.Context, repository, path string, asJSON bool) error {
	path, err := optionalPath(repository, path)
	if err != nil {
		return err
	}
	var all []repo.LogEntry
	if err := doIn(ctx, repository, "log", repo.OpLog, repo.PathArg{Path: path}, &all, nil); err != nil {
		return err
	}
	for _, l := range all {
		if asJSON {
			err = printJSON(os.Stdout, l)
		} else {
			name, what := l.Name, size(l.Size)
			if name == "" {
				name = "(" + l.Reason + ")"
			}
			if l.Content == "" {
				what = "gone"
			}
			if l.Message != "" {
				name += "  " + l.Message
			}
			_, err = fmt.Printf("%s %10s %s  %s\n", l.Time.Local().Format(time.DateTime), what, l.Cid, escape(name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// optionalPath is treePath of what may be left out.
func optionalPath(repository, path string) (string, error) {
	if path == "" {
		return "/", nil
	}
	return treePath(repository, path)
}
