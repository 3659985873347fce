package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
	"cafs/mount/tree"
)

func snapshotCommand() *cli.Command {
	json := &cli.BoolFlag{Name: "json", Usage: "one JSON object a line"}
	return &cli.Command{
		Name:  "snapshot",
		Usage: "keep the tree as it is now; list and remove such snapshots",
		Description: "A snapshot is one moment of the tree with all attributes, taken while programs go on\n" +
			"writing; it costs what changed. In a mount it is at DIR/.cafs/snapshots/NAME.\n\n" +
			example("cafs snapshot create before-upgrade", "cafs snapshot ls", "cafs restore before-upgrade:etc etc"),
		Subcommands: []*cli.Command{
			{
				Name:        "create",
				Usage:       "take a snapshot and print its name",
				Description: example("cafs snapshot create before-upgrade -m 'before the upgrade'"),
				ArgsUsage:   "[NAME]",
				Flags:       []cli.Flag{repoFlag(), json, &cli.StringFlag{Name: "message", Aliases: []string{"m"}, Usage: "what it is for"}},
				Action: func(c *cli.Context) error {
					if c.NArg() > 1 {
						return usagef("snapshot create takes at most one name")
					}
					return onRepo(c, func(r string) error {
						return runSnapshotCreate(c.Context, r, repo.SnapshotArg{Name: c.Args().First(), Message: c.String("message")}, c.Bool("json"))
					})
				},
			},
			{
				Name:        "ls",
				Usage:       "list snapshots and automatic commits, the oldest first",
				Description: example("cafs snapshot ls --json"),
				Flags:       []cli.Flag{repoFlag(), json},
				Action: func(c *cli.Context) error {
					return onRepo(c, func(r string) error { return runSnapshotLs(c.Context, r, c.Bool("json")) })
				},
			},
			{
				Name:        "rm",
				Usage:       "give up snapshots; 'cafs gc' then frees what only they held",
				Description: example("cafs snapshot rm before-upgrade"),
				ArgsUsage:   "NAME|CID…",
				Flags:       []cli.Flag{repoFlag()},
				Action: func(c *cli.Context) error {
					if c.NArg() == 0 {
						return usagef("snapshot rm takes one or more names")
					}
					return onRepo(c, func(r string) error {
						return doIn(c.Context, r, "snapshot rm", repo.OpSnapshotRm, repo.NamesArg{Names: c.Args().Slice()}, nil, nil)
					})
				},
			},
		},
	}
}

// onRepo runs f with the chosen repository.
func onRepo(c *cli.Context, f func(repository string) error) error {
	r, err := repoPath(c)
	if err != nil {
		return err
	}
	return f(r)
}

func runSnapshotCreate(ctx context.Context, repository string, arg repo.SnapshotArg, asJSON bool) error {
	var k tree.Kept
	if err := doIn(ctx, repository, "snapshot create", repo.OpSnapshot, arg, &k, nil); err != nil {
		return err
	}
	if asJSON {
		return printJSON(os.Stdout, k)
	}
	_, err := fmt.Println(escape(k.Name), k.Cid)
	return err
}

func runSnapshotLs(ctx context.Context, repository string, asJSON bool) error {
	var all []tree.Kept
	if err := doIn(ctx, repository, "snapshot ls", repo.OpSnapshots, nil, &all, nil); err != nil {
		return err
	}
	for _, k := range all {
		var err error
		if asJSON {
			err = printJSON(os.Stdout, k)
		} else {
			err = printKept(k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func printKept(k tree.Kept) error {
	name := k.Name
	if name == "" {
		name = "(" + k.Reason + ")"
	}
	if k.Message != "" {
		name += "  " + k.Message
	}
	_, err := fmt.Println(k.Time.Local().Format(time.DateTime), k.Cid, escape(name))
	return err
}
