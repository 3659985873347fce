// Command bench compares cafs with what it must beat, on this machine and in
// one run:
//
//	cafs    the binary of this tree
//	L       go-fuse's fs.NewLoopbackRoot without kernel passthrough: the same
//	        price for FUSE, and neither hashing nor sharing
//	N       a null file system in memory with cafs' INIT flags: messages times
//	        round trip, the floor
//	P       L with kernel passthrough, for information: as root, data do not
//	        come to the daemon
//	native  the ext4 below, for information
//
// Each contestant gets a fresh ext4 image on a loop device in each round, and
// the order rotates: creating files soon after others were removed is many
// times slower on some file systems. Cold means unmounted, caches dropped and
// mounted again, on every side; N, which lives in memory, only loses what the
// kernel cached. Rows that write report the time until the tool returned and
// the time until everything is durable. Rows whose rounds differ too much are
// run again, and not judged if they still do. Needs root.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

type config struct {
	mib, files, names int
	rounds, repeats   int
	tree, only, dir   string
	contestants, bin  string
	svg, scale        string
	json              bool
}

func (c config) parts() []string { return strings.Split(c.contestants, ",") }

func (c config) takesPart(name string) bool { return slices.Contains(c.parts(), name) }

func main() {
	if len(os.Args) == 5 && os.Args[1] == "serve" {
		fail(serve(os.Args[2], os.Args[3], os.Args[4]))
		return
	}
	var c config
	flag.IntVar(&c.mib, "mib", 256, "size of the large file, in MiB")
	flag.IntVar(&c.files, "files", 4000, "how many small files")
	flag.IntVar(&c.names, "names", 20000, "how many files the folder has that is listed")
	flag.IntVar(&c.rounds, "rounds", 5, "how many rounds")
	flag.IntVar(&c.repeats, "repeats", 1, "how often rows whose rounds differ too much are run again")
	flag.StringVar(&c.tree, "tree", "", "the tree to copy (default: Go's own source)")
	flag.StringVar(&c.only, "only", "", "regular expression of the rows to run")
	flag.StringVar(&c.contestants, "contestants", "cafs,L,N,P,native", "who takes part")
	flag.StringVar(&c.bin, "bin", "", "the cafs to measure (default: built from this tree)")
	flag.StringVar(&c.dir, "dir", os.TempDir(), "where the images live")
	flag.StringVar(&c.svg, "svg", "", "also write a chart to this file")
	flag.StringVar(&c.scale, "scale", "", "measure nothing: plot the results of 'go test ./mount/tree -bench Size|Sparse' in this file, to -svg")
	flag.BoolVar(&c.json, "json", false, "print all measurements as JSON instead of tables")
	flag.Parse()
	if c.scale != "" {
		fail(writeScale(c.svg, c.scale))
		return
	}
	fail(run(c))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(c config) (err error) {
	only, err := regexp.Compile(c.only)
	if err != nil {
		return err
	}
	if c.tree == "" {
		out, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			return fmt.Errorf("go env: %w", err)
		}
		c.tree = filepath.Join(strings.TrimSpace(string(out)), "src")
	}
	b, err := newBench(c)
	if err != nil {
		return err
	}
	defer func() {
		if e := os.RemoveAll(b.dir); err == nil {
			err = e
		}
	}()
	all, err := b.all(c.rounds, only)
	if err != nil {
		return err
	}
	for range c.repeats {
		if all, err = b.again(all); err != nil {
			return err
		}
	}
	fmt.Fprintln(os.Stderr)
	if c.svg != "" {
		if err := writeChart(c.svg, c, all); err != nil {
			return err
		}
	}
	if c.json {
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	return report(os.Stdout, c, all)
}

// again runs the rows that cannot be judged once more, all rounds of them, and
// keeps for each row the attempt whose rounds differ less.
func (b *bench) again(all []measurement) ([]measurement, error) {
	var names []string
	for _, r := range rows {
		if spread(r, all) > judged {
			names = append(names, regexp.QuoteMeta(r.name))
		}
	}
	if len(names) == 0 {
		return all, nil
	}
	repeated, err := b.all(b.rounds, regexp.MustCompile("^("+strings.Join(names, "|")+")$"))
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		if old := spread(r, all); old <= judged || spread(r, repeated) >= old {
			continue
		}
		all = slices.DeleteFunc(all, func(m measurement) bool { return m.Row == r.name })
		for _, m := range repeated {
			if m.Row == r.name {
				all = append(all, m)
			}
		}
	}
	return all, nil
}

// quiet runs a command, whose output is only of interest when it fails.
func quiet(cmd *exec.Cmd) error {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = io.Discard, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, out.String())
	}
	return nil
}
