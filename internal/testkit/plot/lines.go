package plot

import (
	"bytes"
	"fmt"
	"math"
	"slices"
)

// Lines shows how values grow along a logarithmic axis.
type Lines struct {
	Title, Note string // Note is a second line, smaller
	XLabel      string
	LogY        bool
	Series      []Series
}

// A Series is one line. Its name is at its end.
type Series struct {
	Name  string
	Class Class
	Color int       // of a Plain one: an index of the palette
	X, Y  []float64 // a NaN of Y leaves a gap
}

const (
	axisLeft   = 44
	axisBottom = 34
	legendGap  = 13
)

func (p Lines) draw(b *bytes.Buffer, at box) {
	text(b, at.x, at.y+12, 13, ink, "start", "600", p.Title)
	text(b, at.x, at.y+27, 11, faint, "start", "400", p.Note)
	names := 0.0
	for _, s := range p.Series {
		names = max(names, charWidth*0.92*float64(len([]rune(s.Name))))
	}
	if names > 0 {
		names += 10
	}
	frame := box{at.x + axisLeft, at.y + 38, at.width - axisLeft - names - 6, at.height - 38 - axisBottom}
	xs, ys := p.scales(frame)
	p.drawAxes(b, frame, xs, ys)
	var ends []end
	for _, s := range p.Series {
		stroke, dash, thick := s.style()
		drawSeries(b, s, xs, ys, stroke, dash, thick)
		if last := lastValue(s); last >= 0 && s.Name != "" {
			ends = append(ends, end{s, stroke, ys.at(s.Y[last])})
		}
	}
	drawNames(b, frame, ends)
}

func (s Series) style() (stroke, dash string, thick float64) {
	switch s.Class {
	case Ours:
		return ours, "", 2.6
	case Ceiling:
		return dim, ` stroke-dasharray="5 3"`, 1.4
	case Fit:
		return faint, ` stroke-dasharray="2 3"`, 1.2
	default:
		return palette[s.Color%len(palette)], "", 1.4
	}
}

func drawSeries(b *bytes.Buffer, s Series, xs, ys scale, stroke, dash string, thick float64) {
	var path bytes.Buffer
	pen := byte('M')
	for i := range s.X {
		if math.IsNaN(s.Y[i]) {
			pen = 'M'
			continue
		}
		x, y := xs.at(s.X[i]), ys.at(s.Y[i])
		fmt.Fprintf(&path, "%c%.1f %.1f", pen, x, y)
		pen = 'L'
		if s.Class != Fit {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s"/>`+"\n", x, y, thick+0.6, stroke)
		}
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="%g"%s/>`+"\n", path.String(), stroke, thick, dash)
}

func lastValue(s Series) int {
	for i := len(s.Y) - 1; i >= 0; i-- {
		if !math.IsNaN(s.Y[i]) {
			return i
		}
	}
	return -1
}

// An end is the end of a line, next to its name.
type end struct {
	series Series
	color  string
	y      float64
}

// drawNames writes the lines' names next to their ends, in the same order, far enough apart to
// be read.
func drawNames(b *bytes.Buffer, frame box, ends []end) {
	slices.SortStableFunc(ends, func(a, o end) int {
		if a.y < o.y {
			return -1
		}
		return 1
	})
	top := frame.y
	for i := range ends {
		ends[i].y = max(ends[i].y, top)
		top = ends[i].y + legendGap
	}
	bottom := frame.y + frame.height + legendGap
	for i := len(ends) - 1; i >= 0; i-- {
		ends[i].y = min(ends[i].y, bottom)
		bottom = ends[i].y - legendGap
	}
	for _, e := range ends {
		weight := "400"
		if e.series.Class == Ours {
			weight = "600"
		}
		text(b, frame.x+frame.width+10, e.y+4, 11, e.color, "start", weight, e.series.Name)
	}
}

// A scale maps values to positions.
type scale struct {
	low, high float64 // values
	from, to  float64 // positions
	log       bool
}

func (s scale) at(v float64) float64 {
	low, high := s.low, s.high
	if s.log {
		v, low, high = math.Log(v), math.Log(low), math.Log(high)
	}
	if high == low {
		return s.from
	}
	return s.from + (s.to-s.from)*(v-low)/(high-low)
}

// scales returns scales that contain every point.
func (p Lines) scales(frame box) (xs, ys scale) {
	xs = scale{low: math.Inf(1), high: math.Inf(-1), from: frame.x, to: frame.x + frame.width, log: true}
	ys = scale{low: math.Inf(1), high: math.Inf(-1), from: frame.y + frame.height, to: frame.y, log: p.LogY}
	for _, s := range p.Series {
		for i := range s.X {
			if math.IsNaN(s.Y[i]) {
				continue
			}
			xs.low, xs.high = min(xs.low, s.X[i]), max(xs.high, s.X[i])
			ys.low, ys.high = min(ys.low, s.Y[i]), max(ys.high, s.Y[i])
		}
	}
	if math.IsInf(xs.low, 1) { // no point at all
		xs.low, xs.high, ys.low, ys.high = 1, 10, 1, 10
	}
	if p.LogY {
		ys.low, ys.high = round125(ys.low*1.001, -1), round125(ys.high*0.999, 1)
		if ys.high < 4*ys.low { // otherwise noise looks like growth
			ys.low, ys.high = round125(ys.low/2, -1), round125(ys.high*2, 1)
		}
	} else {
		ys.low, ys.high = 0, ys.high*1.05
	}
	return xs, ys
}

func (p Lines) drawAxes(b *bytes.Buffer, frame box, xs, ys scale) {
	bottom := frame.y + frame.height
	for _, v := range yTicks(ys) {
		y := ys.at(v)
		fmt.Fprintf(b, `<path d="M%.1f %.1fH%.1f" stroke="%s"/>`+"\n", frame.x, y, frame.x+frame.width, grid)
		text(b, frame.x-6, y+4, 11, faint, "end", "400", Number(v))
	}
	last := math.Inf(-1)
	for _, v := range p.xTicks() {
		x := xs.at(v)
		if x-last < 34 {
			continue
		}
		last = x
		text(b, x, bottom+15, 11, faint, "middle", "400", Number(v))
	}
	text(b, frame.x+frame.width/2, bottom+30, 11, faint, "middle", "400", p.XLabel)
}

// xTicks returns the measured values.
func (p Lines) xTicks() []float64 {
	var all []float64
	for _, s := range p.Series {
		if s.Class != Fit {
			all = append(all, s.X...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// round125 returns the next number below v, or above it if direction is 1, of the form 1, 2 or
// 5 times a power of ten.
func round125(v float64, direction int) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	steps := []float64{1, 2, 5, 10}
	for i, step := range steps {
		if v < step*power {
			if direction > 0 {
				return step * power
			}
			return steps[i-1] * power
		}
	}
	return v
}

func yTicks(s scale) []float64 {
	var ticks []float64
	if s.log {
		// Every decade or, if there are fewer than two, the results of round125.
		fine := s.high/s.low < 100
		for v := s.low; v <= s.high*1.001; v = round125(v*1.001, 1) {
			if isPower := math.Abs(math.Log10(v)-math.Round(math.Log10(v))) < 0.01; fine || isPower {
				ticks = append(ticks, v)
			}
		}
		return ticks
	}
	step := math.Pow(10, math.Floor(math.Log10(s.high/4)))
	for _, factor := range []float64{5, 2} {
		if s.high/(step*factor) >= 3 {
			step *= factor
			break
		}
	}
	for v := 0.0; v <= s.high; v += step {
		ticks = append(ticks, v)
	}
	return ticks
}
