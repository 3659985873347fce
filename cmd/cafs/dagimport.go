package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ipfs/go-cid"
	"github.com/urfave/cli/v2"

	"cafs/linksys"
	"cafs/linksys/car"
	"cafs/mount/api"
	"cafs/mount/repo"
)

type importOptions struct {
	repo    string
	paths   []string
	noRoots bool
	json    bool
}

func dagImportCommand() *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "store the blocks of CARs and print their roots",
		ArgsUsage: "FILE|-…",
		Description: "Every block is hashed before it is stored. The roots are kept, listed in DIR/.cafs/ipfs\n" +
			"of a mount, and durable with all below them when import returns; when anything is\n" +
			"missing, there is an error and no root.\n\n" +
			example("cafs dag import tree.car", "curl -s 'https://…?format=car' | cafs dag import -"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.BoolFlag{Name: "no-pin", Usage: "store the blocks without keeping the roots, which may be incomplete then"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object for each CAR"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return usagef("dag import takes one or more CARs, or '-' for stdin; see 'cafs dag import --help'")
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			return runDagImport(c.Context, importOptions{r, c.Args().Slice(), c.Bool("no-pin"), c.Bool("json")})
		},
	}
}

// importedLine is one line of dag import --json.
type importedLine struct {
	Name string `json:"name"`
	car.ImportResult
}

func runDagImport(ctx context.Context, o importOptions) (err error) {
	s, err := open(ctx, o.repo, "dag import", func(r *repo.Options) { r.Create = &repo.Config{} })
	if err != nil {
		return err
	}
	defer s.closing(&err)
	for _, path := range o.paths {
		res, err := s.importCar(ctx, path, o.noRoots)
		if err != nil {
			err = fmt.Errorf("import %s: %w", path, err)
			if errors.Is(err, linksys.ErrIncomplete) {
				err = repo.Hint(err, "--no-pin stores the blocks of a CAR that holds a part of something")
			}
			return err
		}
		if err := o.print(path, res); err != nil {
			return err
		}
	}
	return nil
}

func (o importOptions) print(path string, res car.ImportResult) error {
	if o.json {
		return printJSON(os.Stdout, importedLine{path, res})
	}
	for _, c := range res.Roots {
		if _, err := fmt.Println(c); err != nil {
			return err
		}
	}
	if isTTY(os.Stderr) {
		notef("%s: %d blocks, %s", path, res.Blocks, size(res.Bytes))
	}
	return nil
}

// importCar imports one CAR.
func (s *session) importCar(ctx context.Context, path string, noRoots bool) (res car.ImportResult, err error) {
	in, name := os.Stdin, "stdin"
	if path != "-" {
		name = filepath.Base(path)
		if in, err = os.Open(path); err != nil {
			return res, err
		}
		defer in.Close()
	}
	b := newBar("import " + escape(name))
	defer b.done()
	err = s.borrow(ctx, in, func(ctx context.Context, f *os.File) error {
		if s.client == nil {
			res, err = s.repo.ImportCar(ctx, f, repo.CarOptions{Name: name, NoRoots: noRoots, Progress: func(_ cid.Cid, n int64) { b.add(n) }})
			return err
		}
		res, err = s.client.Import(ctx, f, api.ImportArg{Name: name, NoRoots: noRoots}, func(e api.AddEvent) { b.set(e.Bytes) })
		return err
	})
	return res, err
}
