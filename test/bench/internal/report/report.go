// Package report presents the results of a run in tables and figures.
package report

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/weir/test/bench/result"
	"github.com/weir-go/weir/test/internal/draw"
)

// BareHandler is the peer without a middleware, in rows of middleware.
const BareHandler = "bare handler"

// A Block is a generated part of a page. Pages have a place for each, by name.
type Block struct {
	Name, Title, Text string
}

// Blocks returns all blocks of a run, in the order of the page. Blocks of rows that were not
// measured are left out.
func Blocks(s *result.Set) []Block {
	var all []Block
	for _, b := range []Block{
		{"setup", "Setup", setup(s)},
		{"summary", "Summary", summary(s)},
		{"allowed", "Decisions per second, allowed, many keys", rates(s, "redis/allowed/")},
		{"latency", "Latency, allowed, many keys, µs", latency(s)},
		{"refused", "Decisions per second, refused, 16 hot keys", rates(s, "redis/refused/")},
		{"hot", "Decisions per second, one hot key", rates(s, "redis/hot/")},
		{"cost", "What a decision costs", cost(s)},
		{"ceilings", "What one redis-server can do", ceilings(s)},
		{"network", "Behind a network of 1 ms", network(s)},
		{"hung", "When Redis hangs, ms", hung(s)},
		{"memory", "In memory", memory(s)},
		{"middleware", "As middleware", middleware(s)},
		{"http", "HTTP requests per second", httpLoad(s)},
		{"growth", "Growth", growth(s)},
		{"balance", "Balance of shards", balance(s)},
		{"shards", "Shards that a load needs", shards(s)},
		{"fleet", "Processes that share the callers", fleet(s)},
		{"versions", "Versions", versions(s)},
	} {
		if b.Text != "" {
			all = append(all, b)
		}
	}
	return all
}

func setup(s *result.Set) string {
	m := s.Machine
	length := "A full run"
	if s.Quick {
		length = "A quick run"
	}
	shared := ""
	if load, err := strconv.ParseFloat(m.Load, 64); err == nil && load > 0.5 {
		shared = fmt.Sprintf("Other work shared the cores: the load average was %s when the run began.\n", m.Load)
	}
	return fmt.Sprintf("Measured on %s at commit %s: %s, %d cores, shared by load generator, limiter and Redis; %s, %s, redis-server %s.\n"+
		"%s: medians of %d passes, measurements of %d ms, %s keys, seed %d.\n",
		s.Started.Format("2006-01-02"), s.Commit, m.CPU, m.Cores, m.OS, m.Go, m.Redis,
		length, s.Passes, s.SampleMS, draw.Number(float64(s.Keys)), s.Seed) + shared
}

// many returns columns of a metric, one for each row that begins with prefix.
func many(s *result.Set, prefix, metric string) []column {
	rows := s.Rows(prefix)
	slices.SortStableFunc(rows, func(a, b string) int { return int(s.Row(a)[0].X - s.Row(b)[0].X) })
	var columns []column
	for _, r := range rows {
		columns = append(columns, col(strings.TrimPrefix(r, prefix), r, metric))
	}
	return columns
}

func rates(s *result.Set, prefix string) string {
	columns := many(s, prefix, "per_s")
	for i := range columns {
		columns[i] = columns[i].more()
	}
	if len(columns) == 0 {
		return ""
	}
	return peerTable(s, "decisions per second", columns...) + "\n" + spread(s, columns...)
}

func latency(s *result.Set) string {
	var columns []column
	for _, c := range many(s, "redis/allowed/", "p50_us") {
		if c.head != "g1" && c.head != "g16" && c.head != "g64" && c.head != "g256" {
			continue
		}
		p99 := col(c.head+" p99", c.row, "p99_us")
		c.head += " p50"
		columns = append(columns, c, p99)
	}
	if len(columns) == 0 {
		return ""
	}
	return peerTable(s, "µs", columns...) + "\n" + spread(s, columns...)
}

func cost(s *result.Set) string {
	if len(s.Rows("redis/allowed/g64")) == 0 {
		return ""
	}
	columns := []column{
		col("client CPU µs", "redis/allowed/g64", "client_us"),
		col("allocations", "redis/allowed/g64", "allocs"),
		col("Redis bytes per client", "bytes/redis", "bytes"),
		col("Redis CPU µs", "redis/allowed/g64", "redis_us"),
	}
	return peerTable(s, "one decision at g64", columns...) + "\n" + spread(s, columns...)
}

func ceilings(s *result.Set) string {
	rows := s.Rows("ceiling/")
	if len(rows) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("| redis-benchmark, 50 connections: decisions per second · Redis CPU µs | P1 | P16 | P64 |\n|---|---:|---:|---:|\n")
	var names []string
	for _, r := range rows {
		name := r[len("ceiling/"):strings.LastIndex(r, "/")]
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		b.WriteString("| " + name + " |")
		for _, depth := range []string{"P1", "P16", "P64"} {
			r := s.Get("ceiling/"+name+"/"+depth, "redis-benchmark")
			b.WriteString(" " + draw.Number(r.Median("per_s")) + " · " + draw.Number(r.Median("redis_us")) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func network(s *result.Set) string {
	var columns []column
	for _, c := range many(s, "network/allowed/", "p50_us") {
		c.head += " p50 µs"
		columns = append(columns, c)
	}
	for _, c := range many(s, "network/allowed/", "per_s") {
		c = c.more()
		c.head += " per s"
		columns = append(columns, c)
	}
	if len(columns) == 0 {
		return ""
	}
	return peerTable(s, "round trip of 1 ms", columns...) + "\n" + spread(s, columns...)
}

// hung has no ratios, because how long to wait is a matter of choice.
func hung(s *result.Set) string {
	columns := []column{
		col("first", "hung", "first_ms"), col("next", "hung", "next_ms"),
		col("deadline of 50 ms: first", "hung", "deadline_first_ms"), col("next", "hung", "deadline_next_ms"),
	}
	lines := peersOf(s, columns)
	if len(lines) == 0 {
		return ""
	}
	var b strings.Builder
	writeHead(&b, "ms", columns)
	for _, l := range lines {
		fmt.Fprintf(&b, "| %s |", l.label())
		r := s.Get("hung", l.peer)
		for _, c := range columns {
			text := draw.Number(c.value(r))
			if c.value(r) >= float64(s.PatienceMS) {
				text = "> " + text
			}
			fmt.Fprintf(&b, " %s |", text)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func memory(s *result.Set) string {
	if len(s.Rows("memory/")) == 0 {
		return ""
	}
	columns := []column{
		col("uniform", "memory/uniform", "ns"), col("Zipf", "memory/zipf", "ns"),
		col("one hot key", "memory/hot", "ns"), col("refused", "memory/refused", "ns"),
		col("uniform: CPU ns", "memory/uniform", "cpu_ns"), col("allocations", "memory/uniform", "allocs"), col("heap bytes per key", "bytes/memory", "bytes"),
	}
	return peerTable(s, "ns per decision, all cores", columns...) + "\n" + spread(s, columns[:4]...)
}

func middleware(s *result.Set) string {
	if len(s.Rows("middleware/")) == 0 {
		return ""
	}
	over := func(head, row, metric string) column {
		bare := s.Get(row, BareHandler)
		return col(head, row, metric).over(bare.Median(metric)).withHeaders()
	}
	inMemory := []column{
		over("allowed: allocations", "middleware/memory/allowed", "allocs"),
		over("refused: allocations", "middleware/memory/refused", "allocs"),
		over("refused: ns", "middleware/memory/refused", "ns"),
		over("allowed: CPU ns", "middleware/memory/allowed", "cpu_ns"),
		over("allowed: ns", "middleware/memory/allowed", "ns"),
	}
	var b strings.Builder
	b.WriteString(peerTable(s, "added to a bare handler, counting in memory", inMemory...))
	b.WriteString("\n" + spread(s, inMemory[2:]...) + "\n")
	b.WriteString(peerTable(s, "the same, counting in Redis", over("allowed: allocations", "middleware/redis/allowed", "allocs")))
	b.WriteString("\nHeaders that they write when they allow a request:\n\n")
	for _, r := range s.Row("middleware/memory/allowed") {
		switch {
		case r.Peer == BareHandler:
		case r.Text == "":
			fmt.Fprintf(&b, "- %s: no header. It has no middleware; here a minimal one calls it.\n", r.Peer)
		default:
			fmt.Fprintf(&b, "- %s: %s\n", r.Peer, r.Text)
		}
	}
	return b.String()
}

func httpLoad(s *result.Set) string {
	var b strings.Builder
	for _, row := range []struct{ head, row string }{{"counting in memory", "http/memory"}, {"counting in Redis", "http/redis"}} {
		if len(s.Row(row.row)) == 0 {
			continue
		}
		bare := s.Get(row.row, BareHandler)
		share := col("÷ bare", row.row, "per_s").more()
		share.value = func(r result.Result) float64 { return r.Median("per_s") / bare.Median("per_s") }
		columns := []column{col("p99 µs", row.row, "p99_us"), col("requests per s", row.row, "per_s").more(), share}
		if b.Len() > 0 {
			b.WriteString("\n")
		}
		b.WriteString(peerTable(s, row.head, columns...) + "\n" + spread(s, columns[1]))
	}
	return b.String()
}

// summary compares weir with the best rival, line by line.
func summary(s *result.Set) string {
	var b strings.Builder
	b.WriteString("| | weir | best rival | | weir ÷ best |\n|---|---:|---:|---|---:|\n")
	n := 0
	line := func(head string, c column) {
		best := bestRival(s, c)
		r := ratio(s, c)
		if math.IsNaN(r) {
			return
		}
		n++
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %.2f |\n", head, draw.Number(c.value(s.Ours(c.row))), draw.Number(c.value(best)), best.Peer, r)
	}
	for _, g := range []string{"g1", "g16", "g64", "g256"} {
		line("allowed per second, "+g, col("", "redis/allowed/"+g, "per_s").more())
	}
	line("p99 µs, g64", col("", "redis/allowed/g64", "p99_us"))
	for _, g := range []string{"g64", "g256"} {
		line("refused per second, "+g, col("", "redis/refused/"+g, "per_s").more())
	}
	line("one hot key per second, g64", col("", "redis/hot/g64", "per_s").more())
	line("Redis CPU µs a decision, g64", col("", "redis/allowed/g64", "redis_us"))
	line("client CPU µs a decision, g64", col("", "redis/allowed/g64", "client_us"))
	line("allocations a decision, g64", col("", "redis/allowed/g64", "allocs"))
	line("Redis bytes per client", col("", "bytes/redis", "bytes"))
	line("per second behind 1 ms, g64", col("", "network/allowed/g64", "per_s").more())
	for _, p := range []string{"uniform", "zipf", "hot", "refused"} {
		line("in memory, "+p+", ns", col("", "memory/"+p, "ns"))
	}
	if bare := s.Get("middleware/memory/allowed", BareHandler); !math.IsNaN(bare.Median("ns")) {
		line("middleware in memory, ns", col("", "middleware/memory/allowed", "ns").over(bare.Median("ns")).withHeaders())
		line("middleware in memory, allocations", col("", "middleware/memory/allowed", "allocs").over(bare.Median("allocs")).withHeaders())
	}
	for _, store := range []string{"memory", "redis"} {
		bare := s.Get("http/"+store, BareHandler)
		c := col("", "http/"+store, "per_s").more()
		c.value = func(r result.Result) float64 { return r.Median("per_s") / bare.Median("per_s") }
		line("HTTP requests ÷ bare handler, "+store, c)
	}
	if n == 0 {
		return ""
	}
	return b.String()
}

func versions(s *result.Set) string {
	var all []string
	for _, module := range slices.Sorted(maps.Keys(s.Versions)) {
		all = append(all, module+" "+s.Versions[module])
	}
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, ",\n") + ".\n"
}
