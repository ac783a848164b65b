package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/weir-go/weir/internal/testkit/figure"
	"github.com/weir-go/weir/test/internal/draw"
)

// print writes the verdict, for people.
func (v *verdict) print(to io.Writer, r *run) {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nat\tfault\tlasted\tfailed\tlongest\trecovered after")
	for _, row := range v.rows {
		fmt.Fprintf(table, "%.1f s\t%s\t%s\t%d\t%s\t%s\n", r.seconds(row.from), row.text, short(time.Duration(row.to-row.from)), row.failed, short(row.longest), row.recovery())
	}
	fmt.Fprintln(table, "\t\t\t\t\t\ntimes\tkind\tmean length\tfailed\tlongest\trecovered after, median and most")
	for _, k := range kinds {
		v.printKind(table, k.name)
	}
	_ = table.Flush()

	seconds := r.seconds(r.ended)
	answered := v.allowed + v.refused + v.peeked + v.degraded
	fmt.Fprintf(to, `
decisions         %d in %.0f s: %d allowed, %d refused, %d peeks, %d degraded
failed            %d whose outcome is unknown, %d that were not sent; %d more died with their process
longest decision  %s; without what the machine stalled, at most %s after the deadline of %v
over the quota    %d units in %d of %d windows; %d above what lost counts explain
`,
		answered+v.unknown+v.unsent, seconds, v.allowed, v.refused, v.peeked, v.degraded,
		v.unknown, v.unsent, v.killed, short(v.longest), short(max(v.latest, 0)), deadline, v.excess, v.overWindows, v.windows, v.beyond)
	if len(v.broken) == 0 {
		fmt.Fprintln(to, "all invariants hold")
		return
	}
	fmt.Fprintln(to, "\nBROKEN:")
	for _, b := range v.broken {
		fmt.Fprintln(to, " -", b)
	}
}

// printKind writes a line about all faults of a kind.
func (v *verdict) printKind(to io.Writer, kind string) {
	var rows []row
	for _, row := range v.rows {
		if row.kind == kind {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return
	}
	failed, lasted, longest := 0, time.Duration(0), time.Duration(0)
	for _, row := range rows {
		failed += row.failed
		lasted += time.Duration(row.to - row.from)
		longest = max(longest, row.longest)
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(uint64(a.recovered), uint64(b.recovered)) }) // never is last
	recovered := rows[len(rows)/2].recovery()
	if !rows[0].missed {
		recovered += ", " + rows[len(rows)-1].recovery()
	}
	fmt.Fprintf(to, "%d\t%s\t%s\t%d\t%s\t%s\n", len(rows), kind, short(lasted/time.Duration(len(rows))), failed, short(longest), recovered)
}

// recovery returns how long r's processes took to recover, in words.
func (r row) recovery() string {
	switch {
	case r.missed:
		return "–"
	case r.recovered < 0:
		return "never"
	}
	return short(r.recovered)
}

func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

// svg draws the run.
func (v *verdict) svg(r *run, title string) []byte {
	seconds := r.seconds(r.ended)
	rates := 250 * time.Millisecond // of a point
	if seconds > 45 {
		rates = window // shorter intervals would show only the ends of windows
	}
	series := func(width time.Duration, add func(sum float64, d *decision) float64) (x, y []float64) {
		x, y = make([]float64, int(seconds/width.Seconds())), make([]float64, int(seconds/width.Seconds()))
		for i := range x {
			x[i] = (float64(i) + 0.5) * width.Seconds()
		}
		for _, d := range r.decisions {
			if i := int(r.seconds(d.At) / width.Seconds()); d.returned && i >= 0 && i < len(y) {
				y[i] = add(y[i], d)
			}
		}
		return x, y
	}
	rateOf := func(counts func(d *decision) bool) (x, y []float64) {
		return series(rates, func(sum float64, d *decision) float64 {
			if counts(d) {
				sum += 1 / rates.Seconds()
			}
			return sum
		})
	}
	x, allowed := rateOf(func(d *decision) bool { return !d.failed() && d.Allowed })
	_, refused := rateOf(func(d *decision) bool { return !d.failed() && !d.Allowed })
	_, failed := rateOf((*decision).failed)
	xLongest, longest := series(250*time.Millisecond, func(longest float64, d *decision) float64 {
		return max(longest, float64(d.Took)/float64(time.Millisecond), 0.1)
	})
	for i := range longest {
		if longest[i] == 0 {
			longest[i] = math.NaN() // no decision
		}
	}
	color := make(map[string]int)
	for i, k := range kinds {
		color[k.name] = i
	}
	var spans, unnamed []figure.Span // names are in the first panel
	for _, f := range r.faults {
		spans = append(spans, figure.Span{Name: f.kind, From: r.seconds(f.from), To: r.seconds(f.to), Color: color[f.kind]})
		unnamed = append(unnamed, figure.Span{From: r.seconds(f.from), To: r.seconds(f.to), Color: color[f.kind]})
	}
	verdict := "all invariants hold"
	if len(v.broken) > 0 {
		verdict = "INVARIANTS ARE BROKEN"
	}
	return draw.SVG(figure.Figure{
		Title: title, Subtitle: fmt.Sprintf("%d decisions, %d faults: %s", len(r.decisions), len(r.faults), verdict),
		Columns: 1, PanelHeight: 240,
		Panels: []figure.Panel{
			{Title: "Decisions a second", Spans: spans, Series: []figure.Series{
				{Name: "allowed", Class: figure.Ours, X: x, Y: allowed}, {Name: "refused", X: x, Y: refused},
			}},
			{Title: "Failed decisions a second", Spans: unnamed, Series: []figure.Series{{Name: "failed", Color: 1, X: x, Y: failed}}},
			{Title: "Longest decision, ms", Note: fmt.Sprintf("the deadline is %v; a process that is stopped cannot keep it", deadline), LogY: true, Spans: unnamed, Series: []figure.Series{{Name: "longest", Color: 3, X: xLongest, Y: longest}}},
		},
	})
}
