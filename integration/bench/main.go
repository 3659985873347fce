// Command bench compares cafs with what it must beat, on this machine and in
// one run:
//
//	cafs    the binary of this tree
//	L       go-fuse's fs.NewLoopbackRoot without kernel passthrough: the same
//	        price for FUSE, and neither hashing nor sharing
//	N       a null file system in memory with cafs' INIT flags: messages times
//	        round trip, the floor
//	native  the ext4 below, for information
//
// Each contestant gets a fresh ext4 image on a loop device in each round, and
// the order rotates: creating files soon after others were removed is many
// times slower on some file systems. Cold means unmounted, caches dropped and
// mounted again, on every side; N, which lives in memory, only loses what the
// kernel cached. Rows that write report the time until the tool returned and
// the time until everything is durable. Needs root.
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
	"strings"
	"time"
)

type config struct {
	mib, files, rounds int
	tree, only, dir    string
	contestants        string
	json               bool
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == "serve" {
		fail(serve(os.Args[2], os.Args[3]))
		return
	}
	var c config
	flag.IntVar(&c.mib, "mib", 256, "size of the large file, in MiB")
	flag.IntVar(&c.files, "files", 4000, "how many small files")
	flag.IntVar(&c.rounds, "rounds", 5, "how many rounds")
	flag.StringVar(&c.tree, "tree", "", "the tree to copy (default: Go's own source)")
	flag.StringVar(&c.only, "only", "", "regular expression of the rows to run")
	flag.StringVar(&c.contestants, "contestants", "cafs,L,N,native", "who takes part")
	flag.StringVar(&c.dir, "dir", os.TempDir(), "where the images live")
	flag.BoolVar(&c.json, "json", false, "print all measurements as JSON")
	flag.Parse()
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
	dir, err := os.MkdirTemp(c.dir, "cafs-bench-")
	if err != nil {
		return err
	}
	defer func() {
		if e := os.RemoveAll(dir); err == nil {
			err = e
		}
	}()
	bin := filepath.Join(dir, "cafs")
	if out, err := exec.Command("go", "build", "-o", bin, "cafs/cmd/cafs").CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	names := strings.Split(c.contestants, ",")
	var all []measurement
	for round := range c.rounds {
		for i := range names {
			name := names[(i+round)%len(names)]
			progress := func(row string) {
				fmt.Fprintf(os.Stderr, "\rround %d of %d, %s: %-30s", round+1, c.rounds, name, row)
			}
			got, err := measure(c, dir, bin, name, only, progress)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			for _, m := range got {
				m.Round = round
				all = append(all, m)
			}
		}
	}
	fmt.Fprintln(os.Stderr)
	if c.json {
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	return report(os.Stdout, c, names, all)
}

// measurement is what one row was for one contestant in one round.
type measurement struct {
	Row, Contestant string
	Round           int
	Amount          float64 // of what the row counts: MiB, operations, runs
	Returned        float64 // seconds until the tool returned
	Durable         float64 // seconds until all is on disk; 0 for rows that only read
	CPU             float64 // seconds of the daemon
	Peak            int64   // bytes the daemon had resident at most, so far
	Written         int64   // bytes that reached the device
}

// measure runs all rows for one contestant on a fresh image.
func measure(c config, dir, bin, name string, only *regexp.Regexp, progress func(string)) (got []measurement, err error) {
	img, err := newImage(filepath.Join(dir, "image"), int64(c.mib)*6+8192)
	if err != nil {
		return nil, err
	}
	defer img.remove(&err)
	k, err := newContestant(name, dir, bin, img)
	if err != nil {
		return nil, err
	}
	defer k.stop(&err)
	e := &env{config: c, root: k.root()}
	for _, r := range rows {
		if r.name != "" && !only.MatchString(r.name) && !r.always {
			continue
		}
		progress(r.name)
		if r.cold {
			if err := k.cold(); err != nil {
				return got, fmt.Errorf("cold: %w", err)
			}
		}
		m := measurement{Row: r.name, Contestant: name}
		cpu, written := k.cpu(), img.written()
		start := time.Now()
		if m.Amount, err = r.run(e); err != nil {
			return got, fmt.Errorf("%s: %w", r.name, err)
		}
		m.Returned = time.Since(start).Seconds()
		if err := k.durable(); err != nil {
			return got, fmt.Errorf("durable: %w", err)
		}
		if r.writes {
			m.Durable = time.Since(start).Seconds()
		}
		m.CPU, m.Written, m.Peak = k.cpu()-cpu, img.written()-written, k.peak()
		if r.name != "" && only.MatchString(r.name) {
			got = append(got, m)
		}
	}
	if name == "cafs" && only.MatchString("sealed") {
		m, err := sealed(k, img)
		if err != nil {
			return got, err
		}
		got = append(got, m)
	}
	return got, nil
}

// sealed measures how long it takes until all that is on the mount has a CID.
func sealed(k *contestant, img *image) (measurement, error) {
	m := measurement{Row: "sealed", Contestant: "cafs", Amount: 1}
	cpu, written := k.cpu(), img.written()
	start := time.Now()
	if err := quiet(exec.Command(k.bin, "cid", k.root())); err != nil {
		return m, err
	}
	m.Returned = time.Since(start).Seconds()
	if err := k.durable(); err != nil {
		return m, err
	}
	m.Durable = time.Since(start).Seconds()
	m.CPU, m.Written, m.Peak = k.cpu()-cpu, img.written()-written, k.peak()
	return m, nil
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
