package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// judged is the spread of a row's rounds from which on it says nothing.
	judged = 1.5
	// floor is how many times the time of N a row of names and attributes may take.
	floor = 1.3
)

// summary is what all rounds say of one row and contestant: medians. Times are
// for one unit of the row's amount.
type summary struct {
	rounds            int
	returned, durable float64 // seconds
	spread            float64 // the longest time until the tool returned by the shortest
	requests          float64 // per unit
	cpu               float64 // seconds, for all of the row
	peak, written     int64   // bytes
	sealed            float64 // seconds, for all of the row
	sealedBytes       int64
}

func summarize(row, contestant string, all []measurement) (s summary) {
	var ms []measurement
	for _, m := range all {
		if m.Row == row && m.Contestant == contestant {
			ms = append(ms, m)
		}
	}
	if len(ms) == 0 {
		return s
	}
	s.rounds = len(ms)
	s.returned = median(ms, func(m measurement) float64 { return m.Returned / m.Amount })
	s.durable = median(ms, func(m measurement) float64 { return m.Durable / m.Amount })
	s.requests = median(ms, func(m measurement) float64 { return float64(m.Requests) / m.Amount })
	s.cpu = median(ms, func(m measurement) float64 { return m.CPU })
	s.peak = median(ms, func(m measurement) int64 { return m.Peak })
	s.written = median(ms, func(m measurement) int64 { return m.Written })
	s.sealed = median(ms, func(m measurement) float64 { return m.Sealed })
	s.sealedBytes = median(ms, func(m measurement) int64 { return m.SealedBytes })
	byTime := func(a, b measurement) int { return cmp.Compare(a.Returned, b.Returned) }
	s.spread = slices.MaxFunc(ms, byTime).Returned / slices.MinFunc(ms, byTime).Returned
	return s
}

func median[T cmp.Ordered](ms []measurement, value func(measurement) T) T {
	var vs []T
	for _, m := range ms {
		vs = append(vs, value(m))
	}
	slices.Sort(vs)
	return vs[len(vs)/2]
}

// spread is the greatest of a row's contestants that it is judged by.
func spread(r row, all []measurement) float64 {
	most := 0.0
	for _, name := range []string{product, loopback, null} {
		if name == null && !r.meta || name != product && r.bar == 0 {
			continue
		}
		most = max(most, summarize(r.name, name, all).spread)
	}
	return most
}

// verdict compares a row, by one of its two times, with its bars.
func verdict(r row, all []measurement, seconds func(summary) float64) (toL, toN float64, text string) {
	times := map[string]float64{}
	for _, name := range []string{product, loopback, null} {
		times[name] = seconds(summarize(r.name, name, all))
	}
	if times[product] == 0 {
		return 0, 0, ""
	}
	toL, toN = times[loopback]/times[product], times[null]/times[product]
	switch {
	case r.bar == 0 || toL == 0:
		return toL, toN, ""
	case spread(r, all) > judged:
		return toL, toN, "not judged"
	case toL < r.bar:
		return toL, toN, "below"
	case r.meta && toN > 0 && toN < 1/floor:
		return toL, toN, "below N"
	}
	return toL, toN, "reached"
}

// report prints what was measured as tables of Markdown.
func report(w io.Writer, c config, all []measurement) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "%s, %s. %d MiB, %d files, %d names, tree %s, medians of %d rounds.\n\n",
		time.Now().Format(time.DateOnly), machine(), c.mib, c.files, c.names, c.tree, c.rounds)
	times(out, c, all)
	fmt.Fprintln(out)
	costs(out, c, all)
	return out.Flush()
}

// times prints how fast everybody was; d is the time until everything is durable.
func times(w io.Writer, c config, all []measurement) {
	fmt.Fprintf(w, "| row | unit | %s | by L | bar | by N | |\n", strings.Join(c.parts(), " | "))
	fmt.Fprintf(w, "|---|---|%s---|---|---|---|\n", strings.Repeat("---|", len(c.parts())))
	for _, r := range rows {
		if summarize(r.name, c.parts()[0], all).rounds == 0 {
			continue
		}
		line := func(name string, seconds func(summary) float64) {
			fmt.Fprintf(w, "| %s | %s |", name, r.unit)
			for _, part := range c.parts() {
				s := summarize(r.name, part, all)
				mark := ""
				if s.spread > judged {
					mark = "~"
				}
				fmt.Fprintf(w, " %s%s |", mark, value(r.unit, seconds(s)))
			}
			toL, toN, text := verdict(r, all, seconds)
			fmt.Fprintf(w, " %s | %s | %s | %s |\n", ratio(toL), ratio(r.bar), ratio(toN), text)
		}
		line(r.name, func(s summary) float64 { return s.returned })
		if r.writes {
			line(r.name+", durable", func(s summary) float64 { return s.durable })
		}
	}
}

// costs prints what everybody needed for it.
func costs(w io.Writer, c config, all []measurement) {
	var parts []string
	for _, part := range c.parts() {
		if part != native {
			parts = append(parts, part)
		}
	}
	fmt.Fprint(w, "| row |")
	for _, what := range []string{"requests", "CPU s", "peak MiB"} {
		for _, part := range parts {
			fmt.Fprintf(w, " %s %s |", what, part)
		}
	}
	for _, part := range c.parts() {
		fmt.Fprintf(w, " written MiB %s |", part)
	}
	fmt.Fprintf(w, " sealed s | MiB |\n|---|%s---|---|\n", strings.Repeat("---|", 3*len(parts)+len(c.parts())))
	for _, r := range rows {
		if summarize(r.name, c.parts()[0], all).rounds == 0 {
			continue
		}
		fmt.Fprintf(w, "| %s |", r.name)
		for _, part := range parts {
			fmt.Fprintf(w, " %.4g |", summarize(r.name, part, all).requests)
		}
		for _, part := range parts {
			fmt.Fprintf(w, " %.2f |", summarize(r.name, part, all).cpu)
		}
		for _, part := range parts {
			fmt.Fprintf(w, " %d |", summarize(r.name, part, all).peak>>20)
		}
		for _, part := range c.parts() {
			fmt.Fprintf(w, " %d |", summarize(r.name, part, all).written>>20)
		}
		if s := summarize(r.name, product, all); s.sealed > 0 {
			fmt.Fprintf(w, " %.2f | %d |\n", s.sealed, s.sealedBytes>>20)
		} else {
			fmt.Fprintln(w, " | |")
		}
	}
}

func ratio(x float64) string {
	if x == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", x)
}

// value shows the seconds of one in the unit of a row.
func value(unit string, sec float64) string {
	switch {
	case sec == 0:
		return ""
	case unit == timeMs:
		return fmt.Sprintf("%.2f", sec*1000)
	case unit == timeSec:
		return fmt.Sprintf("%.2f", sec)
	}
	return fmt.Sprintf("%.0f", 1/sec)
}

// machine describes where this runs.
func machine() string {
	var u unix.Utsname
	kernel := "unknown"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	cpus, model := 0, "unknown"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(b)) {
			if name, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpus, model = cpus+1, strings.TrimSpace(v)
			}
		}
	}
	var info unix.Sysinfo_t
	memory := uint64(0)
	if unix.Sysinfo(&info) == nil {
		memory = info.Totalram * uint64(info.Unit) >> 30
	}
	return fmt.Sprintf("Linux %s, %d x %s, %d GiB", kernel, cpus, model, memory)
}
