package main

import (
	"context"
	"errors"
	"os"

	"github.com/ipfs/go-cid"
	"github.com/urfave/cli/v2"

	"cafs/linksys"
	"cafs/linksys/car"
	"cafs/mount/api"
)

type exportOptions struct {
	repo, root string // root is CID[/path]
	output     string // empty: stdout
	sel        linksys.Selection
	version    int
}

func dagExportCommand() *cli.Command {
	return &cli.Command{
		Name:      "export",
		Usage:     "write blocks into a CAR",
		ArgsUsage: "CID[/path]",
		Description: "The CAR has CID as its root, the blocks on the way to the path, and of what the path\n" +
			"leads to as much as --scope says: all below it, the entity (a file with its bytes, or\n" +
			"the nodes of a directory), or the one block. Each block is written once, parents first.\n\n" +
			example("cafs dag export "+exampleCid+" > tree.car",
				"cafs dag export --car-version 2 -o docs.car "+exampleCid+"/docs",
				"cafs dag export --entity-bytes 0:1048575 "+exampleCid+"/disk.img > first.car",
				`cafs dag export --selector '{"R":{"l":{"depth":2},":>":{"a":{">":{"@":{}}}}}}' `+exampleCid+" > top.car"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write to `FILE`, which must not exist", DefaultText: "stdout"},
			&cli.StringFlag{Name: "scope", Usage: "block, entity or all", Value: "all"},
			&cli.StringFlag{Name: "entity-bytes", Usage: "of a file only the blocks with bytes `A:B`, both included; -N counts from the end, * is the end"},
			&cli.StringFlag{Name: "selector", Usage: "an IPLD selector as dag-`JSON`, from the CID, instead of a path and --scope"},
			&cli.IntFlag{Name: "car-version", Usage: "1, or 2 with an index", Value: 1},
		},
		Action: func(c *cli.Context) error {
			o, err := exportFlags(c)
			if err != nil {
				return err
			}
			return runDagExport(c.Context, o)
		},
	}
}

func exportFlags(c *cli.Context) (o exportOptions, err error) {
	if c.NArg() != 1 {
		return o, usagef("dag export takes one CID; see 'cafs dag export --help'")
	}
	o = exportOptions{root: c.Args().First(), output: c.String("output"), version: c.Int("car-version")}
	if o.version != 1 && o.version != 2 {
		return o, usagef("--car-version %d is neither 1 nor 2", o.version)
	}
	if err := o.sel.Scope.UnmarshalText([]byte(c.String("scope"))); err != nil {
		return o, usagef("--scope %q is none of block, entity and all", c.String("scope"))
	}
	if text := c.String("entity-bytes"); text != "" {
		if c.IsSet("scope") && o.sel.Scope != linksys.ScopeEntity {
			return o, usagef("--entity-bytes goes with --scope entity")
		}
		r, err := parseEntityBytes(text)
		if err != nil {
			return o, err
		}
		o.sel.Scope, o.sel.Bytes = linksys.ScopeEntity, &r
	}
	o.sel.Selector = c.String("selector")
	if o.sel.Selector != "" && (c.IsSet("scope") || o.sel.Bytes != nil) {
		return o, usagef("--selector says all; it goes with neither --scope nor --entity-bytes")
	}
	o.repo, err = repoPath(c)
	return o, err
}

func runDagExport(ctx context.Context, o exportOptions) (err error) {
	root, path, err := parsePath(o.root)
	if err != nil {
		return err
	}
	if path != "" && o.sel.Selector != "" {
		return usagef("--selector begins at a CID; put the path into it")
	}
	o.sel.Path = path
	if o.output == "" && isTTY(os.Stdout) {
		return usagef("a CAR is no text for a terminal; name a file with -o, or redirect the output")
	}
	s, err := open(ctx, o.repo, "dag export", nil)
	if err != nil {
		return err
	}
	defer s.closing(&err)
	out := os.Stdout
	if o.output != "" {
		if out, err = os.OpenFile(o.output, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666); err != nil {
			return err
		}
		defer func() {
			if err = errors.Join(err, out.Close()); err != nil {
				_ = os.Remove(o.output) // a CAR with something missing helps nobody
			}
		}()
	}
	stats, err := s.export(ctx, out, root, o)
	if err != nil {
		return s.explain(o.root, err)
	}
	if isTTY(os.Stderr) {
		notef("%d blocks, %s", stats.Blocks, size(stats.Written))
	}
	return nil
}

// export writes a CAR to out.
func (s *session) export(ctx context.Context, out *os.File, root cid.Cid, o exportOptions) (stats car.ExportStats, err error) {
	b := newBar("export")
	defer b.done()
	err = s.lend(ctx, out, func(ctx context.Context, f *os.File) error {
		if s.client == nil {
			stats, err = s.repo.ExportCar(ctx, f, root, car.ExportOptions{
				Selection: o.sel, Version: o.version,
				Progress: func(_ cid.Cid, n int64) { b.add(n) },
			})
			return err
		}
		stats, err = s.client.Export(ctx, f, api.ExportArg{Root: root, Selection: o.sel, Version: o.version},
			func(e api.AddEvent) { b.set(e.Bytes) })
		return err
	})
	return stats, err
}

// measure counts the blocks below root, where the blocks are.
func (s *session) measure(ctx context.Context, root cid.Cid) (linksys.DagSize, error) {
	if s.client != nil {
		return s.client.DagSize(ctx, root)
	}
	return s.sys.Measure(ctx, root)
}
