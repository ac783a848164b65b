package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weir-go/weir/test/bench/peers"
	"github.com/weir-go/weir/test/bench/result"
	"github.com/weir-go/weir/test/internal/draw"
)

// table returns a table in Markdown, or nothing if it has no rows. The first columns, as many
// as texts, are aligned left, and the others, numbers, right.
func table(texts int, head []string, rows [][]string) string {
	if len(rows) == 0 {
		return ""
	}
	text := "| " + strings.Join(head, " | ") + " |\n|" + strings.Repeat("---|", texts) + strings.Repeat("---:|", len(head)-texts) + "\n"
	for _, row := range rows {
		text += "| " + strings.Join(row, " | ") + " |\n"
	}
	return text
}

// A column of a table of peers is a metric in a row.
type column struct {
	head, row, metric string
	highest           bool    // whether the highest value is best; otherwise the lowest
	headers           bool    // weir is compared only with rivals that write headers
	added             bool    // to the bare handler
	share             bool    // of the bare handler
	patience          float64 // a value as high is unknown; if not zero, there is no best
}

func col(head, row, metric string) column { return column{head: head, row: row, metric: metric} }

func (c column) highestBest() column { c.highest = true; return c }

// value returns r's value in the column.
func (c column) value(s *result.Set, r result.Result) float64 {
	v, bare := r.Median(c.metric), s.Get(c.row, BareHandler)
	switch {
	case c.added:
		return v - bare.Median(c.metric)
	case c.share:
		return v / bare.Median(c.metric)
	}
	return v
}

// merit is higher for better values.
func (c column) merit(s *result.Set, r result.Result) float64 {
	if c.highest {
		return c.value(s, r)
	}
	return -c.value(s, r)
}

// columnsOf returns columns of a metric, one for each row that begins with prefix.
func columnsOf(s *result.Set, prefix, metric string) (columns []column) {
	rows := s.Rows(prefix)
	slices.SortStableFunc(rows, func(a, b string) int { return cmp.Compare(s.Row(a)[0].X, s.Row(b)[0].X) })
	for _, r := range rows {
		columns = append(columns, col(strings.TrimPrefix(r, prefix), r, metric))
	}
	return columns
}

// compare returns a table with a line for each peer: weir, its rivals, best first by the last
// column, and variants and ceilings in italics. Its last line is weir's value divided by the
// best rival's. Below is a line about the differences between the passes.
func compare(s *result.Set, title string, columns ...column) string {
	head, ratios, compared := []string{title}, []string{""}, false
	for _, c := range columns {
		r := ratio(s, c)
		if head = append(head, c.head); math.IsNaN(r) {
			ratios = append(ratios, "")
			continue
		}
		ratios, compared = append(ratios, fmt.Sprintf("**%.2f ×**", r)), true
	}
	var rows [][]string
	for _, peer := range peersOf(s, columns) {
		emphasis := map[peers.Role]string{peers.Rival: "", peers.Ours: "**", peers.Variant: "*", peers.Ceiling: "*"}[peer.Role]
		row := []string{emphasis + peer.Peer + emphasis}
		for _, c := range columns {
			row = append(row, cell(s, s.Get(c.row, peer.Peer), c))
		}
		if rows = append(rows, row); peer.Role == peers.Ours {
			ratios[0] = "**" + peer.Peer + " ÷ best rival**"
		}
	}
	if compared {
		rows = append(rows, ratios)
	}
	return table(1, head, rows) + spread(s, columns)
}

// peersOf returns a result of each peer of the columns, in the order of a table.
func peersOf(s *result.Set, columns []column) (results []result.Result) {
	for _, c := range columns {
		for _, r := range s.Row(c.row) {
			if !slices.ContainsFunc(results, func(o result.Result) bool { return o.Peer == r.Peer }) {
				results = append(results, r)
			}
		}
	}
	order := map[peers.Role]int{peers.Rival: 0, peers.Ours: -1, peers.Variant: 1, peers.Ceiling: 2}
	slices.SortStableFunc(results, func(a, b result.Result) int {
		last := columns[len(columns)-1]
		return cmp.Or(order[a.Role]-order[b.Role], cmp.Compare(last.merit(s, s.Get(last.row, b.Peer)), last.merit(s, s.Get(last.row, a.Peer))))
	})
	return results
}

func cell(s *result.Set, r result.Result, c column) string {
	v := c.value(s, r)
	text := draw.Number(v)
	switch {
	case r.Err != "" && len(r.Values) == 0:
		return "failed"
	case c.patience > 0 && v >= c.patience:
		text = "> " + text
	case r.Role == peers.Ours && !math.IsNaN(v):
		text = "**" + text + "**"
	}
	if share := r.Median("errors_pct"); share >= 0.05 {
		text += fmt.Sprintf(" (%.3g %% errors)", share)
	}
	return text
}

// ratio returns weir's value divided by the best rival's, or NaN if the latter is unknown or
// about zero, such as no allocations.
func ratio(s *result.Set, c column) float64 {
	best := c.value(s, bestRival(s, c))
	if best < 0.01 || c.patience > 0 {
		return math.NaN()
	}
	return c.value(s, s.Ours(c.row)) / best
}

func bestRival(s *result.Set, c column) (best result.Result) {
	for _, r := range s.Row(c.row) {
		if r.Role == peers.Rival && (!c.headers || r.Text != "") && cmp.Compare(c.merit(s, r), c.merit(s, best)) > 0 { // NaN is the lowest
			best = r
		}
	}
	return best
}

// spread returns a line about the differences between the passes.
func spread(s *result.Set, columns []column) string {
	var spreads []float64
	widest := ""
	for _, c := range columns {
		for _, r := range s.Row(c.row) {
			v := r.Spread(c.metric)
			if c.patience > 0 || len(r.Values[c.metric]) < 2 || math.IsNaN(v) || math.IsInf(v, 0) {
				continue
			}
			if spreads = append(spreads, v); v == slices.Max(spreads) {
				widest = r.Peer + ", " + c.head
			}
		}
	}
	if len(spreads) == 0 {
		return ""
	}
	slices.Sort(spreads)
	return fmt.Sprintf("\nSpread, (highest − lowest) ÷ median of the passes: %.0f %% in the median of these cells, %.0f %% in the widest (%s).\n",
		100*spreads[len(spreads)/2], 100*spreads[len(spreads)-1], widest)
}
