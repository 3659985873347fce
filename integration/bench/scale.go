package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// scaleLine is a result of BenchmarkSize or BenchmarkSparse of mount/tree.
var scaleLine = regexp.MustCompile(`^Benchmark(?:Size|Sparse)/(files|directory|size)=(\d+)/(\w+)-\d+\s+\d+\s+([0-9.]+) ns/op`)

// point is the median cost of an operation at a size.
type point struct {
	size, us float64
}

// readScale takes the medians out of what go test printed: by what the size is
// of, and by operation.
func readScale(r io.Reader) (map[string]map[string][]point, error) {
	all := map[string]map[string]map[float64][]float64{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		m := scaleLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		size, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, err
		}
		ns, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			return nil, err
		}
		if all[m[1]] == nil {
			all[m[1]] = map[string]map[float64][]float64{}
		}
		if all[m[1]][m[3]] == nil {
			all[m[1]][m[3]] = map[float64][]float64{}
		}
		all[m[1]][m[3]][size] = append(all[m[1]][m[3]][size], ns/1000)
	}
	medians := map[string]map[string][]point{}
	for of, ops := range all {
		medians[of] = map[string][]point{}
		for op, sizes := range ops {
			for size, us := range sizes {
				slices.Sort(us)
				medians[of][op] = append(medians[of][op], point{size, us[len(us)/2]})
			}
			slices.SortFunc(medians[of][op], func(a, b point) int { return int(math.Copysign(1, a.size-b.size)) })
		}
	}
	return medians, lines.Err()
}

// Sizes of the plot, in pixels, and the ends of its axis of costs, in
// microseconds; both axes are logarithmic.
const (
	panelWidth, panelHeight = 250, 300
	panelLeft, panelTop     = 60, 50
	panelGap                = 70
	costMin, costMax        = 0.5, 10_000.0
)

// writeScale plots the results in a file of what go test printed.
func writeScale(path, results string) error {
	f, err := os.Open(results)
	if err != nil {
		return err
	}
	defer f.Close()
	medians, err := readScale(f)
	if err != nil {
		return fmt.Errorf("%s: %w", results, err)
	}
	var b strings.Builder
	width, height := panelLeft+3*(panelWidth+panelGap), panelTop+panelHeight+60
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	label(&b, panelLeft, 18, "start", "Microseconds an operation takes in the tree, without the kernel: medians; both axes logarithmic")
	for i, panel := range []struct {
		of, title string
		min, max  float64
	}{{"files", "files in the tree", 1e3, 1e6}, {"directory", "files in one directory", 1e3, 1e6}, {"size", "bytes of a sparse file", 1 << 20, 100 << 30}} {
		if len(medians[panel.of]) == 0 {
			return fmt.Errorf("%s: no results by %s", results, panel.title)
		}
		left := float64(panelLeft + i*(panelWidth+panelGap))
		x := func(size float64) float64 {
			return left + panelWidth*math.Log(size/panel.min)/math.Log(panel.max/panel.min)
		}
		y := func(us float64) float64 {
			return panelTop + panelHeight*(1-math.Log(us/costMin)/math.Log(costMax/costMin))
		}
		for us := 1.0; us <= costMax; us *= 10 {
			fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#ddd"/>`+"\n", left, left+panelWidth, y(us), y(us))
			label(&b, int(left)-6, int(y(us))+4, "end", fmt.Sprintf("%g", us))
		}
		label(&b, int(left)+panelWidth/2, panelTop+panelHeight+40, "middle", panel.title)
		for k, op := range slices.Sorted(maps.Keys(medians[panel.of])) {
			color := []string{"#2f6f9f", "#b8493e", "#4a8f5c"}[k%3]
			var line []string
			for _, p := range medians[panel.of][op] {
				line = append(line, fmt.Sprintf("%.1f,%.1f", x(p.size), y(p.us)))
				fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x(p.size), y(p.us), color)
				label(&b, int(x(p.size)), int(y(p.us))-7, "middle", fmt.Sprintf("%.3g", p.us))
				label(&b, int(x(p.size)), panelTop+panelHeight+18, "middle", short(p.size, panel.of == "size"))
			}
			fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(line, " "), color)
			label(&b, int(left)+4+k*60, panelTop-8, "start", op)
			fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="50" height="3" fill="%s"/>`+"\n", left+4+float64(k*60), panelTop-4, color)
		}
	}
	b.WriteString("</svg>\n")
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// short writes a number with the letter of its thousands.
func short(n float64, bytes bool) string {
	base, units := 1000.0, []string{"", " k", " M"}
	if bytes {
		base, units = 1024, []string{"", " KiB", " MiB", " GiB"}
	}
	k := 0
	for ; n >= base && k+1 < len(units); k++ {
		n /= base
	}
	return fmt.Sprintf("%g%s", n, units[k])
}
