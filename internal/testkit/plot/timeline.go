package plot

import (
	"bytes"
	"fmt"
	"math"
)

// Timeline shows values over time, and the times of events.
type Timeline struct {
	Title, Note string
	Seconds     float64 // its length
	LogY        bool
	Most        float64  // the end of the axis; if zero, a little above the values
	Series      []Series // X in seconds; drawn without dots
	Spans       []Span
	Named       bool // the spans' names are written above them
}

// A Span is the time of an event.
type Span struct {
	Name     string
	From, To float64 // seconds
	Color    int     // an index of the palette
}

const namesHeight = 62 // of spans

func (p Timeline) draw(b *bytes.Buffer, at box) {
	text(b, at.x, at.y+12, 13, ink, "start", "600", p.Title)
	text(b, at.x, at.y+27, 11, faint, "start", "400", p.Note)
	names := 0.0
	for _, s := range p.Series {
		names = max(names, charWidth*0.92*float64(len([]rune(s.Name))))
	}
	frame := box{at.x + axisLeft, at.y + 38, at.width - axisLeft - names - 16, at.height - 38 - axisBottom}
	if p.Named {
		frame.y, frame.height = frame.y+namesHeight, frame.height-namesHeight
	}
	_, ys := Lines{LogY: p.LogY, Series: p.Series}.scales(frame)
	if p.Most > 0 {
		ys.high = p.Most
	}
	xs := scale{low: 0, high: max(p.Seconds, 1), from: frame.x, to: frame.x + frame.width}
	for _, s := range p.Spans {
		from, to := xs.at(s.From), xs.at(min(s.To, xs.high))
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" opacity="0.13"><title>%s</title></rect>`+"\n",
			from, frame.y, max(to-from, 1), frame.height, palette[s.Color%len(palette)], escape(s.Name))
		if p.Named {
			fmt.Fprintf(b, `<text transform="translate(%.1f %.1f) rotate(-90)" font-size="9" fill="%s">%s</text>`+"\n", (from+to)/2+3, frame.y-4, faint, escape(s.Name))
		}
	}
	p.drawAxes(b, frame, xs, ys)
	var ends []end
	for _, s := range p.Series {
		stroke, dash, thick := s.style()
		var path bytes.Buffer
		pen := byte('M')
		for i := range s.X {
			if math.IsNaN(s.Y[i]) {
				pen = 'M'
				continue
			}
			fmt.Fprintf(&path, "%c%.1f %.1f", pen, xs.at(s.X[i]), ys.at(s.Y[i]))
			pen = 'L'
		}
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="%g"%s/>`+"\n", path.String(), stroke, thick*0.7, dash)
		if last := lastValue(s); last >= 0 {
			ends = append(ends, end{s, stroke, ys.at(s.Y[last])})
		}
	}
	drawNames(b, frame, ends)
}

func (p Timeline) drawAxes(b *bytes.Buffer, frame box, xs, ys scale) {
	for _, v := range yTicks(ys) {
		y := ys.at(v)
		fmt.Fprintf(b, `<path d="M%.1f %.1fH%.1f" stroke="%s"/>`+"\n", frame.x, y, frame.x+frame.width, grid)
		text(b, frame.x-6, y+4, 11, faint, "end", "400", Number(v))
	}
	for _, v := range yTicks(xs) {
		text(b, xs.at(v), frame.y+frame.height+15, 11, faint, "middle", "400", Number(v)+" s")
	}
}
