package plot

import (
	"bytes"
	"fmt"
)

// Bars compares things by length, the first on top.
type Bars struct {
	Title string
	Bars  []Bar

	// Format returns the text at a bar's end. If nil, the text is its total, by Number.
	Format func(Bar) string
}

// A Bar is one thing. Its parts follow each other.
type Bar struct {
	Name  string
	Class Class
	Parts []float64
}

// style returns the weight of the text and the colors of the parts.
func (b Bar) style() (weight string, colors []string) {
	switch b.Class {
	case Ours:
		return "600", []string{ours, second}
	case Ceiling:
		return "400", []string{dim, grid}
	default:
		return "400", []string{palette[0], "#b7d3ea"}
	}
}

// Total returns the sum of the parts.
func (b Bar) Total() float64 {
	sum := 0.0
	for _, part := range b.Parts {
		sum += part
	}
	return sum
}

const (
	labelSize = 12
	charWidth = 6.3 // of labels, about
)

func (p Bars) draw(b *bytes.Buffer, at box) {
	text(b, at.x, at.y+12, 13, ink, "start", "600", p.Title)
	longest, names := 0.0, 0.0
	for _, bar := range p.Bars {
		longest = max(longest, bar.Total())
		names = max(names, charWidth*float64(len([]rune(bar.Name))))
	}
	left := at.x + names + 8
	room := at.x + at.width - left - 64 // for the text at the end
	step := min(24, (at.height-24)/float64(max(len(p.Bars), 1)))
	thick := step * 0.66
	for i, bar := range p.Bars {
		y := at.y + 24 + float64(i)*step
		weight, colors := bar.style()
		text(b, left-8, y+thick-2, labelSize, ink, "end", weight, bar.Name)
		x := left
		for j, part := range bar.Parts {
			length := 0.0
			if longest > 0 {
				length = room * part / longest
			}
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, length, thick, colors[j%len(colors)])
			x += length
		}
		label := Number(bar.Total())
		if p.Format != nil {
			label = p.Format(bar)
		}
		text(b, x+6, y+thick-2, labelSize, faint, "start", weight, label)
	}
}
