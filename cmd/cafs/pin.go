package main

import (
	"context"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"cafs/mount/api"
	"cafs/mount/repo"
)

func pinCommand() *cli.Command {
	return &cli.Command{
		Name:  "pin",
		Usage: "keep content by its CID, although the tree does not have it",
		Description: "What 'cafs add' and 'cafs dag import' bring in is pinned unless they are told not to.\n\n" +
			example("cafs pin ls", "cafs pin add --name paper bafybei…", "cafs pin rm paper"),
		Subcommands: []*cli.Command{
			{
				Name:        "add",
				Usage:       "keep CIDs with all that is below them, which must be here",
				Description: example("cafs pin add --name photos bafybeigdcg7pksx2zk5336vrfsktjodlr4rbfz37qr3koc5xboxe5ekv24"),
				ArgsUsage:   "CID[/path]…",
				Flags:       []cli.Flag{repoFlag(), &cli.StringFlag{Name: "name", Usage: "for the list"}},
				Action: func(c *cli.Context) error {
					if c.NArg() == 0 {
						return usagef("pin add takes one or more CIDs")
					}
					return onRepo(c, func(r string) error { return runPinAdd(c.Context, r, c.String("name"), c.Args().Slice()) })
				},
			},
			{
				Name:        "rm",
				Usage:       "give pins up; 'cafs gc' then frees what nothing else holds",
				Description: example("cafs pin rm photos"),
				ArgsUsage:   "CID|NAME…",
				Flags:       []cli.Flag{repoFlag()},
				Action: func(c *cli.Context) error {
					if c.NArg() == 0 {
						return usagef("pin rm takes one or more CIDs or names")
					}
					return onRepo(c, func(r string) error {
						return doIn(c.Context, r, "pin rm", repo.OpUnpin, repo.NamesArg{Names: c.Args().Slice()}, nil, nil)
					})
				},
			},
			{
				Name:        "ls",
				Usage:       "list pins",
				Description: example("cafs pin ls --json"),
				Flags:       []cli.Flag{repoFlag(), &cli.BoolFlag{Name: "json", Usage: "one JSON object a line"}, &cli.StringFlag{Name: "name", Usage: "only those with this name"}},
				Action: func(c *cli.Context) error {
					return onRepo(c, func(r string) error { return runPinLs(c.Context, r, c.String("name"), c.Bool("json")) })
				},
			},
		},
	}
}

func runPinAdd(ctx context.Context, repository, name string, args []string) (err error) {
	w, err := openWorks(ctx, repository, "pin add")
	if err != nil {
		return err
	}
	defer w.closing(&err)
	for _, a := range args {
		k, err := w.resolve(ctx, a)
		if err == nil {
			err = w.do(ctx, repo.OpPin, repo.PinArg{Cid: k, Name: name}, nil, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func runPinLs(ctx context.Context, repository, name string, asJSON bool) (err error) {
	s, err := open(ctx, repository, "pin ls", nil)
	if err != nil {
		return err
	}
	defer s.closing(&err)
	for r, err := range s.roots(ctx) {
		if err != nil {
			return err
		}
		if name != "" && r.Name != name {
			continue
		}
		if asJSON {
			err = printJSON(os.Stdout, r)
		} else {
			_, err = fmt.Println(r.Time.Local().Format(time.DateTime), r.Cid, escape(r.Name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// roots lists the pins.
func (s *session) roots(ctx context.Context) iter.Seq2[api.NamedRoot, error] {
	if s.client != nil {
		return s.client.Roots(ctx)
	}
	return func(yield func(api.NamedRoot, error) bool) {
		for r, err := range s.repo.Roots() {
			if !yield(api.NamedRoot{Name: r.Name, Cid: r.Cid, Time: r.Time}, err) {
				return
			}
		}
	}
}
