package main

import (
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
	"cafs/shard"
)

func storeCommand() *cli.Command {
	return &cli.Command{
		Name:        "store",
		Usage:       "work on the block store as a whole",
		Description: "The folder blocks of a repository, in the format of Kubo's flatfs.\n\n" + example("cafs store reshard next-to-last/3"),
		Subcommands: []*cli.Command{{
			Name:      "reshard",
			Usage:     "spread blocks over folders by another function",
			ArgsUsage: "FUNC",
			Description: "FUNC is prefix/N, suffix/N, next-to-last/N, r12, r122 or r133; Kubo opens a store of the\n" +
				"first three only, and uses next-to-last/2. Blocks are moved, not copied, and none is lost\n" +
				"however this is interrupted. It is then run again, with the same function or another one;\n" +
				"until it is through, the repository cannot be opened. It must not be mounted.\n\n" +
				example("cafs store reshard next-to-last/3"),
			Flags: []cli.Flag{repoFlag()},
			Action: func(c *cli.Context) error {
				if c.NArg() != 1 {
					return usagef("store reshard takes one sharding function; see 'cafs store reshard --help'")
				}
				fn, err := shard.Parse(c.Args().First())
				if err != nil {
					return usagef("%s", plain(err))
				}
				return onRepo(c, func(r string) error { return runReshard(c.Context, r, fn) })
			},
		}},
	}
}

func runReshard(ctx context.Context, path string, fn shard.Func) error {
	tty := isTTY(os.Stderr)
	var moved int64
	o := repo.Options{
		Holder: repo.Holder{Command: "cafs store reshard", State: repo.StateBusy},
		Wait:   repo.Wait{Busy: commandWait, Closing: commandWait, Tell: waiting},
	}
	err := repo.Reshard(ctx, path, fn, o, func(n int64) {
		if moved = n; tty && n%1000 == 0 {
			fmt.Fprintf(os.Stderr, "\rcafs: %d blocks moved ", n)
		}
	})
	if tty {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
	if err != nil {
		return err
	}
	notef("blocks are laid out by %s; %d were moved", fn, moved)
	return nil
}
