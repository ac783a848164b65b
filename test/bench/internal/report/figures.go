package report

import (
	"math"
	"slices"
	"strings"

	"github.com/weir-go/weir/internal/testkit/plot"
	"github.com/weir-go/weir/test/bench/peers"
	"github.com/weir-go/weir/test/bench/result"
)

// Figures returns the SVG files of a run, by name.
func Figures(s *result.Set) map[string][]byte {
	return map[string][]byte{
		"throughput.svg": throughputFigure(s).SVG(),
		"cost.svg":       costFigure(s).SVG(),
		"memory.svg":     memoryFigure(s).SVG(),
		"http.svg":       httpFigure(s).SVG(),
		"growth.svg":     growthFigure(s).SVG(),
	}
}

func class(r peers.Role) plot.Class {
	switch r {
	case peers.Ours:
		return plot.Ours
	case peers.Ceiling, peers.Variant:
		return plot.Ceiling
	default:
		return plot.Plain
	}
}

func throughputFigure(s *result.Set) plot.Figure {
	return plot.Figure{
		Title:    "Decisions per second over one redis-server",
		Subtitle: "Load generator, limiter and Redis share the cores. Dashed: what a minimal script, and no script, can do.",
		Columns:  1, PanelHeight: 330,
		Panels: []plot.Panel{
			rateLines(s, "Allowed, many keys", "redis/allowed/"),
			rateLines(s, "Refused, 16 hot keys", "redis/refused/"),
		},
	}
}

func rateLines(s *result.Set, title, prefix string) plot.Lines {
	columns := many(s, prefix, "per_s")
	lines := plot.Lines{Title: title, XLabel: "goroutines", LogY: true}
	if len(columns) == 0 {
		return lines
	}
	for _, l := range peersOf(s, columns) {
		if l.role == peers.Variant {
			continue
		}
		one := plot.Series{Name: l.peer, Class: class(l.role), Color: rivalNumber(s, columns[0].row, l.peer)}
		for _, c := range columns {
			r := s.Get(c.row, l.peer)
			one.X, one.Y = append(one.X, r.X), append(one.Y, r.Median("per_s"))
		}
		lines.Series = append(lines.Series, one)
	}
	// Weir is last, and drawn over the others.
	slices.Reverse(lines.Series)
	return lines
}

// rivalNumber returns the index of peer among the rivals of row: a color that is the same in
// every panel.
func rivalNumber(s *result.Set, row, peer string) int {
	n := 0
	for _, r := range s.Row(row) {
		if r.Peer == peer {
			return n
		}
		if r.Role == peers.Rival {
			n++
		}
	}
	return 0
}

// bars returns a bar for each peer of row, best first.
func bars(s *result.Set, c column, parts func(result.Result) []float64) []plot.Bar {
	results := s.Row(c.row)
	slices.SortStableFunc(results, func(a, b result.Result) int {
		va, vb := c.value(a), c.value(b)
		if va == vb || math.IsNaN(va) || math.IsNaN(vb) {
			return 0
		}
		if (va > vb) == c.highest {
			return -1
		}
		return 1
	})
	var all []plot.Bar
	for _, r := range results {
		if !math.IsNaN(c.value(r)) {
			all = append(all, plot.Bar{Name: r.Peer, Class: class(r.Role), Parts: parts(r)})
		}
	}
	return all
}

func costFigure(s *result.Set) plot.Figure {
	c := col("", "redis/allowed/g64", "redis_us")
	both := func(r result.Result) []float64 { return []float64{r.Median("redis_us"), r.Median("client_us")} }
	c.value = func(r result.Result) float64 { return both(r)[0] + both(r)[1] }
	return plot.Figure{
		Title:    "CPU time of one decision",
		Subtitle: "64 goroutines, many keys, allowed. Dark: µs of redis-server. Light: µs of the client, load generator included.",
		Columns:  1, PanelHeight: 380,
		Panels: []plot.Panel{plot.Bars{Bars: bars(s, c, both), Format: func(b plot.Bar) string {
			return plot.Number(b.Parts[0]) + " + " + plot.Number(b.Parts[1])
		}}},
	}
}

func memoryFigure(s *result.Set) plot.Figure {
	f := plot.Figure{
		Title: "Decisions in memory", Subtitle: "ns per decision, all cores busy. Shorter is better.",
		Columns: 2, PanelHeight: 230,
	}
	for _, row := range []struct{ title, row string }{
		{"Uniform over many keys", "memory/uniform"}, {"Zipf over many keys", "memory/zipf"}, {"One hot key", "memory/hot"}, {"Refused", "memory/refused"},
	} {
		c := col("", row.row, "ns")
		f.Panels = append(f.Panels, plot.Bars{Title: row.title, Bars: bars(s, c, func(r result.Result) []float64 { return []float64{c.value(r)} })})
	}
	return f
}

func httpFigure(s *result.Set) plot.Figure {
	f := plot.Figure{
		Title: "HTTP requests per second", Subtitle: "A handler alone, and behind each limiter, over loopback. Longer is better.",
		Columns: 2, PanelHeight: 290,
	}
	for _, row := range []struct{ title, row string }{{"Counting in memory", "http/memory"}, {"Counting in Redis", "http/redis"}} {
		c := col("", row.row, "per_s").more()
		f.Panels = append(f.Panels, plot.Bars{Title: row.title, Bars: bars(s, c, func(r result.Result) []float64 { return []float64{c.value(r)} })})
	}
	return f
}

func growthFigure(s *result.Set) plot.Figure {
	f := plot.Figure{
		Title: "How the cost of a decision grows", Subtitle: "Medians, and the law that fits them best. Both axes are logarithmic.",
		Columns: 3, PanelHeight: 210,
	}
	for _, g := range growthRows {
		x, y := series(s, g.prefix, g.metric)
		if len(x) < 2 {
			continue
		}
		law := result.FitLaw(x, y)
		fit := plot.Series{Class: plot.Fit}
		for at := x[0]; at <= x[len(x)-1]*1.0001; at *= 1.2 {
			fit.X, fit.Y = append(fit.X, at), append(fit.Y, max(law.At(at), y[0]/100))
		}
		what, _, _ := strings.Cut(g.what, ",")
		f.Panels = append(f.Panels, plot.Lines{
			Title: strings.ToUpper(g.what[:1]) + g.what[1:], Note: g.unit + ": " + law.String(), XLabel: what, LogY: true,
			Series: []plot.Series{fit, {Class: plot.Ours, X: x, Y: y}},
		})
	}
	return f
}
