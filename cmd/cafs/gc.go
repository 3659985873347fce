package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
	"cafs/mount/tree"
)

func gcCommand() *cli.Command {
	return &cli.Command{
		Name:  "gc",
		Usage: "delete blocks that nothing refers to",
		Description: "Kept are the tree, snapshots, automatic commits and pins. Programs go on reading and\n" +
			"writing meanwhile, and it may be interrupted at any time. A mount does this by itself when\n" +
			"room gets short. Options with 'keep' give up automatic commits first.\n\n" +
			example("cafs gc --dry-run", "cafs gc --keep-last 1"),
		Flags: append([]cli.Flag{
			repoFlag(),
			&cli.BoolFlag{Name: "dry-run", Aliases: []string{"n"}, Usage: "say what would go and what is kept for whom, and delete nothing"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object"},
		}, keepFlags()...),
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("gc takes no arguments, only --repo; see 'cafs gc --help'")
			}
			return onRepo(c, func(r string) error { return runGC(c, r) })
		},
	}
}

// keepFlags choose which automatic commits are kept.
func keepFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "keep-last", Usage: "of the automatic commits keep the last `N`", DefaultText: fmt.Sprint(repo.DefaultKeep.Last)},
		&cli.IntFlag{Name: "keep-hourly", Usage: "keep one for each of the last `N` hours that have any", DefaultText: fmt.Sprint(repo.DefaultKeep.Hourly)},
		&cli.IntFlag{Name: "keep-daily", Usage: "likewise for days", DefaultText: fmt.Sprint(repo.DefaultKeep.Daily)},
		&cli.IntFlag{Name: "keep-weekly", Usage: "likewise for weeks", DefaultText: fmt.Sprint(repo.DefaultKeep.Weekly)},
	}
}

// keepOf reads keepFlags: nil when none is given, and else 0 for those that are not.
func keepOf(c *cli.Context) (*repo.Keep, error) {
	k := repo.Keep{Last: c.Int("keep-last"), Hourly: c.Int("keep-hourly"), Daily: c.Int("keep-daily"), Weekly: c.Int("keep-weekly")}
	if min(k.Last, k.Hourly, k.Daily, k.Weekly) < 0 {
		return nil, usagef("numbers of commits to keep are not negative")
	}
	for _, name := range []string{"keep-last", "keep-hourly", "keep-daily", "keep-weekly"} {
		if c.IsSet(name) {
			return &k, nil
		}
	}
	return nil, nil
}

func runGC(c *cli.Context, repository string) error {
	keep, err := keepOf(c)
	if err != nil {
		return err
	}
	var r tree.Collected
	tty := isTTY(os.Stderr) && !c.Bool("json")
	err = doIn(c.Context, repository, "gc", repo.OpCollect, repo.CollectArg{DryRun: c.Bool("dry-run"), Keep: keep}, &r, func(js json.RawMessage) error {
		var p tree.Collected
		if err := json.Unmarshal(js, &p); err != nil || !tty {
			return err
		}
		fmt.Fprintf(os.Stderr, "\rcafs: %d blocks, %s deleted ", p.Garbage, size(p.GarbageBytes))
		return nil
	})
	if tty {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return printJSON(os.Stdout, r)
	}
	return printCollected(r, c.Bool("dry-run"))
}

func printCollected(r tree.Collected, dry bool) (err error) {
	if !dry {
		_, err = fmt.Printf("deleted %d blocks, %s, that nothing refers to; %d are kept (%s)\n",
			r.Garbage, size(r.GarbageBytes), r.Marked, (r.MarkTime + r.SweepTime).Round(time.Millisecond))
		return err
	}
	row := func(what string, blocks, bytes int64, why string) {
		if err == nil {
			_, err = fmt.Printf("%-9s %10d blocks %10s  %s\n", what, blocks, size(bytes), why)
		}
	}
	row("tree", r.TreeBlocks, r.TreeBytes, "the tree as it is")
	row("pins", r.PinnedBlocks, r.PinnedBytes, "pinned, and not in the tree")
	row("history", r.HistoryBlocks, r.HistoryBytes, "only in snapshots and automatic commits")
	row("garbage", r.Garbage, r.GarbageBytes, "nothing refers to it: 'cafs gc' deletes it")
	return err
}
