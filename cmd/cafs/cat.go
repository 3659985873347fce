package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"cafs/linksys"
)

func catCommand() *cli.Command {
	return &cli.Command{
		Name:      "cat",
		Usage:     "print files by CID",
		ArgsUsage: "CID[/path]…",
		Description: example("cafs cat bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy > file",
			"cafs cat --range 0-511 "+exampleCid+"/disk.img | xxd"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.StringFlag{Name: "range", Usage: "of each file only the bytes `A-B`, both included; A- is up to the end, -N the last N"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return usagef("cat takes one or more CIDs; see 'cafs cat --help'")
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			span, err := parseSpan(c.String("range"))
			if err != nil {
				return err
			}
			return runCat(c.Context, r, c.Args().Slice(), span, os.Stdout)
		},
	}
}

func runCat(ctx context.Context, repository string, args []string, span linksys.ByteRange, w io.Writer) (err error) {
	s, err := open(ctx, repository, "cat", nil)
	if err != nil {
		return err
	}
	defer s.closing(&err)
	for _, arg := range args {
		c, err := s.resolve(ctx, arg)
		if err != nil {
			return err
		}
		if _, err := s.sys.CopyRange(ctx, w, c, "", span.From, span.To); err != nil {
			return s.explain(arg, err)
		}
	}
	return nil
}

// copyBuffer is the unit in which contents are copied, in bytes.
const copyBuffer = 1 << 20

// copyRange copies bytes [from, to) of a file to w.
func copyRange(ctx context.Context, w io.Writer, f *linksys.File, from, to int64) error {
	buf := make([]byte, min(copyBuffer, max(to-from, 1)))
	for from < to {
		n, err := f.ReadAt(ctx, buf[:min(int64(len(buf)), to-from)], from)
		if n == 0 && (err == nil || err == io.EOF) {
			return fmt.Errorf("ends at byte %d of %d: %w", from, to, io.ErrUnexpectedEOF)
		} else if err != nil && err != io.EOF {
			return err
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}
