package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"unicode/utf8"

	"github.com/urfave/cli/v2"

	"cafs/linksys"
)

type lsOptions struct {
	repo string
	args []string
	long bool
	json bool
	null bool
}

func lsCommand() *cli.Command {
	return &cli.Command{
		Name:      "ls",
		Usage:     "list a directory by CID",
		ArgsUsage: "CID[/path]…",
		Description: "Unusual characters in names are printed as escapes; --json and -0 give them as they are.\n\n" +
			example("cafs ls -l bafybeif7ztnhq65lumvvtr4ekcwd2ifwgm3awq4zfr3srh462rwyinlb4y/docs"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.BoolFlag{Name: "long", Aliases: []string{"l"}, Usage: "CID, type and size too"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object a line"},
			&cli.BoolFlag{Name: "null", Aliases: []string{"0"}, Usage: "end names with NUL, and print them as they are"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return usagef("ls takes one or more CIDs; see 'cafs ls --help'")
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			return runLs(c.Context, lsOptions{r, c.Args().Slice(), c.Bool("long"), c.Bool("json"), c.Bool("null")})
		},
	}
}

// listed is one line of ls --json.
type listed struct {
	Name  string `json:"name"`
	Bytes string `json:"name_base64,omitempty"` // when the name is no UTF-8
	Cid   string `json:"cid"`
	Type  string `json:"type"`
	Size  *int64 `json:"size,omitempty"` // bytes of a file
}

func runLs(ctx context.Context, o lsOptions) (err error) {
	s, err := open(ctx, o.repo, "ls", nil)
	if err != nil {
		return err
	}
	defer s.closing(&err)
	out := bufio.NewWriter(os.Stdout)
	for _, arg := range o.args {
		c, err := s.resolve(ctx, arg)
		if err != nil {
			return err
		}
		for e, err := range s.sys.ReadDir(ctx, c) {
			if err != nil {
				out.Flush()
				return s.explain(arg, err)
			}
			if err := o.print(ctx, s, out, e); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}

func (o lsOptions) print(ctx context.Context, s *session, out *bufio.Writer, e linksys.Entry) (err error) {
	if !o.long && !o.json {
		if o.null {
			_, err = fmt.Fprintf(out, "%s\x00", e.Name)
		} else {
			_, err = fmt.Fprintln(out, escape(e.Name))
		}
		return err
	}
	info, err := s.sys.Stat(ctx, e.Cid)
	if err != nil {
		return s.explain(e.Name, err)
	}
	if o.json {
		l := listed{Name: e.Name, Cid: e.Cid.String(), Type: typeName(info.Type)}
		if !utf8.ValidString(e.Name) {
			l.Bytes = base64.StdEncoding.EncodeToString([]byte(e.Name))
		}
		if info.Type == linksys.Regular {
			l.Size = &info.Size
		}
		return printJSON(out, l)
	}
	name, end, length := escape(e.Name), "\n", "-"
	if o.null {
		name, end = e.Name, "\x00"
	}
	switch info.Type {
	case linksys.Regular:
		length = fmt.Sprint(info.Size)
	case linksys.Symlink:
		name += " -> " + escape(info.Target)
	case linksys.Directory:
		name += "/"
	}
	_, err = fmt.Fprintf(out, "%s %-4s %12s %s%s", e.Cid, typeName(info.Type), length, name, end)
	return err
}

func typeName(t linksys.Type) string {
	switch t {
	case linksys.Regular:
		return "file"
	case linksys.Directory:
		return "dir"
	case linksys.Symlink:
		return "link"
	}
	return "data"
}
