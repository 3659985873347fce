package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"
)

// measurement is what one row was for one contestant in one round.
type measurement struct {
	Row        string  `json:"row"`
	Contestant string  `json:"contestant"`
	Round      int     `json:"round"`
	Amount     float64 `json:"amount"`   // of what the row counts: MiB, operations, runs
	Returned   float64 `json:"returned"` // seconds until the tool returned
	Durable    float64 `json:"durable"`  // seconds until all is on disk; 0 for rows that only read
	Requests   int64   `json:"requests"` // from the kernel, until the tool returned
	CPU        float64 `json:"cpu"`      // seconds of the daemon, until durable
	Peak       int64   `json:"peak"`     // bytes the daemon had resident at most during the row
	Written    int64   `json:"written"`  // bytes that reached the device, until durable
	// Sealed and SealedBytes, of cafs: seconds until everything had a CID, and
	// what had been written by then. Only of rows that are measured for it.
	Sealed      float64 `json:"sealed,omitempty"`
	SealedBytes int64   `json:"sealed_bytes,omitempty"`
}

// bench is a run of the command.
type bench struct {
	config
	dir      string // for images and mounts
	bin      string // cafs
	progress func(round int, contestant, row string)
}

// all runs the rows that match, each contestant in turn.
func (b *bench) all(rounds int, only *regexp.Regexp) (all []measurement, err error) {
	names := b.parts()
	for round := range rounds {
		for i := range names {
			name := names[(i+round)%len(names)]
			got, err := b.measure(round, name, only)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, got...)
		}
		for _, r := range rows {
			if !r.seals || !only.MatchString(r.name) || !b.takesPart(product) {
				continue
			}
			sealed, written, err := b.sealed(round, r)
			if err != nil {
				return nil, fmt.Errorf("sealed: %w", err)
			}
			for i := range all {
				if m := &all[i]; m.Round == round && m.Row == r.name && m.Contestant == product {
					m.Sealed, m.SealedBytes = sealed, written
				}
			}
		}
	}
	return all, nil
}

// on runs f with a contestant on a fresh image.
func (b *bench) on(name string, f func(*contestant) error) (err error) {
	img, err := newImage(filepath.Join(b.dir, "image"), int64(b.mib)*6+8192)
	if err != nil {
		return err
	}
	defer img.remove(&err)
	k, err := newContestant(name, b.dir, b.bin, img)
	if err != nil {
		return err
	}
	defer k.stop(&err)
	return f(k)
}

// measure runs the rows that match, and those that they need, for one contestant.
func (b *bench) measure(round int, name string, only *regexp.Regexp) (got []measurement, err error) {
	return got, b.on(name, func(k *contestant) error {
		e := &env{config: b.config, root: k.root()}
		run, show := wanted(only)
		for _, r := range rows {
			if !run[r.name] {
				continue
			}
			b.progress(round, name, r.name)
			m, err := k.row(e, r)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			if m.Round = round; show[r.name] {
				got = append(got, m)
			}
		}
		return nil
	})
}

// row measures one row.
func (k *contestant) row(e *env, r row) (m measurement, err error) {
	if r.prepare != nil {
		if err := r.prepare(e); err != nil {
			return m, err
		}
	}
	if r.cold {
		if err := k.cold(); err != nil {
			return m, fmt.Errorf("cold: %w", err)
		}
	}
	m = measurement{Row: r.name, Contestant: k.name}
	if err := k.resetPeak(); err != nil {
		return m, err
	}
	cpu, written, requests := k.cpu(), k.img.written(), k.requests()
	start := time.Now()
	if m.Amount, err = r.run(e); err != nil {
		return m, err
	}
	m.Returned = time.Since(start).Seconds()
	m.Requests = k.requests() - requests
	asked := time.Since(start).Seconds() - m.Returned
	if err := k.durable(); err != nil {
		return m, fmt.Errorf("durable: %w", err)
	}
	if r.writes {
		m.Durable = time.Since(start).Seconds() - asked
	}
	m.CPU, m.Written, m.Peak = k.cpu()-cpu, k.img.written()-written, k.peak()
	return m, nil
}

// sealed measures how long it takes until what a row writes on an empty mount
// has a CID, and how many bytes are written until then.
func (b *bench) sealed(round int, r row) (seconds float64, written int64, err error) {
	b.progress(round, product, r.name+", sealed")
	return seconds, written, b.on(product, func(k *contestant) error {
		e := &env{config: b.config, root: k.root()}
		before, start := k.img.written(), time.Now()
		if _, err := r.run(e); err != nil {
			return err
		}
		if err := quiet(exec.Command(b.bin, "cid", k.root())); err != nil {
			return err
		}
		err := k.durable()
		seconds, written = time.Since(start).Seconds(), k.img.written()-before
		return err
	})
}

// build makes the binary of this tree.
func (b *bench) build() error {
	b.bin = b.config.bin
	if b.bin != "" {
		return nil
	}
	b.bin = filepath.Join(b.dir, "cafs")
	if out, err := exec.Command("go", "build", "-o", b.bin, "cafs/cmd/cafs").CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// newBench makes a folder for a run; the caller removes it.
func newBench(c config) (*bench, error) {
	dir, err := os.MkdirTemp(c.dir, "cafs-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{config: c, dir: dir, progress: func(round int, contestant, row string) {
		fmt.Fprintf(os.Stderr, "\r\x1b[Kround %d of %d, %s: %s", round+1, c.rounds, contestant, row)
	}}
	if err := b.build(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return b, nil
}
