package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
)

func cpCommand() *cli.Command {
	return &cli.Command{
		Name:      "cp",
		Usage:     "put content into the tree by its CID, without copying it",
		ArgsUsage: "CID[/path] PATH",
		Description: "It takes as long for a large directory as for a small one. The files are yours, with\n" +
			"permissions 644 and 755 unless the content says otherwise.\n\n" +
			example("cafs cp bafybeif7ztnhq65lumvvtr4ekcwd2ifwgm3awq4zfr3srh462rwyinlb4y ~/c/copy"),
		Flags: []cli.Flag{repoFlag(), &cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "replace what is at PATH"}},
		Action: func(c *cli.Context) error {
			if c.NArg() != 2 {
				return usagef("cp takes a CID and a path; see 'cafs cp --help'")
			}
			return onRepo(c, func(r string) error { return runCp(c, r) })
		},
	}
}

func runCp(c *cli.Context, repository string) (err error) {
	arg := repo.AdoptArg{Replace: c.Bool("force"), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
	if arg.Path, err = treePath(repository, c.Args().Get(1)); err != nil {
		return err
	}
	w, err := openWorks(c.Context, repository, "cp")
	if err != nil {
		return err
	}
	defer w.closing(&err)
	if arg.Cid, err = w.resolve(c.Context, c.Args().First()); err != nil {
		return err
	}
	return w.do(c.Context, repo.OpAdopt, arg, nil, nil)
}
