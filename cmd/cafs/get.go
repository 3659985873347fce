package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/ipfs/go-cid"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"cafs/linksys"
	"cafs/mount/repo"
)

type getOptions struct {
	repo string
	arg  string
	out  string
}

func getCommand() *cli.Command {
	return &cli.Command{
		Name:      "get",
		Usage:     "copy a file or a directory tree out by CID",
		ArgsUsage: "CID[/path]",
		Description: "Writes to OUT, which must not exist; nothing outside of it can be reached by what\n" +
			"the content holds. Modes and times are set where the content has them.\n\n" +
			example("cafs get -o docs bafybeif7ztnhq65lumvvtr4ekcwd2ifwgm3awq4zfr3srh462rwyinlb4y/docs"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write to `OUT`", DefaultText: "the last part of the argument"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usagef("get takes one CID; see 'cafs get --help'")
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			o := getOptions{r, c.Args().First(), c.String("output")}
			if o.out == "" {
				o.out = path.Base(path.Clean("/" + o.arg))
			}
			return runGet(c.Context, o)
		},
	}
}

func runGet(ctx context.Context, o getOptions) (err error) {
	s, err := open(ctx, o.repo, "get", nil)
	if err != nil {
		return err
	}
	defer s.closing(&err)
	c, err := s.resolve(ctx, o.arg)
	if err != nil {
		return err
	}
	parent, err := os.OpenRoot(filepath.Dir(o.out))
	if err != nil {
		return err
	}
	defer parent.Close()
	x := &extraction{s: s, bar: newBar("get"), slots: make(chan struct{}, getWorkers)}
	defer x.bar.done()
	name := filepath.Base(o.out)
	if _, err := parent.Lstat(name); err == nil {
		return repo.Hint(fmt.Errorf("%s: %w", o.out, fs.ErrExist), "name another place with -o")
	}
	if err := x.entry(ctx, parent, name, c); err != nil {
		if info, e := parent.Lstat(name); e == nil && info.IsDir() {
			err = repo.Hint(err, "%s has what was copied until then", o.out)
		}
		return s.explain(o.arg, err)
	}
	return nil
}

// extraction writes content to the file system. Every name is made relative to
// an open folder, never through a symbolic link to somewhere else, and never
// over something that is there: names that would be dangerous anyway ("..",
// with slashes, twice in a folder) are left out by linksys, which says so.
type extraction struct {
	s     *session
	bar   *bar
	slots chan struct{} // one for each entry that is written by a goroutine of its own
}

// getWorkers is how many entries are written at a time: most of the time of a
// small one goes by in waiting for the daemon and the disk.
const getWorkers = 8

func (x *extraction) entry(ctx context.Context, dir *os.Root, name string, c cid.Cid) error {
	info, err := x.s.sys.Stat(ctx, c)
	if err != nil {
		return err
	}
	switch info.Type {
	case linksys.Directory:
		err = x.folder(ctx, dir, name, c)
	case linksys.Symlink:
		return dir.Symlink(info.Target, name)
	case linksys.Regular:
		err = x.file(ctx, dir, name, c)
	default:
		return fmt.Errorf("%s: %s is neither file nor directory; 'cafs block get' has its bytes", escape(name), c)
	}
	if err == nil && info.Mode != 0 {
		// Set-user-ID and the like are not for content from elsewhere to decide.
		err = dir.Chmod(name, fs.FileMode(info.Mode&0o777))
	}
	if err == nil && !info.Mtime.IsZero() {
		err = dir.Chtimes(name, time.Time{}, info.Mtime)
	}
	return err
}

func (x *extraction) folder(ctx context.Context, dir *os.Root, name string, c cid.Cid) error {
	if err := dir.Mkdir(name, 0o777); err != nil {
		return err
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return err
	}
	defer sub.Close()
	g, gctx := errgroup.WithContext(ctx)
	for e, err := range x.s.sys.ReadDir(gctx, c) {
		if err != nil {
			return errors.Join(err, g.Wait())
		}
		write := func() error {
			if err := x.entry(gctx, sub, e.Name, e.Cid); err != nil {
				return fmt.Errorf("%s: %w", escape(e.Name), err)
			}
			return nil
		}
		select {
		case x.slots <- struct{}{}:
			g.Go(func() error { defer func() { <-x.slots }(); return write() })
		default: // all at work, perhaps waiting for entries below: so do it here
			if err := write(); err != nil {
				return errors.Join(err, g.Wait())
			}
		}
	}
	return g.Wait()
}

// file writes a file, leaving out what is zero: holes stay holes.
func (x *extraction) file(ctx context.Context, dir *os.Root, name string, c cid.Cid) (err error) {
	f, err := x.s.sys.OpenFile(ctx, c)
	if err != nil {
		return err
	}
	out, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, out.Close())
		if err != nil {
			_ = dir.Remove(name) // half a file helps nobody
		}
	}()
	for off := int64(0); ; {
		from, err := f.NextData(ctx, off)
		if err != nil {
			return err
		}
		x.bar.add(from - off)
		if from >= f.Size() {
			return out.Truncate(f.Size())
		}
		if off, err = f.NextHole(ctx, from); err != nil {
			return err
		}
		if err := copyRange(ctx, &barWriter{io.NewOffsetWriter(out, from), x.bar}, f, from, off); err != nil {
			return err
		}
	}
}
