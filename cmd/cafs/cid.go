package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"cafs/mount/repo"
)

// cidAttr is the extended attribute in which a mount answers CIDs.
const cidAttr = "ipfs.cid"

func cidCommand() *cli.Command {
	return &cli.Command{
		Name:      "cid",
		Usage:     "print the CIDs of files and directories on a mount",
		ArgsUsage: "PATH…",
		Description: "The CID is that of the content as it is now. A symbolic link has one of its own.\n" +
			"With several paths each line is a CID and its path.\n\n" +
			example("cafs cid ~/c/photos"),
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "one JSON object a line"}},
		Action: func(c *cli.Context) error {
			if c.NArg() == 0 {
				return usagef("cid takes one or more paths; see 'cafs cid --help'")
			}
			return runCid(c.Context, c.Args().Slice(), c.Bool("json"))
		},
	}
}

func runCid(ctx context.Context, paths []string, asJSON bool) error {
	var failed error
	for _, path := range paths {
		id, err := cidOf(path)
		if err != nil && len(paths) > 1 && ctx.Err() == nil {
			failed = err
			report(os.Stderr, err) // and go on, as ls does
			continue
		} else if err != nil {
			return err
		}
		switch {
		case asJSON:
			err = printJSON(os.Stdout, struct {
				Path string `json:"path"`
				Cid  string `json:"cid"`
			}{path, id})
		case len(paths) == 1:
			_, err = fmt.Println(id)
		default:
			_, err = fmt.Println(id, escape(path))
		}
		if err != nil {
			return err
		}
	}
	if failed != nil {
		return exitStatus(exitCode(failed))
	}
	return nil
}

// maxCidText is the longest text of a CID that a mount answers, in bytes.
const maxCidText = 1024

// cidOf asks the mount that path is on.
func cidOf(path string) (string, error) {
	buf := make([]byte, maxCidText)
	n, err := unix.Lgetxattr(path, cidAttr, buf)
	switch {
	case err == nil:
		return string(buf[:n]), nil
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENODATA):
		if _, e := mountOf(path); e == nil {
			return "", fmt.Errorf("cid %s: no file, directory or symbolic link, and so without a CID", path)
		}
		return "", repo.Hint(fmt.Errorf("cid %s: not on a cafs mount", path), "'cafs add' imports files from elsewhere and prints their CIDs")
	}
	return "", fmt.Errorf("cid %s: %w", path, err)
}
