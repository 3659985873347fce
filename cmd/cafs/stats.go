package main

import (
	"context"
	"fmt"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
	"cafs/mount/tree"
)

func statsCommand() *cli.Command {
	return &cli.Command{
		Name:      "stats",
		Usage:     "count what is at a path and what it takes",
		ArgsUsage: "[PATH]",
		Description: "PATH is one on the mount, or begins at the root of the tree. Equal blocks are counted once;\n" +
			"what only PATH holds is what removing it and 'cafs gc' give back. It looks at every block.\n\n" +
			example("cafs stats", "cafs stats ~/c/photos", "cafs stats --json photos | jq .only_here_bytes"),
		Flags: []cli.Flag{repoFlag(), &cli.BoolFlag{Name: "json", Usage: "one JSON object"}},
		Action: func(c *cli.Context) error {
			if c.NArg() > 1 {
				return usagef("stats takes at most one path")
			}
			return onRepo(c, func(r string) error { return runStats(c.Context, r, c.Args().First(), c.Bool("json")) })
		},
	}
}

func runStats(ctx context.Context, repository, path string, asJSON bool) error {
	path, err := optionalPath(repository, path)
	if err != nil {
		return err
	}
	var a tree.Account
	if err := doIn(ctx, repository, "stats", repo.OpStats, repo.PathArg{Path: path}, &a, nil); err != nil {
		return err
	}
	if asJSON {
		return printJSON(os.Stdout, struct {
			Path string `json:"path"`
			tree.Account
		}{path, a})
	}
	row := func(name, format string, args ...any) {
		if err == nil {
			_, err = fmt.Printf("%-10s%s\n", name, escape(fmt.Sprintf(format, args...)))
		}
	}
	count := func(n int64, one, many string) string {
		if n == 1 {
			return "1 " + one
		}
		return humanize.Comma(n) + " " + many
	}
	row("path", "%s", path)
	row("inodes", "%s, %s, %s, %s", count(a.Files, "file", "files"), count(a.Dirs, "directory", "directories"),
		count(a.Symlinks, "symbolic link", "symbolic links"), count(a.Others, "other", "others"))
	row("logical", "%s in files, of which %s are holes", size(a.Logical), size(a.Logical-a.Data))
	row("unique", "%s in %s, %s of it not in blocks yet", size(a.Unique), count(a.Blocks, "block", "blocks"), size(a.Unsealed))
	row("stored", "%s on disk", size(a.Stored))
	row("dedup", "%.2f", a.Ratio)
	row("only here", "%s that nothing else holds; %s more that only history holds too", size(a.Only), size(a.History))
	return err
}
