package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"cafs/mount/repo"
	"cafs/mount/verify"
	"cafs/store"
	"cafs/store/disk"
)

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:  "verify",
		Usage: "check that everything that is kept is there, and sound",
		Description: "Checks the index, the bytes in staging, and that every block of the tree, of snapshots and\n" +
			"of pins is there. With --data every block is read and hashed, too. Prints a line for each\n" +
			"damaged block and each path that needs it, and exits with 5 when there are any that were not\n" +
			"repaired. Works while the repository is mounted.\n\n" +
			"--repair moves damaged blocks into the folder quarantine of the repository, and puts back what\n" +
			"can be made anew: directories, from the index; anything that a repository named by --from has.\n" +
			"Files of which a block is gone are whole again once the same bytes are written or added anywhere.\n\n" +
			example("cafs verify && echo all is there", "cafs verify --data --repair --from /backup/repo"),
		Flags: []cli.Flag{
			repoFlag(),
			&cli.BoolFlag{Name: "data", Usage: "read and hash every block"},
			&cli.BoolFlag{Name: "resume", Usage: "go on reading where an interrupted 'verify --data' was"},
			&cli.BoolFlag{Name: "repair", Usage: "repair what can be, and move other damaged blocks aside"},
			&cli.StringSliceFlag{Name: "from", Usage: "with --repair, take copies of blocks from the repository or block folder `DIR`; may be repeated"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object a line: findings, and a report at the end"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print what is wrong only"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usagef("verify takes no arguments, only --repo; see 'cafs verify --help'")
			}
			if len(c.StringSlice("from")) > 0 && !c.Bool("repair") {
				return usagef("--from is for --repair")
			}
			if c.Bool("resume") && !c.Bool("data") {
				return usagef("--resume is for --data")
			}
			r, err := repoPath(c)
			if err != nil {
				return err
			}
			v := verification{quiet: c.Bool("quiet"), json: c.Bool("json"), arg: repo.VerifyArg{Data: c.Bool("data"), Resume: c.Bool("resume"), Repair: c.Bool("repair")}}
			return v.run(c.Context, r, c.StringSlice("from"))
		},
	}
}

// verification is one run of verify.
type verification struct {
	arg         repo.VerifyArg
	quiet, json bool

	works  *works
	copies []disk.FS
	start  time.Time
	report verify.Report
	told   map[string]bool // blocks that were printed
	fixed  int64           // with copies
}

func (v *verification) run(ctx context.Context, repository string, from []string) (err error) {
	for _, dir := range from {
		d, err := openCopies(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		v.copies = append(v.copies, d)
	}
	if v.works, err = openWorks(ctx, repository, "verify"); err != nil {
		return err
	}
	defer v.works.closing(&err)
	v.start, v.told = time.Now(), map[string]bool{}
	if err := v.once(ctx, v.arg, &v.report); err != nil {
		if errors.Is(err, context.Canceled) && v.arg.Data {
			notef("'cafs verify --data --resume' goes on from here")
		}
		return err
	}
	again := v.arg
	again.Data, again.Resume = false, false
	for before := int64(0); v.fixed > before; { // with a block back, others turn out to be missing
		before = v.fixed
		if err := v.works.sync(ctx); err != nil {
			return err
		}
		var r verify.Report
		if err := v.once(ctx, again, &r); err != nil {
			return err
		}
		v.report.Left = r.Left
	}
	return v.result()
}

// once verifies and prints what is found.
func (v *verification) once(ctx context.Context, arg repo.VerifyArg, report *verify.Report) error {
	tty := isTTY(os.Stderr) && !v.json && !v.quiet
	err := v.works.do(ctx, repo.OpVerify, arg, report, func(js json.RawMessage) error {
		var e repo.VerifyEvent
		if err := json.Unmarshal(js, &e); err != nil {
			return err
		}
		if tty && e.Progress != nil {
			v.show(*e.Progress)
		}
		if e.Found != nil {
			if tty {
				fmt.Fprint(os.Stderr, "\r\x1b[K")
			}
			return v.found(ctx, *e.Found)
		}
		return nil
	})
	if tty {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
	return err
}

// openCopies opens the blocks of a repository, or a folder of blocks, to read
// copies from. It may be in use meanwhile.
func openCopies(dir string) (disk.FS, error) {
	blocks := filepath.Join(dir, repo.BlocksName)
	if _, err := os.Stat(blocks); err != nil {
		blocks = dir
	}
	return disk.OS(blocks)
}

// show tells how far it is, on one line.
func (v *verification) show(r verify.Report) {
	line := r.Phase
	switch r.Phase {
	case "index":
		line = fmt.Sprintf("index: %d files and folders", r.Inodes)
	case "blocks":
		line = fmt.Sprintf("blocks: %d are referred to", r.Linked)
	case "data":
		speed := float64(r.Bytes) / time.Since(v.start).Seconds()
		line = fmt.Sprintf("data: %.0f %%, %d blocks, %s", r.Part*100, r.Blocks, size(r.Bytes))
		if !r.Resumed {
			line += fmt.Sprintf(", %s/s", size(int64(speed)))
		}
	}
	fmt.Fprintf(os.Stderr, "\rcafs: %s\x1b[K", line)
}

// found prints what is wrong, after trying to repair it with a copy.
func (v *verification) found(ctx context.Context, f verify.Finding) error {
	if v.arg.Repair && f.Cid.Defined() && f.Outcome != verify.Repaired {
		for _, from := range v.copies {
			b, err := store.ReadCopy(from, f.Cid)
			if err != nil {
				continue // no copy, or one that is no better
			}
			if err := v.works.blocks.Put(ctx, f.Cid, b); err != nil {
				return err
			}
			f.Outcome = verify.Repaired
			v.fixed++
			break
		}
	}
	if f.Cid.Defined() && v.told[f.Cid.String()] {
		return nil
	}
	if f.Cid.Defined() {
		v.told[f.Cid.String()] = true
	}
	if v.json {
		return printJSON(os.Stdout, f)
	}
	what, problem := f.Detail, string(f.Problem)
	if f.Cid.Defined() {
		what = f.Cid.String()
	}
	if f.Outcome != "" {
		problem += ", " + string(f.Outcome)
	}
	paths := f.Paths
	if len(paths) == 0 {
		paths = []string{"(nothing refers to it)"}
	}
	if f.More > 0 {
		paths = append(paths, fmt.Sprintf("(and %d more)", f.More))
	}
	for _, p := range paths {
		if _, err := fmt.Printf("%s\t%s\t%s\n", escape(what), problem, escape(p)); err != nil {
			return err
		}
	}
	return nil
}

// result is what it all comes to.
func (v *verification) result() error {
	r := v.report
	if v.json {
		if err := printJSON(os.Stdout, r); err != nil {
			return err
		}
	}
	if r.Left > 0 {
		hint := "files with these blocks cannot be read; adding or writing the same content again replaces them"
		if !v.arg.Repair {
			hint += ", and so may 'cafs verify --repair'"
		}
		return repo.Hint(fmt.Errorf("%w: %d of %d problems are left", errDamage, r.Left, r.Wrong), "%s", hint)
	}
	if v.quiet || v.json {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d files and folders, %d blocks that they and history need: all there", r.Inodes, r.Linked)
	if v.arg.Data {
		took := time.Since(v.start)
		fmt.Fprintf(&b, "; %d blocks, %s, as their hashes say (%s)", r.Blocks, size(r.Bytes), took.Round(time.Millisecond))
	}
	if r.Wrong > 0 {
		fmt.Fprintf(&b, "; %d problems repaired", r.Wrong)
	}
	notef("%s", b.String())
	return nil
}
