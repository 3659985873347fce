package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
)

func restoreCommand() *cli.Command {
	return &cli.Command{
		Name:      "restore",
		Usage:     "bring back what a snapshot has, with all attributes",
		ArgsUsage: "COMMIT[:PATH] [TO]",
		Description: "COMMIT is a name, a CID, or a time: then it is the last commit by then. Without TO the\n" +
			"thing comes back where it was, and replaces what is there now; 'cafs undo' takes that back.\n" +
			"Nothing is copied: it takes as long for a large directory as for a small one.\n\n" +
			example("cafs restore monday:docs", "cafs restore 2026-11-30T12:00:docs/a.txt ~/c/a-old.txt", "cafs restore monday"),
		Flags: []cli.Flag{repoFlag()},
		Action: func(c *cli.Context) error {
			if c.NArg() < 1 || c.NArg() > 2 {
				return usagef("restore takes a snapshot and a place for it; see 'cafs restore --help'")
			}
			return onRepo(c, func(r string) (err error) {
				arg := repo.RestoreArg{}
				arg.Commit, arg.From = splitCommit(c.Args().Get(0))
				if arg.From, err = optionalPath(r, arg.From); err != nil {
					return err
				}
				arg.To = arg.From
				if to := c.Args().Get(1); to != "" {
					if arg.To, err = treePath(r, to); err != nil {
						return err
					}
				}
				return doIn(c.Context, r, "restore", repo.OpRestore, arg, nil, nil)
			})
		},
	}
}

func undoCommand() *cli.Command {
	return &cli.Command{
		Name:        "undo",
		Usage:       "take back the last restore",
		Description: "Undone twice it is there again.\n\n" + example("cafs restore monday:docs && cafs undo"),
		Flags:       []cli.Flag{repoFlag()},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("undo takes no arguments")
			}
			return onRepo(c, func(r string) error {
				var path string
				if err := doIn(c.Context, r, "undo", repo.OpUndo, nil, &path, nil); err != nil {
					return err
				}
				_, err := fmt.Println(escape(path))
				return err
			})
		},
	}
}
