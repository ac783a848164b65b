package report

import (
	"fmt"
	"math"

	"github.com/weir-go/weir/test/bench/result"
	"github.com/weir-go/weir/test/internal/draw"
)

// growthRows are the growing quantities, and the metrics of their cost.
var growthRows = []struct {
	prefix, quantity, metric, unit string
}{
	{"growth/keys/redis/", "keys, Redis", "redis_us", "Redis CPU µs"},
	{"growth/keys/memory/", "keys, in memory", "cpu_ns", "CPU ns"},
	{"growth/limits/redis/", "limits in a policy, Redis", "redis_us", "Redis CPU µs"},
	{"growth/limits/memory/", "limits in a policy, in memory", "cpu_ns", "CPU ns"},
	{"growth/log/redis/", "charges in a sliding log, Redis", "redis_us", "Redis CPU µs"},
	{"growth/log/memory/", "charges in a sliding log, in memory", "cpu_ns", "CPU ns"},
	{"growth/goroutines/redis/", "goroutines, Redis", "redis_us", "Redis CPU µs"},
	{"growth/goroutines/redis/", "goroutines, Redis", "p50_us", "median latency µs"},
	{"growth/shards/", "shards, choice of one", "cpu_ns", "CPU ns"},
}

// series returns weir's medians in the rows that begin with prefix.
func series(s *result.Set, prefix, metric string) (x, y []float64) {
	for _, c := range columnsOf(s, prefix, metric) {
		r := s.Ours(c.row)
		if v := r.Median(metric); !math.IsNaN(v) && v > 0 {
			x, y = append(x, r.X), append(y, v)
		}
	}
	return x, y
}

// growth returns a table of the laws of growth.
func growth(s *result.Set) string {
	var rows [][]string
	for _, g := range growthRows {
		x, y := series(s, g.prefix, g.metric)
		if len(x) < 2 {
			continue
		}
		law := result.FitLaw(x, y)
		ends := func(values []float64) string {
			return draw.Number(values[0]) + " to " + draw.Number(values[len(values)-1])
		}
		rows = append(rows, []string{g.quantity, g.unit, law.String(), ends(x), ends(y), fmt.Sprintf("± %.0f %%", 100*law.Error)})
	}
	return table(3, []string{"x", "cost of a decision", "law", "x from, to", "cost from, to", "fits"}, rows)
}

func balance(s *result.Set) string {
	var rows [][]string
	for _, c := range columnsOf(s, "growth/shards/", "fullest") {
		r := s.Ours(c.row)
		rows = append(rows, []string{c.head, fmt.Sprintf("%.3f", r.Median("fullest")), fmt.Sprintf("1/%.0f × %.3f", r.X+1, r.Median("moved_share")), draw.Number(r.Median("cpu_ns"))})
	}
	return table(0, []string{"shards", "fullest ÷ mean", "keys that move to one more", "CPU ns to choose"}, rows)
}

// fleet returns a table of the cost of a decision when a server's callers are divided among
// processes.
func fleet(s *result.Set) string {
	var rows [][]string
	for _, c := range columnsOf(s, "fleet/", "per_s") {
		row, r := []string{c.head}, s.Ours(c.row)
		for _, metric := range []string{"per_s", "redis_us", "client_us", "per_call", "connections"} {
			row = append(row, draw.Number(r.Median(metric)))
		}
		rows = append(rows, row)
	}
	return table(0, []string{"processes", "decisions per second", "Redis CPU µs", "client CPU µs", "decisions in a call", "connections"}, rows)
}

// busy is the highest part of a core that a redis-server should use: above it, decisions
// queue.
const busy = 0.6

// shards derives how many shards a load needs from the Redis CPU time of a decision.
func shards(s *result.Set) string {
	imbalance := 1.0
	if r := s.Ours("growth/shards/8"); !math.IsNaN(r.Median("fullest")) {
		imbalance = r.Median("fullest")
	}
	head, rates := []string{"decisions per second"}, []float64{10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000}
	rows := make([][]string, len(rates))
	for _, shape := range []struct{ name, row, peer string }{
		{"one fixed window", "redis/allowed/g64", "weir"},
		{"6 limits of 3 algorithms", "redis/allowed/g64", "weir, 2 policies of 3 limits"},
		{"16 fixed windows", "growth/limits/redis/16", "weir"},
	} {
		r := s.Get(shape.row, shape.peer)
		cost := r.Median("redis_us")
		if math.IsNaN(cost) {
			return ""
		}
		head = append(head, fmt.Sprintf("%s (%s µs)", shape.name, draw.Number(cost)))
		for i, rate := range rates {
			if rows[i] == nil {
				rows[i] = []string{draw.Number(rate)}
			}
			rows[i] = append(rows[i], fmt.Sprintf("%.0f", math.Ceil(rate*cost*imbalance/(busy*1e6))))
		}
	}
	return table(0, head, rows)
}
