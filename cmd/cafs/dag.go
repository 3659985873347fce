package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/multiformats/go-multicodec"
	"github.com/urfave/cli/v2"

	"cafs/linksys"
)

// exampleCid stands in help texts for the root of a tree.
const exampleCid = "bafybeif7ztnhq65lumvvtr4ekcwd2ifwgm3awq4zfr3srh462rwyinlb4y"

func dagCommand() *cli.Command {
	return &cli.Command{
		Name:  "dag",
		Usage: "work with linked data of any codec",
		Description: "Paths go through UnixFS directories by name, and through everything else by keys and\n" +
			"indexes. Symbolic links are not followed.\n\n" +
			example("cafs dag get "+exampleCid+"/docs", "cafs dag export "+exampleCid+" > tree.car", "cafs dag import tree.car"),
		Subcommands: []*cli.Command{dagResolveCommand(), dagGetCommand(), dagStatCommand(), dagExportCommand(), dagImportCommand()},
	}
}

// dagSub is a subcommand that takes one or more CIDs with paths.
func dagSub(name, usage, about string, flags []cli.Flag, run func(*cli.Context, *session, string) error) *cli.Command {
	if about != "" {
		about += "\n\n"
	}
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: "CID[/path]…",
		Description: about + example("cafs dag "+name+" "+exampleCid+"/docs"),
		Flags:       append([]cli.Flag{repoFlag()}, flags...),
		Action: func(c *cli.Context) (err error) {
			if c.NArg() == 0 {
				return usagef("dag %s takes one or more CIDs; see 'cafs dag %s --help'", name, name)
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			s, err := open(c.Context, r, "dag "+name, nil)
			if err != nil {
				return err
			}
			defer s.closing(&err)
			for _, arg := range c.Args().Slice() {
				if err := run(c, s, arg); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// target finds what CID[/path] names, which may be a value inside a block.
func (s *session) target(ctx context.Context, arg string) (linksys.Target, error) {
	root, path, err := parsePath(arg)
	if err != nil {
		return linksys.Target{}, err
	}
	t, err := s.sys.Resolve(ctx, root, path)
	if err != nil {
		return linksys.Target{}, s.explain(arg, err)
	}
	return t, nil
}

// resolved is one line of dag resolve --json.
type resolved struct {
	Cid       string `json:"cid"`
	Remaining string `json:"remaining"` // of the path, inside the block
}

func dagResolveCommand() *cli.Command {
	return dagSub("resolve", "print the CID that a path leads to",
		"What is left of the path is printed too when it ends inside a block.",
		[]cli.Flag{&cli.BoolFlag{Name: "json", Usage: "one JSON object a line"}},
		func(c *cli.Context, s *session, arg string) error {
			t, err := s.target(c.Context, arg)
			if err != nil {
				return err
			}
			r := resolved{t.Cid.String(), strings.Join(t.Remaining, "/")}
			switch {
			case c.Bool("json"):
				return printJSON(os.Stdout, r)
			case r.Remaining != "":
				_, err = fmt.Println(r.Cid + "/" + escape(r.Remaining))
			default:
				_, err = fmt.Println(r.Cid)
			}
			return err
		})
}

func dagGetCommand() *cli.Command {
	return dagSub("get", "print a block, or a value inside one, as dag-json",
		"UnixFS nodes are shown as the dag-pb they are; 'cafs ls' and 'cafs cat' read them.",
		[]cli.Flag{&cli.StringFlag{Name: "codec", Usage: "print in this `CODEC`: dag-json, dag-cbor, dag-pb, raw, json, cbor", Value: "dag-json"}},
		func(c *cli.Context, s *session, arg string) error {
			var codec multicodec.Code
			if err := codec.Set(c.String("codec")); err != nil || !linksys.Supported(uint64(codec)) {
				return usagef("--codec %q is none that cafs can write", c.String("codec"))
			}
			t, err := s.target(c.Context, arg)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(os.Stdout)
			if err := s.sys.Encode(c.Context, out, t, uint64(codec)); err != nil {
				return s.explain(arg, err)
			}
			if codec == multicodec.DagJson || codec == multicodec.Json {
				out.WriteByte('\n')
			}
			return out.Flush()
		})
}

// dagSize is one line of dag stat --json.
type dagSize struct {
	Cid string `json:"cid"`
	linksys.DagSize
}

func dagStatCommand() *cli.Command {
	return dagSub("stat", "count the blocks below a CID and their bytes",
		"Each block counts once, however often it occurs. Raw blocks are not read.",
		[]cli.Flag{&cli.BoolFlag{Name: "json", Usage: "one JSON object a line"}},
		func(c *cli.Context, s *session, arg string) error {
			root, err := s.resolve(c.Context, arg)
			if err != nil {
				return err
			}
			n, err := s.measure(c.Context, root)
			if err != nil {
				return s.explain(arg, err)
			}
			if c.Bool("json") {
				return printJSON(os.Stdout, dagSize{root.String(), n})
			}
			_, err = fmt.Printf("%s %d blocks, %d bytes\n", root, n.Blocks, n.Bytes)
			return err
		})
}
