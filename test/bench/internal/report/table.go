package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weir-go/weir/test/bench/peers"
	"github.com/weir-go/weir/test/bench/result"
	"github.com/weir-go/weir/test/internal/draw"
)

// A column of a table of peers is a metric in a row.
type column struct {
	head, row, metric string
	highest           bool // whether the highest value is best; otherwise the lowest
	headers           bool // weir is compared only with rivals that write headers
	value             func(result.Result) float64
}

func col(head, row, metric string) column {
	return column{head: head, row: row, metric: metric, value: func(r result.Result) float64 { return r.Median(metric) }}
}

func (c column) more() column { c.highest = true; return c }

func (c column) withHeaders() column { c.headers = true; return c }

// over makes the column the difference to a baseline.
func (c column) over(baseline float64) column {
	c.value = func(r result.Result) float64 { return r.Median(c.metric) - baseline }
	return c
}

// peerTable returns a table with a line for each peer: weir, its rivals, best first by the
// last column, and variants and ceilings in italics. Its last line is weir's value divided by
// the best rival's.
func peerTable(s *result.Set, what string, columns ...column) string {
	lines := peersOf(s, columns)
	var b strings.Builder
	writeHead(&b, what, columns)
	for _, name := range lines {
		b.WriteString("| " + name.label() + " |")
		for _, c := range columns {
			b.WriteString(" " + cell(s.Get(c.row, name.peer), c) + " |")
		}
		b.WriteString("\n")
	}
	ratios := "| **weir ÷ best rival** |"
	any := false
	for _, c := range columns {
		r := ratio(s, c)
		any = any || !math.IsNaN(r)
		ratios += " " + times(r) + " |"
	}
	if any {
		b.WriteString(ratios + "\n")
	}
	return b.String()
}

func writeHead(b *strings.Builder, what string, columns []column) {
	b.WriteString("| " + what + " |")
	for _, c := range columns {
		b.WriteString(" " + c.head + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(columns)) + "\n")
}

type line struct {
	peer string
	role peers.Role
	last float64
}

func (l line) label() string {
	switch l.role {
	case peers.Ours:
		return "**" + l.peer + "**"
	case peers.Variant, peers.Ceiling:
		return "*" + l.peer + "*"
	default:
		return l.peer
	}
}

var order = map[peers.Role]int{peers.Ours: 0, peers.Rival: 1, peers.Variant: 2, peers.Ceiling: 3}

func peersOf(s *result.Set, columns []column) []line {
	var all []line
	for _, c := range columns {
		for _, r := range s.Row(c.row) {
			if !slices.ContainsFunc(all, func(l line) bool { return l.peer == r.Peer }) {
				all = append(all, line{r.Peer, r.Role, math.NaN()})
			}
		}
	}
	last := columns[len(columns)-1]
	for i := range all {
		all[i].last = last.value(s.Get(last.row, all[i].peer))
	}
	slices.SortStableFunc(all, func(a, b line) int {
		if a.role != b.role {
			return order[a.role] - order[b.role]
		}
		switch {
		case math.IsNaN(a.last) && math.IsNaN(b.last):
			return 0
		case math.IsNaN(b.last), a.last != b.last && (a.last > b.last) == last.highest:
			return -1
		}
		return 1
	})
	return all
}

func cell(r result.Result, c column) string {
	if r.Err != "" && len(r.Values) == 0 {
		return "failed"
	}
	text := draw.Number(c.value(r))
	if r.Role == peers.Ours && text != "–" {
		text = "**" + text + "**"
	}
	if share := r.Median("errors_pct"); share >= 0.05 {
		text += fmt.Sprintf(" (%s %% errors)", draw.Number(share))
	}
	return text
}

// ratio returns weir's value divided by the best rival's, or NaN if the latter is unknown or
// about zero, such as no allocations.
func ratio(s *result.Set, c column) float64 {
	best := c.value(bestRival(s, c))
	if best < 0.01 {
		return math.NaN()
	}
	return c.value(s.Ours(c.row)) / best
}

func bestRival(s *result.Set, c column) result.Result {
	var best result.Result
	for _, r := range s.Row(c.row) {
		v, b := c.value(r), c.value(best)
		if r.Role != peers.Rival || c.headers && r.Text == "" {
			continue
		}
		if !math.IsNaN(v) && (math.IsNaN(b) || v != b && (v > b) == c.highest) {
			best = r
		}
	}
	return best
}

func times(r float64) string {
	if math.IsNaN(r) {
		return ""
	}
	return fmt.Sprintf("**%.2f ×**", r)
}

// spread returns a line about the differences between the passes.
func spread(s *result.Set, columns ...column) string {
	var all []float64
	widest, where := 0.0, ""
	for _, c := range columns {
		for _, r := range s.Row(c.row) {
			v := r.Spread(c.metric)
			if math.IsNaN(v) || math.IsInf(v, 0) {
				continue
			}
			all = append(all, v)
			if v > widest {
				widest, where = v, r.Peer+", "+c.head
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return fmt.Sprintf("Spread, (highest − lowest) ÷ median of the passes: %.0f %% in the median of these cells, %.0f %% in the widest (%s).\n",
		100*all[len(all)/2], 100*widest, where)
}
