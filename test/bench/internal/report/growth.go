package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/weir-go/weir/test/bench/result"
	"github.com/weir-go/weir/test/internal/draw"
)

// growthRows are the growing quantities, and the metrics of their cost.
var growthRows = []struct {
	prefix, what, metric, unit string
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
	for _, c := range many(s, prefix, metric) {
		r := s.Ours(c.row)
		if v := r.Median(metric); !math.IsNaN(v) && v > 0 {
			x, y = append(x, r.X), append(y, v)
		}
	}
	return x, y
}

// growth returns a table of the laws of growth.
func growth(s *result.Set) string {
	var b strings.Builder
	for _, g := range growthRows {
		x, y := series(s, g.prefix, g.metric)
		if len(x) < 2 {
			continue
		}
		law := result.FitLaw(x, y)
		fmt.Fprintf(&b, "| %s | %s | %s to %s | %s to %s | %s | ± %.0f %% |\n", g.what, g.unit,
			draw.Number(x[0]), draw.Number(x[len(x)-1]), draw.Number(y[0]), draw.Number(y[len(y)-1]), law, 100*law.Error)
	}
	if b.Len() == 0 {
		return ""
	}
	return "| x | cost of a decision | x from, to | cost from, to | law | fits |\n|---|---|---:|---:|---|---:|\n" + b.String()
}

func balance(s *result.Set) string {
	var b strings.Builder
	for _, c := range many(s, "growth/shards/", "fullest") {
		r := s.Ours(c.row)
		n := int(r.X)
		fmt.Fprintf(&b, "| %d | %.3f | 1/%d × %.3f | %s |\n", n, r.Median("fullest"), n+1, r.Median("moved_share"), draw.Number(r.Median("cpu_ns")))
	}
	if b.Len() == 0 {
		return ""
	}
	return "| shards | fullest ÷ mean | keys that move to one more | CPU ns to choose |\n|---:|---:|---:|---:|\n" + b.String()
}

// fleet returns a table of the cost of a decision when a server's callers are divided among
// processes.
func fleet(s *result.Set) string {
	var b strings.Builder
	for _, c := range many(s, "fleet/", "per_s") {
		r := s.Ours(c.row)
		fmt.Fprintf(&b, "| %.0f |", r.X)
		for _, metric := range []string{"per_s", "redis_us", "client_us", "per_call", "connections"} {
			fmt.Fprintf(&b, " %s |", draw.Number(r.Median(metric)))
		}
		b.WriteString("\n")
	}
	if b.Len() == 0 {
		return ""
	}
	return "| processes | decisions per second | Redis CPU µs | client CPU µs | decisions in a call | connections |\n|---:|---:|---:|---:|---:|---:|\n" + b.String()
}

// busy is the highest part of a core that a redis-server should use: above it, decisions
// queue.
const busy = 0.6

// shards derives how many shards a load needs from the Redis CPU time of a
// decision.
func shards(s *result.Set) string {
	shapes := []struct {
		name string
		cost float64
	}{
		{"one fixed window", redisCPU(s, "redis/allowed/g64", "weir")},
		{"6 limits of 3 algorithms", redisCPU(s, "redis/allowed/g64", "weir, 2 policies of 3 limits")},
		{"16 fixed windows", redisCPU(s, "growth/limits/redis/16", "weir")},
	}
	imbalance := 1.0
	if r := s.Ours("growth/shards/8"); !math.IsNaN(r.Median("fullest")) {
		imbalance = r.Median("fullest")
	}
	var b strings.Builder
	b.WriteString("| decisions per second |")
	for _, shape := range shapes {
		if math.IsNaN(shape.cost) {
			return ""
		}
		fmt.Fprintf(&b, " %s (%s µs) |", shape.name, draw.Number(shape.cost))
	}
	b.WriteString("\n|---:|" + strings.Repeat("---:|", len(shapes)) + "\n")
	for _, rate := range []float64{10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000} {
		fmt.Fprintf(&b, "| %s |", draw.Number(rate))
		for _, shape := range shapes {
			need := math.Ceil(rate * shape.cost * imbalance / (busy * 1e6))
			fmt.Fprintf(&b, " %.0f |", need)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func redisCPU(s *result.Set, row, peer string) float64 {
	r := s.Get(row, peer)
	return r.Median("redis_us")
}
