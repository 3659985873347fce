package main

import (
	"fmt"
	"math"
	"os"
	"strings"
	"time"
)

// Sizes of the chart, in pixels.
const (
	chartLeft, chartWidth, chartRight = 220, 560, 60
	chartTop, chartRow                = 70, 22
	chartMin, chartMax                = 0.25, 32 // ratios; the scale is logarithmic
)

// writeChart draws, for each row, how many times faster than L cafs was: a bar
// from 1, light for the time until the tool returned and dark until durable,
// with a line where the goal is.
func writeChart(path string, c config, all []measurement) error {
	var b strings.Builder
	y := chartTop
	for _, r := range rows {
		toL, _, text := verdict(r, all, func(s summary) float64 { return s.returned })
		if toL == 0 {
			continue
		}
		durable, _, alsoText := verdict(r, all, func(s summary) float64 { return s.durable })
		color := "#4a8f5c"
		switch {
		case text == "not judged" || text == "":
			color = "#999999"
		case text != "reached" || r.writes && alsoText != "reached":
			color = "#b8493e"
		}
		label(&b, chartLeft-8, y+14, "end", r.name)
		barFrom1(&b, y+3, 16, toL, color, 0.55)
		shown := toL
		if r.writes && durable > 0 {
			barFrom1(&b, y+8, 6, durable, color, 1)
			shown = min(toL, durable)
		}
		if r.bar > 0 {
			fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#111" stroke-width="2"/>`+"\n", at(r.bar), at(r.bar), y+1, y+21)
		}
		label(&b, chartLeft+chartWidth+8, y+14, "start", fmt.Sprintf("%.2f", shown))
		y += chartRow
	}
	var out strings.Builder
	width, height := chartLeft+chartWidth+chartRight, y+30
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	label(&out, chartLeft, 20, "start", "How many times faster than go-fuse's loopback; black: the goal; inner bar: until durable")
	label(&out, chartLeft, 38, "start", fmt.Sprintf("%s, %s, %d rounds", time.Now().Format(time.DateOnly), machine(), c.rounds))
	for x := chartMin; x <= chartMax; x *= 2 {
		fmt.Fprintf(&out, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s"/>`+"\n", at(x), at(x), chartTop-6, y+4, map[bool]string{true: "#444", false: "#ddd"}[x == 1])
		label(&out, int(at(x)), chartTop-10, "middle", fmt.Sprintf("%g", x))
	}
	out.WriteString(b.String())
	out.WriteString("</svg>\n")
	return os.WriteFile(path, []byte(out.String()), 0o644)
}

// at is the place of a ratio on the scale.
func at(ratio float64) float64 {
	ratio = min(max(ratio, chartMin), chartMax)
	return chartLeft + chartWidth*math.Log(ratio/chartMin)/math.Log(float64(chartMax)/chartMin)
}

func barFrom1(b *strings.Builder, y, height int, ratio float64, color string, opacity float64) {
	from, to := at(1), at(ratio)
	fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" fill-opacity="%g"/>`+"\n",
		min(from, to), y, math.Abs(to-from), height, color, opacity)
}

func label(b *strings.Builder, x, y int, anchor, text string) {
	text = strings.NewReplacer("&", "&amp;", "<", "&lt;").Replace(text)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="%s">%s</text>`+"\n", x, y, anchor, text)
}
