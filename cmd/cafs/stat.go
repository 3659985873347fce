package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/multiformats/go-multicodec"
	"github.com/urfave/cli/v2"

	"cafs/linksys"
)

func statCommand() *cli.Command {
	return &cli.Command{
		Name:        "stat",
		Usage:       "describe what a CID stands for",
		ArgsUsage:   "CID[/path]…",
		Description: example("cafs stat bafybeif7ztnhq65lumvvtr4ekcwd2ifwgm3awq4zfr3srh462rwyinlb4y/docs"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.BoolFlag{Name: "json", Usage: "one JSON object a line"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return usagef("stat takes one or more CIDs; see 'cafs stat --help'")
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			return runStat(c.Context, r, c.Args().Slice(), c.Bool("json"))
		},
	}
}

// described is one line of stat --json.
type described struct {
	Cid    string     `json:"cid"`
	Codec  string     `json:"codec"`
	Type   string     `json:"type"`
	Size   int64      `json:"size"`  // bytes of a file's content, else of the root block
	Links  int64      `json:"links"` // of the root block
	Mode   string     `json:"mode,omitempty"`
	Mtime  *time.Time `json:"mtime,omitempty"`
	Target string     `json:"target,omitempty"`
}

func runStat(ctx context.Context, repository string, args []string, asJSON bool) (err error) {
	s, err := open(ctx, repository, "stat", nil)
	if err != nil {
		return err
	}
	defer s.closing(&err)
	for _, arg := range args {
		c, err := s.resolve(ctx, arg)
		if err != nil {
			return err
		}
		info, err := s.sys.Stat(ctx, c)
		if err != nil {
			return s.explain(arg, err)
		}
		d := described{Cid: c.String(), Codec: multicodec.Code(info.Codec).String(), Type: typeName(info.Type), Size: info.Size, Links: info.Links, Target: info.Target}
		if info.Mode != 0 {
			d.Mode = fmt.Sprintf("%04o", info.Mode)
		}
		if !info.Mtime.IsZero() {
			d.Mtime = &info.Mtime
		}
		if asJSON {
			err = printJSON(os.Stdout, d)
		} else {
			d.print(info)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d described) print(info linksys.Info) {
	row := func(name, value string) {
		if value != "" {
			fmt.Printf("%-8s%s\n", name, escape(value))
		}
	}
	row("cid", d.Cid)
	row("type", d.Type+", "+d.Codec)
	if info.Type != linksys.Directory {
		row("size", fmt.Sprintf("%d bytes", d.Size))
	}
	row("links", fmt.Sprint(d.Links))
	row("target", d.Target)
	row("mode", d.Mode)
	if d.Mtime != nil {
		row("mtime", d.Mtime.Format(time.RFC3339Nano))
	}
}
