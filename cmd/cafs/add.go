package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ipfs/go-cid"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"cafs/linksys"
	"cafs/linksys/add"
	"cafs/mount/api"
	"cafs/mount/repo"
)

const progressEvery = 100 * time.Millisecond

type addOptions struct {
	repo  string
	paths []string
	arg   api.AddArg
	quiet bool
	json  bool
}

func addCommand() *cli.Command {
	return &cli.Command{
		Name:      "add",
		Usage:     "import files and directories from elsewhere and print their CIDs",
		ArgsUsage: "PATH|-…",
		Description: "The content is kept, listed in DIR/.cafs/ipfs of a mount, and durable when add\n" +
			"returns. Works while the repository is mounted. Symbolic links are added as such.\n\n" +
			example("cafs add -r photos", "tar c photos | cafs add -q -", "cafs add --chunker buzhash disk.img"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.BoolFlag{Name: "recursive", Aliases: []string{"r"}, Usage: "add directories with all that is in them"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print CIDs only"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object a line"},
			&cli.BoolFlag{Name: "stats", Usage: "say how many bytes were new"},
			&cli.StringFlag{Name: "profile", Usage: "how contents get their CIDs: `NAME[,SETTING=VALUE]…` with cid-version, hash, raw-leaves, chunker, max-links, fanout, dir-size, dir-limit, dir-links", DefaultText: "the repository's"},
			&cli.StringFlag{Name: "chunker", Usage: "how files are cut: size-N, buzhash, rabin, rabin-AVG, rabin-MIN-AVG-MAX", DefaultText: "the profile's"},
			&cli.StringFlag{Name: "hash", Usage: "sha2-256, sha2-512, blake2b-256 or blake3", DefaultText: "the profile's"},
			&cli.BoolFlag{Name: "no-sync", Usage: "return before it is durable, which a mount sees to in the background"},
			&cli.BoolFlag{Name: "no-pin", Usage: "do not keep it: it is garbage as long as nothing else refers to it"},
			&cli.BoolFlag{Name: "no-hidden", Usage: "leave out names that begin with a dot"},
			&cli.BoolFlag{Name: "no-empty-dirs", Usage: "leave out directories without entries"},
			&cli.BoolFlag{Name: "preserve-mode", Usage: "store permissions; changes the CIDs"},
			&cli.BoolFlag{Name: "preserve-mtime", Usage: "store modification times; changes the CIDs"},
		},
		Action: func(c *cli.Context) error {
			o, err := addFlags(c)
			if err != nil {
				return err
			}
			return runAdd(c.Context, o)
		},
	}
}

func addFlags(c *cli.Context) (o addOptions, err error) {
	if c.NArg() == 0 {
		return o, usagef("add takes one or more paths, or '-' for stdin; see 'cafs add --help'")
	}
	o = addOptions{paths: c.Args().Slice(), quiet: c.Bool("quiet"), json: c.Bool("json"), arg: api.AddArg{
		Recursive:     c.Bool("recursive"),
		Profile:       c.String("profile"),
		NoHidden:      c.Bool("no-hidden"),
		NoEmptyDirs:   c.Bool("no-empty-dirs"),
		PreserveMode:  c.Bool("preserve-mode"),
		PreserveMtime: c.Bool("preserve-mtime"),
		Stats:         c.Bool("stats"),
		NoSync:        c.Bool("no-sync"),
		NoRoot:        c.Bool("no-pin"),
	}}
	if o.repo, err = repoPath(c); err != nil {
		return o, err
	}
	for _, setting := range []string{"chunker", "hash"} {
		v := c.String(setting)
		switch {
		case v == "":
		case strings.ContainsAny(v, ",="):
			return o, usagef("--%s %q is none", setting, v)
		case o.arg.Profile == "":
			cfg, err := repo.ReadConfig(o.repo)
			if errors.Is(err, repo.ErrNotRepo) {
				cfg.Profile = repo.DefaultProfile // it will be made with that
			} else if err != nil {
				return o, err
			}
			o.arg.Profile = cfg.Profile
			fallthrough
		default:
			o.arg.Profile += "," + setting + "=" + v
		}
	}
	return o, checkProfile(o.arg.Profile)
}

// addedLine is one line of add --json.
type addedLine struct {
	Name  string    `json:"name"`
	Cid   string    `json:"cid"`
	Size  uint64    `json:"size"`  // bytes of content
	Tsize uint64    `json:"tsize"` // bytes of the DAG
	Stats *addStats `json:"stats,omitempty"`
}

// addStats is what --stats counts.
type addStats struct {
	Files    int64 `json:"files"`
	Dirs     int64 `json:"dirs"`
	Symlinks int64 `json:"symlinks"`
	Logical  int64 `json:"logical"` // bytes of file content
	Blocks   int64 `json:"blocks"`  // made, repeated ones too
	Unique   int64 `json:"unique"`  // bytes of blocks, each counted once
	Stored   int64 `json:"stored"`  // bytes of blocks that were new
}

func runAdd(ctx context.Context, o addOptions) (err error) {
	s, err := open(ctx, o.repo, "add", func(r *repo.Options) { r.Create = &repo.Config{} })
	if err != nil {
		return err
	}
	defer s.closing(&err)
	for _, path := range o.paths {
		a, err := s.add(ctx, path, o.arg)
		if err != nil {
			return fmt.Errorf("add %s: %w", path, err)
		}
		if err := o.print(path, a); err != nil {
			return err
		}
	}
	return nil
}

func (o addOptions) print(path string, a api.Added) (err error) {
	line := addedLine{Name: path, Cid: a.Cid.String(), Size: a.Size, Tsize: a.Tsize}
	if o.arg.Stats {
		t := addStats(a.Stats)
		line.Stats = &t
	}
	switch {
	case o.json:
		return printJSON(os.Stdout, line)
	case o.quiet:
		_, err = fmt.Println(line.Cid)
	default:
		_, err = fmt.Println(line.Cid, escape(path))
	}
	if t := line.Stats; t != nil {
		notef("%s: %d files, %d directories, %s of content; %s in %d blocks, of which %s were new", path,
			t.Files, t.Dirs, size(t.Logical), size(t.Unique), t.Blocks, size(t.Stored))
	}
	return err
}

// add imports one path.
func (s *session) add(ctx context.Context, path string, arg api.AddArg) (a api.Added, err error) {
	arg.Name = filepath.Base(path)
	if path == "-" {
		arg.Name = "stdin"
		return s.addFile(ctx, os.Stdin, arg)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return a, err
	}
	if s.client != nil && s.own(path) {
		return s.addOwn(ctx, path, arg)
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return a, repo.Hint(errors.New("it is a symbolic link"), "name what it leads to; within directories links are added as such")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return a, err
	}
	defer f.Close()
	return s.addFile(ctx, f, arg)
}

// addOwn keeps what is in the tree already.
func (s *session) addOwn(ctx context.Context, path string, arg api.AddArg) (a api.Added, err error) {
	if arg.Profile != "" || arg.PreserveMode || arg.PreserveMtime || arg.NoHidden || arg.NoEmptyDirs {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return a, err
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil || info.IsDir() {
			return a, errors.Join(err, errors.New("a directory on this repository's mount has one CID, that of the repository's profile"))
		}
		return s.addFile(ctx, f, arg)
	}
	text, err := cidOf(path)
	if err != nil {
		return a, err
	}
	if a.Cid, err = cid.Decode(text); err != nil {
		return a, err
	}
	info, err := s.sys.Stat(ctx, a.Cid)
	if err != nil {
		return a, err
	}
	if info.Type == linksys.Directory && !arg.Recursive {
		return a, repo.Hint(unix.EISDIR, "add directories with -r")
	}
	a.Size = uint64(info.Size)
	if arg.NoRoot {
		return a, nil // it is in the tree
	}
	return a, s.client.Keep(ctx, api.NamedRoot{Name: arg.Name, Cid: a.Cid})
}

// addFile imports what f is open on.
func (s *session) addFile(ctx context.Context, f *os.File, arg api.AddArg) (a api.Added, err error) {
	b := newBar("add " + escape(arg.Name))
	defer b.done()
	skipped := func(path string) { notef("left out %s, which is no file, directory or symbolic link", path) }
	err = s.borrow(ctx, f, func(ctx context.Context, f *os.File) error {
		if s.client == nil {
			a, err = s.addHere(ctx, f, arg, b.add, skipped)
			return err
		}
		a, err = s.client.Add(ctx, f, arg, func(e api.AddEvent) {
			if e.Skipped != "" {
				skipped(e.Skipped)
			} else {
				b.set(e.Bytes)
			}
		})
		return err
	})
	return a, err
}

// addHere imports in this process, which makes all of it durable before it ends.
func (s *session) addHere(ctx context.Context, f *os.File, arg api.AddArg, progress func(int64), skipped func(string)) (api.Added, error) {
	root, stats, err := s.repo.Import(ctx, f, repo.ImportOptions{
		Name:      arg.Name,
		Profile:   arg.Profile,
		Recursive: arg.Recursive,
		NoRoot:    arg.NoRoot,
		Options: add.Options{
			Hidden:        !arg.NoHidden,
			NoEmptyDirs:   arg.NoEmptyDirs,
			PreserveMode:  arg.PreserveMode,
			PreserveMtime: arg.PreserveMtime,
			Stats:         arg.Stats,
			Progress:      progress,
			Skipped:       skipped,
		},
	})
	return api.Added{Root: api.Root{Cid: root.Cid, Size: root.Size, Tsize: root.Tsize}, Stats: stats}, err
}
