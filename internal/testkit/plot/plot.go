// Package plot draws figures of lines and bars as SVG.
package plot

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strings"
)

// A Figure is a grid of panels under a title.
type Figure struct {
	Title, Subtitle string
	Columns         int // of the grid; at least 1
	PanelHeight     int
	Panels          []Panel
}

// A Panel draws itself into a box.
type Panel interface {
	draw(b *bytes.Buffer, at box)
}

type box struct{ x, y, width, height float64 }

// Class is the style of a series or a bar.
type Class uint8

// Classes.
const (
	Plain   Class = iota // one of many
	Ours                 // the figure's subject
	Ceiling              // a bound, not a contender
	Fit                  // a law, dashed
)

const (
	width  = 960
	margin = 24
	header = 72
	gap    = 28

	ink, faint, grid  = "#1f2933", "#6b7785", "#d9dee4"
	ours, second, dim = "#1d7a46", "#8cc3a3", "#9aa5b1"
)

// palette contains colors for contenders: distinguishable, and different from ours.
var palette = []string{"#3b7db5", "#c62f2f", "#b8860b", "#7b4fa3", "#008b8b", "#d2691e", "#c71585", "#556b2f"}

// SVG returns the figure.
func (f Figure) SVG() []byte {
	columns := max(f.Columns, 1)
	rows := (len(f.Panels) + columns - 1) / columns
	height := header + rows*(f.PanelHeight+gap) + margin - gap
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#ffffff"/>`+"\n", width, height)
	text(&b, margin, 34, 19, ink, "start", "600", f.Title)
	text(&b, margin, 54, 12, faint, "start", "400", f.Subtitle)
	panelWidth := float64(width-2*margin-(columns-1)*gap) / float64(columns)
	for i, p := range f.Panels {
		p.draw(&b, box{
			x: margin + float64(i%columns)*(panelWidth+gap), y: float64(header + i/columns*(f.PanelHeight+gap)),
			width: panelWidth, height: float64(f.PanelHeight),
		})
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func text(b *bytes.Buffer, x, y, size float64, color, anchor, weight, s string) {
	if s != "" {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" font-size="%g" fill="%s" text-anchor="%s" font-weight="%s">%s</text>`+"\n", x, y, size, color, anchor, weight, escape(s))
	}
}

func escape(s string) string { return html.EscapeString(s) }

// Number returns v with two or three significant digits, and k or M for
// thousands and millions.
func Number(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	switch a := math.Abs(v); {
	case a >= 999_500:
		return trim(v/1e6) + " M"
	case a >= 9_995:
		return trim(v/1e3) + " k"
	}
	return trim(v)
}

func trim(v float64) string {
	switch a := math.Abs(v); {
	case a >= 999.5:
		thousands := int(math.Round(v))
		return fmt.Sprintf("%d,%03d", thousands/1000, thousands%1000)
	case a >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case a >= 9.995:
		return withoutZeros(fmt.Sprintf("%.1f", v))
	}
	return withoutZeros(fmt.Sprintf("%.2f", v))
}

func withoutZeros(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") }
