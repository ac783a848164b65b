// Package draw draws figures as SVG, by gonum's plot, on white: they are read in a dark page,
// too.
package draw

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/weir-go/weir/internal/testkit/figure"
)

const (
	width, header, margin = 960 * px, 64 * px, 16 * px
	px                    = vg.Inch / 96
)

var (
	ink, faint, grid = color.RGBA{31, 41, 51, 255}, color.RGBA{107, 119, 133, 255}, color.RGBA{217, 222, 228, 255}

	// palette contains colors for contenders, which the other classes do not have.
	palette = []color.RGBA{
		{59, 125, 181, 255}, {198, 47, 47, 255}, {184, 134, 11, 255}, {123, 79, 163, 255},
		{0, 139, 139, 255}, {210, 105, 30, 255}, {199, 21, 133, 255}, {85, 107, 47, 255},
	}
	classes = map[figure.Class]color.RGBA{figure.Plain: {}, figure.Ours: {29, 122, 70, 255}, figure.Ceiling: {154, 165, 177, 255}, figure.Fit: faint}
)

func init() {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	plotter.DefaultFont = plot.DefaultFont
}

func colorOf(c figure.Class, index int) color.RGBA {
	if c == figure.Plain {
		return palette[index%len(palette)]
	}
	return classes[c]
}

func pale(c color.RGBA) color.RGBA {
	return color.RGBA{c.R/2 + 128, c.G/2 + 128, c.B/2 + 128, 255}
}

// SVG returns f as SVG. It panics if a value of f can't be drawn, such as zero on a logarithmic
// axis.
func SVG(f figure.Figure) []byte {
	columns := max(f.Columns, 1)
	rows := (len(f.Panels) + columns - 1) / columns
	height := header + margin + vg.Length(rows*(f.PanelHeight+20))*px
	svg := vgsvg.New(width, height)
	canvas := draw.New(svg)
	canvas.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	write := func(size, down vg.Length, c color.Color, s string) {
		style := plot.New().Title.TextStyle
		style.Font.Size, style.Color, style.XAlign = size, c, draw.XLeft
		canvas.FillText(style, vg.Point{X: margin, Y: height - down}, s)
	}
	write(15, 10*px, ink, f.Title)
	write(9, 36*px, faint, f.Subtitle)
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadTop: header, PadBottom: margin, PadLeft: margin, PadRight: margin, PadX: 20 * px, PadY: 20 * px}
	for i, p := range f.Panels {
		place := tiles.At(canvas, i%columns, i/columns)
		if len(p.Bars) > 0 {
			bars(p).Draw(place)
			continue
		}
		lines, legend := lines(p)
		space := legend.Rectangle(place).Size().X
		lines.Draw(draw.Crop(place, 0, -space-6*px, 0, 0))
		legend.Draw(draw.Crop(place, place.Max.X-place.Min.X-space, 0, 0, -30*px))
	}
	var b bytes.Buffer
	_, _ = svg.WriteTo(&b) // memory does not fail
	return bytes.ReplaceAll(b.Bytes(), []byte("Liberation Sans"), []byte("Helvetica,Arial,sans-serif"))
}

func newPlot(title, note string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	if note != "" {
		p.Title.Text += "\n" + note
	}
	p.Title.TextStyle.Font.Size, p.Title.Padding = 10, 4
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font.Size, axis.Tick.Label.Font.Size = 9, 8
		axis.Tick.Label.Color, axis.Color, axis.Tick.Color = faint, grid, grid
		axis.Tick.Marker = ticks(plot.DefaultTicks{})
	}
	p.Legend.TextStyle.Font.Size, p.Legend.Top, p.Legend.Left = 8, true, true
	p.Legend.Padding = 3
	return p
}

// ticks writes the labels of t by Number.
func ticks(t plot.Ticker) plot.Ticker {
	return plot.TickerFunc(func(low, high float64) []plot.Tick {
		labeled := t.Ticks(low, high)
		for i := range labeled {
			if labeled[i].Label != "" {
				labeled[i].Label = Number(labeled[i].Value)
			}
		}
		return labeled
	})
}

// lines returns the plot of a panel of lines, and its legend, for the space at its right.
func lines(p figure.Panel) (*plot.Plot, plot.Legend) {
	l := newPlot(p.Title, p.Note)
	l.X.Label.Text = p.XLabel
	l.Add(&plotter.Grid{Horizontal: draw.LineStyle{Color: grid, Width: 0.5}})
	var xs []plot.Tick
	for _, s := range p.Series {
		var points plotter.XYs
		for i, y := range s.Y {
			if !math.IsNaN(y) {
				points = append(points, plotter.XY{X: s.X[i], Y: y})
				if s.Class != figure.Fit {
					xs = append(xs, plot.Tick{Value: s.X[i], Label: Number(s.X[i])})
				}
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots := must2(plotter.NewLinePoints(points))
		line.Color, line.Width = colorOf(s.Class, s.Color), 1
		dots.Shape, dots.Color, dots.Radius = draw.CircleGlyph{}, line.Color, 2
		switch s.Class {
		case figure.Ours:
			line.Width = 2
		case figure.Plain:
		case figure.Ceiling, figure.Fit:
			line.Dashes = []vg.Length{4, 3}
		}
		var thumb plot.Thumbnailer = line
		if s.Loose {
			thumb = dots
		} else {
			l.Add(line)
		}
		if s.Dots || s.Loose {
			l.Add(dots)
		}
		if s.Name != "" {
			l.Legend.Add(s.Name, thumb)
		}
	}
	if p.LogX {
		slices.SortFunc(xs, func(a, b plot.Tick) int { return int(a.Value - b.Value) })
		l.X.Scale, l.X.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(slices.Compact(xs))
	}
	if l.Y.Min = min(0, l.Y.Min); p.LogY {
		l.Y.Scale, l.Y.Tick.Marker = plot.LogScale{}, ticks(plot.LogTicks{Prec: -1})
		l.Y.Min, l.Y.Max = math.Inf(1), 0
		for _, s := range p.Series {
			for _, y := range s.Y {
				if !math.IsNaN(y) {
					l.Y.Min, l.Y.Max = min(l.Y.Min, y), max(l.Y.Max, y)
				}
			}
		}
		// Whole decades: less, and noise looks like growth.
		l.Y.Min, l.Y.Max = math.Pow(10, math.Floor(math.Log10(l.Y.Min))), math.Pow(10, math.Ceil(math.Log10(l.Y.Max*1.0001)))
	}
	if p.Top > 0 {
		l.Y.Max = p.Top
	}
	spans(l, p.Spans)
	legend := l.Legend
	l.Legend = plot.NewLegend()
	return l, legend
}

// spans draws events behind lines, and their names from top to bottom.
func spans(l *plot.Plot, labeled []figure.Span) {
	low, high := l.Y.Min, l.Y.Max
	for _, s := range labeled {
		area := must(plotter.NewPolygon(plotter.XYs{{X: s.From, Y: low}, {X: s.To, Y: low}, {X: s.To, Y: high}, {X: s.From, Y: high}}))
		c := colorOf(figure.Plain, s.Color)
		area.Color, area.Width = color.NRGBA{c.R, c.G, c.B, 40}, 0
		l.Add(area)
		if s.Name == "" {
			continue
		}
		name := must(plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: (s.From + s.To) / 2, Y: high}}, Labels: []string{s.Name}}))
		style := &name.TextStyle[0]
		style.Font.Size, style.Color, style.Rotation, style.XAlign, style.YAlign = 7, faint, math.Pi/2, draw.XRight, draw.YCenter
		l.Add(name)
	}
}

// bars returns the plot of a panel of bars.
func bars(p figure.Panel) *plot.Plot {
	b := newPlot(p.Title, p.Note)
	names, longest := make([]string, len(p.Bars)), 0.0
	for i, bar := range p.Bars {
		place := len(p.Bars) - 1 - i
		names[place] = bar.Name
		c, total := colorOf(bar.Class, 0), 0.0
		var below *plotter.BarChart
		for _, part := range bar.Parts {
			chart := must(plotter.NewBarChart(plotter.Values{part}, 11*px))
			chart.Horizontal, chart.XMin, chart.Color, chart.LineStyle.Width = true, float64(place), c, 0
			if below != nil {
				chart.StackOn(below)
			}
			b.Add(chart)
			below, c, total = chart, pale(c), total+part
		}
		label := bar.Label
		if label == "" {
			label = Number(total)
		}
		text := must(plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: total, Y: float64(place)}}, Labels: []string{label}}))
		text.TextStyle[0].Font.Size, text.TextStyle[0].Color, text.TextStyle[0].YAlign = 8, faint, draw.YCenter
		text.Offset = vg.Point{X: 3, Y: 1}
		b.Add(text)
		longest = max(longest, total)
	}
	b.NominalY(names...)
	b.HideX()
	b.X.Min, b.X.Max = 0, longest*1.15
	b.Y.Tick.Label.Color, b.Y.Width, b.Y.Tick.Width = ink, 0, 0
	return b
}

// Number returns v with three significant digits, and k or M for thousands and millions.
func Number(v float64) string {
	switch size := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case size >= 999_500:
		return fmt.Sprintf("%.3g M", v/1e6)
	case size >= 9_995:
		return fmt.Sprintf("%.3g k", v/1e3)
	case size >= 999.5:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprint("draw: ", err)) // of values that can't be drawn
	}
	return v
}

func must2[A, B any](a A, b B, err error) (A, B) {
	return must(a, err), b
}
