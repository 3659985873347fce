package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// judged is the spread of a row's rounds from which on it says nothing.
const judged = 1.5

// report prints a table: for each row and contestant the median, in the unit
// of the row, with the ratio of cafs to L and to N. A row whose rounds differ
// by more than 1.5 times is marked with "~" and must be run again.
func report(w io.Writer, c config, names []string, all []measurement) error {
	fmt.Fprintf(w, "%s, %d MiB, %d files, %d rounds, tree %s. Medians; r: until the tool returned, d: until durable.\n",
		time.Now().Format(time.DateOnly), c.mib, c.files, c.rounds, c.tree)
	fmt.Fprintf(w, "Ratios are cafs against L and N, above 1 is faster; ~: rounds differ by more than %v times.\n\n", judged)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "row\tunit\t")
	for _, name := range names {
		fmt.Fprintf(t, "%s\t", name)
	}
	fmt.Fprintln(t, "/L\t/N\tCPU s\tMiB to disk\t")
	for _, r := range append(slices.Clone(rows), row{name: "sealed", unit: timeSec, writes: true}) {
		line(t, r, "r", names, all, func(m measurement) float64 { return m.Returned })
		if r.writes {
			line(t, r, "d", names, all, func(m measurement) float64 { return m.Durable })
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, name := range names {
		peak := int64(0)
		for _, m := range all {
			if m.Contestant == name {
				peak = max(peak, m.Peak)
			}
		}
		if peak > 0 {
			fmt.Fprintf(w, "peak memory of %s: %d MiB\n", name, peak>>20)
		}
	}
	return nil
}

// line prints one row, for one of its two times.
func line(w io.Writer, r row, which string, names []string, all []measurement, seconds func(measurement) float64) {
	medians := map[string]float64{} // seconds per unit of the amount
	var cells []string
	for _, name := range names {
		var times []float64
		for _, m := range all {
			if m.Row == r.name && m.Contestant == name {
				times = append(times, seconds(m)/m.Amount)
			}
		}
		if len(times) == 0 {
			cells = append(cells, "")
			continue
		}
		slices.Sort(times)
		mid := times[len(times)/2]
		medians[name] = mid
		mark := ""
		if times[len(times)-1] > judged*times[0] {
			mark = "~"
		}
		cells = append(cells, mark+value(r.unit, mid))
	}
	if len(medians) == 0 {
		return
	}
	fmt.Fprintf(w, "%s\t%s %s\t", r.name, r.unit, which)
	for _, cell := range cells {
		fmt.Fprintf(w, "%s\t", cell)
	}
	for _, other := range []string{"L", "N"} {
		if medians[other] > 0 && medians["cafs"] > 0 {
			fmt.Fprintf(w, "%.2f\t", medians[other]/medians["cafs"])
		} else {
			fmt.Fprint(w, "\t")
		}
	}
	cpu, written := cost(r.name, all)
	fmt.Fprintf(w, "%.2f\t%d\t\n", cpu, written>>20)
}

// value shows the seconds of one in the unit of a row.
func value(unit string, sec float64) string {
	switch unit {
	case timeMs:
		return fmt.Sprintf("%.2f", sec*1000)
	case timeSec:
		return fmt.Sprintf("%.2f", sec)
	}
	return fmt.Sprintf("%.0f", 1/sec)
}

// cost returns the median CPU seconds of cafs for a row, and the bytes it
// wrote to the device.
func cost(row string, all []measurement) (cpu float64, written int64) {
	var cpus []float64
	var bytes []int64
	for _, m := range all {
		if m.Row == row && m.Contestant == "cafs" {
			cpus, bytes = append(cpus, m.CPU), append(bytes, m.Written)
		}
	}
	if len(cpus) == 0 {
		return 0, 0
	}
	slices.Sort(cpus)
	slices.Sort(bytes)
	return cpus[len(cpus)/2], bytes[len(bytes)/2]
}
