package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/weir-go/weir/chaos/history"
	"github.com/weir-go/weir/internal/plot"
)

// print writes what was found, for people.
func (v *verdict) print(to io.Writer, r *run) {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nat\tfault\tlasted\tfailed\tlongest\trecovered after")
	for _, row := range v.rows {
		fmt.Fprintf(table, "%.1f s\t%s\t%s\t%d\t%s\t%s\n", r.at(row.from), row.text, short(time.Duration(row.to-row.from)), row.failed, short(row.longest), row.recovery())
	}
	fmt.Fprintln(table, "\t\t\t\t\t\ntimes\tkind\tmean length\tfailed\tlongest\trecovered after, median and most")
	for _, k := range kinds {
		v.printKind(table, k.name)
	}
	_ = table.Flush()

	seconds := r.at(r.ended)
	answered := v.allowed + v.refused + v.peeked + v.degraded
	fmt.Fprintf(to, `
decisions         %d in %.0f s: %d allowed, %d refused, %d peeks, %d degraded
failed            %d whose outcome is unknown, %d that were not sent; %d more died with their process
longest decision  %s; without what the machine stalled, at most %s after the deadline of %v
over the quota    %d units in %d of %d windows, all while their shard lost counts
`,
		answered+v.unknown+v.unsent, seconds, v.allowed, v.refused, v.peeked, v.degraded,
		v.unknown, v.unsent, v.killed, short(v.longest), short(max(v.latest, 0)), deadline, v.over, v.overWindows, v.windows)
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
	var all []row
	for _, row := range v.rows {
		if row.kind == kind {
			all = append(all, row)
		}
	}
	if len(all) == 0 {
		return
	}
	failed, lasted, longest := 0, time.Duration(0), time.Duration(0)
	for _, row := range all {
		failed += row.failed
		lasted += time.Duration(row.to - row.from)
		longest = max(longest, row.longest)
	}
	slices.SortFunc(all, func(a, b row) int { return cmp.Compare(uint64(a.recovered), uint64(b.recovered)) }) // never is last
	recovered := all[len(all)/2].recovery()
	if !all[0].none {
		recovered += ", " + all[len(all)-1].recovery()
	}
	fmt.Fprintf(to, "%d\t%s\t%s\t%d\t%s\t%s\n", len(all), kind, short(lasted/time.Duration(len(all))), failed, short(longest), recovered)
}

// recovery returns how long it took until all was well after r.
func (r row) recovery() string {
	switch {
	case r.none:
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
	const bin = 250 * time.Millisecond
	seconds := r.at(r.ended)
	bins := int(math.Ceil(seconds/bin.Seconds())) + 1
	x := make([]float64, bins)
	allowed, refused, failed, longest := make([]float64, bins), make([]float64, bins), make([]float64, bins), make([]float64, bins)
	for i := range x {
		x[i] = float64(i) * bin.Seconds()
	}
	for _, d := range r.decisions {
		i := int(r.at(d.At) / bin.Seconds())
		if !d.returned || i < 0 || i >= bins {
			continue
		}
		rate := 1 / bin.Seconds()
		longest[i] = max(longest[i], float64(d.Took)/float64(time.Millisecond))
		switch {
		case d.Fate != history.Answered:
			failed[i] += rate
		case d.Allowed:
			allowed[i] += rate
		default:
			refused[i] += rate
		}
	}
	color := make(map[string]int)
	for i, k := range kinds {
		color[k.name] = i
	}
	var spans []plot.Span
	for _, f := range r.faults {
		spans = append(spans, plot.Span{Name: f.kind, From: r.at(f.from), To: r.at(f.to), Color: color[f.kind]})
	}
	verdict := "all invariants hold"
	if len(v.broken) > 0 {
		verdict = "INVARIANTS ARE BROKEN"
	}
	return plot.Figure{
		Title: title, Subtitle: fmt.Sprintf("%d decisions, %d faults: %s", len(r.decisions), len(r.faults), verdict),
		Columns: 1, PanelHeight: 230,
		Panels: []plot.Panel{
			plot.Timeline{Title: "Decisions a second", Seconds: seconds, Spans: spans, Named: true, Series: []plot.Series{
				{Name: "allowed", Class: plot.Ours, X: x, Y: allowed}, {Name: "refused", X: x, Y: refused},
			}},
			plot.Timeline{Title: "Failed decisions a second", Seconds: seconds, Spans: spans, Series: []plot.Series{{Name: "failed", Color: 1, X: x, Y: failed}}},
			plot.Timeline{Title: "Longest decision, ms", Note: fmt.Sprintf("the deadline is %v", deadline), Seconds: seconds, Spans: spans, Series: []plot.Series{{Name: "longest", Color: 3, X: x, Y: longest}}},
		},
	}.SVG()
}
