package main

import (
	"time"

	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
)

func recoverCommand() *cli.Command {
	return &cli.Command{
		Name:  "recover",
		Usage: "make the tree of the last commit anew when the index is lost",
		Description: "For a repository that cannot be opened because files of its index are missing or\n" +
			"damaged. What was changed since the last commit is lost, and so are pins; the old files are\n" +
			"moved aside. A copy of the index folder, if there is one, is better.\n\n" +
			example("cafs recover --repo /data/repo"),
		Flags: []cli.Flag{repoFlag()},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("recover takes no arguments, only --repo; see 'cafs recover --help'")
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			done, err := repo.Recover(c.Context, r, repo.Options{Holder: repo.Holder{Command: "recover"}})
			if done.Lost != "" {
				notef("the old index is in %s", done.Lost)
			}
			for _, k := range done.Damaged {
				notef("commit %s of %s lacks blocks and is given up", k.Cid, k.Time.Local().Format(time.DateTime))
			}
			if err != nil {
				return err
			}
			notef("the tree is that of commit %s, made %s (%s); %d commits are kept", done.Commit.Cid,
				done.Commit.Time.Local().Format(time.DateTime), done.Commit.Reason, done.Kept)
			return nil
		},
	}
}
