package report

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/gonum/floats"

	"github.com/weir-go/weir/internal/testkit/figure"
	"github.com/weir-go/weir/test/bench/peers"
	"github.com/weir-go/weir/test/bench/result"
	"github.com/weir-go/weir/test/internal/draw"
)

// Figures returns the SVG files of a run, by name.
func Figures(s *result.Set) map[string][]byte {
	if rows := s.Rows("service/descriptors/"); len(rows) > 0 {
		f := figure.Figure{Title: "Envoy's rate limit service over gRPC", Subtitle: "One redis-server, on one core with the service.", Columns: 2, PanelHeight: 150}
		for _, row := range rows {
			n := strings.TrimPrefix(row, "service/descriptors/") + " descriptors, "
			f.Panels = append(f.Panels, bars(s, n+"decisions a second", col("", row, "per_s").highestBest()), bars(s, n+"CPU µs a decision", col("", row, "cpu_us")))
		}
		return map[string][]byte{"service.svg": draw.SVG(f)}
	}
	cost := []column{col("", "redis/allowed/g64", "redis_us"), col("", "redis/allowed/g64", "client_us")}
	ns := func(title, row string) figure.Panel { return bars(s, title, col("", row, "ns")) }
	return map[string][]byte{
		"throughput.svg": draw.SVG(figure.Figure{
			Title:       "Decisions per second over one redis-server",
			Subtitle:    "Load generator, limiter and Redis share the cores. Dashed: what a minimal script, and no script, can do.",
			PanelHeight: 330,
			Panels:      []figure.Panel{rateLines(s, "Allowed, many keys", "redis/allowed/"), rateLines(s, "Refused, 16 hot keys", "redis/refused/")},
		}),
		"cost.svg": draw.SVG(figure.Figure{
			Title:       "CPU time of one decision",
			Subtitle:    "64 goroutines, many keys, allowed. Dark: µs of redis-server. Light: µs of the client, load generator included.",
			PanelHeight: 380, Panels: []figure.Panel{bars(s, "", cost...)},
		}),
		"memory.svg": draw.SVG(figure.Figure{
			Title: "Decisions in memory", Subtitle: "ns per decision, all cores busy. Shorter is better.",
			Columns: 2, PanelHeight: 230,
			Panels: []figure.Panel{
				ns("Uniform over many keys", "memory/uniform"), ns("Zipf over many keys", "memory/zipf"),
				ns("One hot key", "memory/hot"), ns("Refused", "memory/refused"),
			},
		}),
		"http.svg": draw.SVG(figure.Figure{
			Title: "HTTP requests per second", Subtitle: "A handler alone, and behind each limiter, over loopback. Longer is better.",
			Columns: 2, PanelHeight: 290,
			Panels: []figure.Panel{
				bars(s, "Counting in memory", col("", "http/memory", "per_s").highestBest()),
				bars(s, "Counting in Redis", col("", "http/redis", "per_s").highestBest()),
			},
		}),
		"growth.svg": draw.SVG(figure.Figure{
			Title: "How the cost of a decision grows", Subtitle: "Medians, and the law that fits them best. Both axes are logarithmic.",
			Columns: 3, PanelHeight: 230, Panels: growthPanels(s),
		}),
	}
}

func class(r peers.Role) figure.Class {
	return map[peers.Role]figure.Class{peers.Rival: figure.Plain, peers.Ours: figure.Ours, peers.Ceiling: figure.Ceiling, peers.Variant: figure.Ceiling}[r]
}

func rateLines(s *result.Set, title, prefix string) figure.Panel {
	panel := figure.Panel{Title: title, XLabel: "goroutines", LogX: true, LogY: true}
	columns := columnsOf(s, prefix, "per_s")
	if len(columns) == 0 {
		return figure.Panel{Title: title}
	}
	columns[len(columns)-1].highest = true
	rivals := s.Row(columns[0].row) // in the same order in each panel, and so in the same color
	for _, peer := range peersOf(s, columns) {
		if peer.Role == peers.Variant {
			continue
		}
		series := figure.Series{Name: peer.Peer, Class: class(peer.Role), Dots: true}
		series.Color = slices.IndexFunc(rivals, func(r result.Result) bool { return r.Peer == peer.Peer })
		for _, c := range columns {
			r := s.Get(c.row, peer.Peer)
			series.X, series.Y = append(series.X, r.X), append(series.Y, r.Median("per_s"))
		}
		panel.Series = append(panel.Series, series)
	}
	return panel
}

// bars returns a bar for each peer of a row, best first. Its parts are the columns.
func bars(s *result.Set, title string, columns ...column) figure.Panel {
	panel := figure.Panel{Title: title}
	for _, r := range s.Row(columns[0].row) {
		bar := figure.Bar{Name: r.Peer, Class: class(r.Role)}
		var labels []string
		for _, c := range columns {
			bar.Parts, labels = append(bar.Parts, c.value(s, r)), append(labels, draw.Number(c.value(s, r)))
		}
		if bar.Label = strings.Join(labels, " + "); !math.IsNaN(bar.Parts[0]) {
			panel.Bars = append(panel.Bars, bar)
		}
	}
	slices.SortStableFunc(panel.Bars, func(a, b figure.Bar) int { return cmp.Compare(floats.Sum(a.Parts), floats.Sum(b.Parts)) })
	if columns[0].highest {
		slices.Reverse(panel.Bars)
	}
	return panel
}

func growthPanels(s *result.Set) (panels []figure.Panel) {
	for _, g := range growthRows {
		x, y := series(s, g.prefix, g.metric)
		if len(x) < 2 {
			continue
		}
		law := result.FitLaw(x, y)
		fit := figure.Series{Class: figure.Fit}
		for position := x[0]; position <= x[len(x)-1]*1.0001; position *= 1.2 {
			fit.X, fit.Y = append(fit.X, position), append(fit.Y, max(law.Value(position), y[0]/100))
		}
		unit, _, _ := strings.Cut(g.quantity, ",")
		panels = append(panels, figure.Panel{
			Title: strings.ToUpper(g.quantity[:1]) + g.quantity[1:], Note: g.unit + ": " + law.String(), XLabel: unit, LogX: true, LogY: true,
			Series: []figure.Series{fit, {Class: figure.Ours, X: x, Y: y, Dots: true}},
		})
	}
	return panels
}
