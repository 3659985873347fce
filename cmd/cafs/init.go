package main

import (
	"math"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
	"cafs/shard"
)

func initCommand() *cli.Command {
	return &cli.Command{
		Name:  "init",
		Usage: "make a repository with settings of your own",
		Description: "'cafs mount' makes one with the defaults when it is missing. A profile is a name,\n" +
			"unixfs-v1-2025 or unixfs-v0-2015, and may be followed by single settings.\n\n" +
			example("cafs init", "cafs init --repo /data/repo --profile unixfs-v1-2025,chunker=size-262144 --shard next-to-last/3"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.StringFlag{Name: "profile", Usage: "how contents get their CIDs", Value: repo.DefaultProfile},
			&cli.StringFlag{Name: "shard", Usage: "how blocks are spread over folders: prefix/N, suffix/N, next-to-last/N, r12, r122, r133", DefaultText: "next-to-last/2"},
			&cli.StringFlag{Name: "capacity", Usage: "the most that blocks may take, such as 10GiB; the file 'config' can be edited later", DefaultText: "what the disk has"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("init takes no arguments, only --repo; see 'cafs init --help'")
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			if err := checkProfile(c.String("profile")); err != nil {
				return err
			}
			if s := c.String("shard"); s != "" {
				if _, err := shard.Parse(s); err != nil {
					return usagef("--shard: %s", plain(err))
				}
			}
			cfg := repo.Config{Profile: c.String("profile"), Shard: c.String("shard")}
			if s := c.String("capacity"); s != "" {
				n, err := humanize.ParseBytes(s)
				if err != nil || n < repo.MinCapacity || n > math.MaxInt64 {
					return usagef("--capacity %q is not a size of at least %s", s, size(repo.MinCapacity))
				}
				cfg.Capacity = int64(n)
			}
			return runInit(r, cfg)
		},
	}
}

func runInit(path string, cfg repo.Config) error {
	path, err := repo.Resolve(path)
	if err != nil {
		return err
	}
	if err := repo.Init(path, cfg); err != nil {
		return err
	}
	notef("made the repository %s, profile %s", path, cfg.Profile)
	return nil
}
