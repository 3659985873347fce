package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
	"cafs/mount/tree/history"
)

func diffCommand() *cli.Command {
	return &cli.Command{
		Name:      "diff",
		Usage:     "list what differs between two snapshots, or between one and the tree",
		ArgsUsage: "A [B] [PATH]",
		Description: "A and B are names of snapshots, CIDs of commits, or times: then it is the last commit by\n" +
			"then. Lines begin with + (added), - (removed), M (other content), m (other attributes) or\n" +
			"R (renamed). Equal parts are not looked at, however large.\n\n" +
			example("cafs diff monday", "cafs diff monday tuesday docs", "cafs diff 2026-11-30T12:00"),
		Flags: []cli.Flag{repoFlag(), &cli.BoolFlag{Name: "json", Usage: "one JSON object a line"},
			&cli.BoolFlag{Name: "tree", Usage: "compare A with the tree; the second argument is a path"}},
		Action: func(c *cli.Context) error {
			if c.NArg() < 1 || c.NArg() > 3 || c.Bool("tree") && c.NArg() > 2 {
				return usagef("diff takes one or two snapshots and a path; see 'cafs diff --help'")
			}
			return onRepo(c, func(r string) error { return runDiff(c, r) })
		},
	}
}

func runDiff(c *cli.Context, repository string) (err error) {
	arg := repo.DiffArg{A: c.Args().Get(0), B: c.Args().Get(1)}
	path := c.Args().Get(2)
	if c.Bool("tree") {
		arg.B, path = "", c.Args().Get(1)
	}
	if arg.Path, err = optionalPath(repository, path); err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	err = doIn(c.Context, repository, "diff", repo.OpDiff, arg, nil, func(js json.RawMessage) error {
		var batch []history.Difference
		if err := json.Unmarshal(js, &batch); err != nil {
			return err
		}
		for _, d := range batch {
			if c.Bool("json") {
				err = printJSON(out, d)
			} else {
				err = printDifference(out, d)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if e := out.Flush(); err == nil {
		err = e
	}
	return err
}

func printDifference(out *bufio.Writer, d history.Difference) error {
	letter := map[history.DiffKind]string{history.Added: "+", history.Removed: "-", history.Modified: "M", history.Mode: "m", history.Renamed: "R"}[d.Kind]
	name := escape(d.Path)
	if d.From != "" {
		name = escape(d.From) + " -> " + name
	}
	if d.Dir {
		name += "/"
	}
	_, err := fmt.Fprintln(out, letter, name)
	return err
}
