// Package report presents the results of a run in tables and figures.
package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/test/bench/result"
	"github.com/weir-go/weir/test/internal/draw"
)

// BareHandler is the peer without a middleware, in rows of middleware.
const BareHandler = "bare handler"

// A Block is a generated part of a page. Pages have a place for each, by name.
type Block struct {
	Name, Title, Text string
}

// Blocks returns the blocks of a run, in the order of the page. Blocks of rows that were not
// measured are left out.
func Blocks(s *result.Set) []Block {
	const g64 = "redis/allowed/g64"
	blocks := []Block{
		{"setup", "Setup", setup(s)},
		{"summary", "Summary", summary(s)},
		{"allowed", "Decisions per second, allowed, many keys", rates(s, "redis/allowed/")},
		{"latency", "Latency, allowed, many keys, µs", latency(s, "redis/allowed/")},
		{"awake", "Latency with processors that do not sleep, µs", latency(s, "awake/allowed/")},
		{"refused", "Decisions per second, refused, 16 hot keys", rates(s, "redis/refused/")},
		{"hot", "Decisions per second, one hot key", rates(s, "redis/hot/")},
		{"cost", "What a decision costs", compare(s, "one decision at g64",
			col("client CPU µs", g64, "client_us"), col("allocations", g64, "allocs"),
			col("Redis bytes per client", "bytes/redis", "bytes"), col("Redis CPU µs", g64, "redis_us"))},
		{"bucket", "A token bucket", compare(s, "one decision of a token bucket, at g64",
			col("client CPU µs", "redis/bucket/g64", "client_us"), col("Redis CPU µs", "redis/bucket/g64", "redis_us"), col("per s", "redis/bucket/g64", "per_s").highestBest())},
		{"ceilings", "What one redis-server can do", ceilings(s)},
		{"network", "Behind a network of 1 ms", network(s)},
		{"hung", "When Redis hangs, ms", hung(s)},
		{"memory", "In memory", compare(s, "ns per decision, all cores",
			col("uniform", "memory/uniform", "ns"), col("Zipf", "memory/zipf", "ns"),
			col("one hot key", "memory/hot", "ns"), col("refused", "memory/refused", "ns"),
			col("uniform: CPU ns", "memory/uniform", "cpu_ns"), col("allocations", "memory/uniform", "allocs"), col("heap bytes per key", "bytes/memory", "bytes"))},
		{"middleware", "As middleware", middleware(s)},
		{"http", "HTTP requests per second", httpLoads(s)},
		{"growth", "Growth", growth(s)},
		{"balance", "Balance of shards", balance(s)},
		{"shards", "Shards that a load needs", shards(s)},
		{"fleet", "Processes that share the callers", fleet(s)},
		{"service", "Services", services(s)},
	}
	return slices.DeleteFunc(blocks, func(b Block) bool { return strings.TrimSpace(b.Text) == "" })
}

func setup(s *result.Set) string {
	if len(s.Rows("service/")) > 0 {
		return "" // services has it
	}
	m := s.Machine
	length, shared := "A full run", ""
	if s.Quick {
		length = "A quick run"
	}
	if load, err := strconv.ParseFloat(m.Load, 64); err == nil && load > 0.5 {
		shared = fmt.Sprintf("Other work shared the cores: the load average was %s when the run began.\n", m.Load)
	}
	return fmt.Sprintf("Measured on %s at commit %s: %s, %d cores, shared by load generator, limiter and Redis; %s, %s, redis-server %s.\n"+
		"%s: medians of %d passes, measurements of %d ms, %s keys, seed %d.\n",
		s.Started.Format(time.DateOnly), s.Commit, m.CPU, m.Cores, m.OS, m.Go, m.Redis,
		length, s.Passes, s.SampleMS, draw.Number(float64(s.Keys)), s.Seed) + shared
}

func rates(s *result.Set, prefix string) string {
	columns := columnsOf(s, prefix, "per_s")
	for i := range columns {
		columns[i] = columns[i].highestBest()
	}
	return compare(s, "decisions per second", columns...)
}

func latency(s *result.Set, prefix string) string {
	var columns []column
	for _, g := range []string{"g1", "g16", "g64", "g256"} {
		for _, p := range []string{"p50", "p99"} {
			if row := prefix + g; len(s.Row(row)) > 0 {
				columns = append(columns, col(g+" "+p, row, p+"_us"))
			}
		}
	}
	return compare(s, "µs", columns...)
}

func ceilings(s *result.Set) string {
	var rows [][]string
	for _, name := range s.Rows("ceiling/") {
		name, first := strings.CutSuffix(strings.TrimPrefix(name, "ceiling/"), "/P1")
		if !first {
			continue
		}
		row := []string{name}
		for _, depth := range []string{"P1", "P16", "P64"} {
			r := s.Get("ceiling/"+name+"/"+depth, "redis-benchmark")
			row = append(row, draw.Number(r.Median("per_s"))+" · "+draw.Number(r.Median("redis_us")))
		}
		rows = append(rows, row)
	}
	return table(1, []string{"redis-benchmark, 50 connections: decisions per second · Redis CPU µs", "P1", "P16", "P64"}, rows)
}

func network(s *result.Set) string {
	columns := columnsOf(s, "network/allowed/", "p50_us")
	for i, c := range columns {
		columns[i].head += " p50 µs"
		columns = append(columns, col(c.head+" per s", c.row, "per_s").highestBest())
	}
	return compare(s, "round trip of 1 ms", columns...)
}

// hung has no ratios, because how long to wait is a matter of choice.
func hung(s *result.Set) string {
	columns := []column{
		col("first", "hung", "first_ms"), col("next", "hung", "next_ms"),
		col("deadline of 50 ms: first", "hung", "deadline_first_ms"), col("next", "hung", "deadline_next_ms"),
	}
	for i := range columns {
		columns[i].patience = float64(s.PatienceMS)
	}
	return compare(s, "ms", columns...)
}

// added is a middleware's cost, added to the bare handler's.
func added(head, row, metric string) column {
	return column{head: head, row: row, metric: metric, added: true, headers: true}
}

func middleware(s *result.Set) string {
	memory := compare(s, "added to a bare handler, counting in memory",
		added("allowed: allocations", "middleware/memory/allowed", "allocs"), added("refused: allocations", "middleware/memory/refused", "allocs"),
		added("refused: ns", "middleware/memory/refused", "ns"),
		added("allowed: CPU ns", "middleware/memory/allowed", "cpu_ns"), added("allowed: ns", "middleware/memory/allowed", "ns"))
	redis := compare(s, "the same, counting in Redis", added("allowed: allocations", "middleware/redis/allowed", "allocs"))
	headers := ""
	for _, r := range s.Row("middleware/memory/allowed") {
		switch {
		case r.Peer == BareHandler:
			headers = "\nHeaders that they write when they allow a request:\n\n"
		case r.Text == "":
			headers += fmt.Sprintf("- %s: no header. It has no middleware; here a minimal one calls it.\n", r.Peer)
		default:
			headers += fmt.Sprintf("- %s: %s\n", r.Peer, r.Text)
		}
	}
	return memory + "\n" + redis + headers
}

// bareShare is a server's rate, as a share of the bare handler's.
func bareShare(head, row string) column {
	return column{head: head, row: row, metric: "per_s", share: true, highest: true}
}

func httpLoads(s *result.Set) string {
	memory, redis, bucket := httpLoad(s, "counting in memory", "http/memory"), httpLoad(s, "counting in Redis", "http/redis"), httpLoad(s, "a token bucket in Redis", "http/redis/bucket")
	return strings.TrimSpace(memory+"\n"+redis+"\n"+bucket) + "\n"
}

func httpLoad(s *result.Set, title, row string) string {
	return compare(s, title, col("p99 µs", row, "p99_us"), col("requests per s", row, "per_s").highestBest(), bareShare("÷ bare", row))
}

// summarized are the columns of the summary, which Worse compares, too.
func summarized() []column {
	columns := []column{
		col("p99 µs, g64", "redis/allowed/g64", "p99_us"),
		col("refused per second, g64", "redis/refused/g64", "per_s").highestBest(),
		col("refused per second, g256", "redis/refused/g256", "per_s").highestBest(),
		col("one hot key per second, g64", "redis/hot/g64", "per_s").highestBest(),
		col("Redis CPU µs a decision, g64", "redis/allowed/g64", "redis_us"),
		col("client CPU µs a decision, g64", "redis/allowed/g64", "client_us"),
		col("allocations a decision, g64", "redis/allowed/g64", "allocs"),
		col("Redis bytes per client", "bytes/redis", "bytes"),
		col("per second behind 1 ms, g64", "network/allowed/g64", "per_s").highestBest(),
		col("in memory, uniform, ns", "memory/uniform", "ns"), col("in memory, zipf, ns", "memory/zipf", "ns"),
		col("in memory, hot, ns", "memory/hot", "ns"), col("in memory, refused, ns", "memory/refused", "ns"),
		added("middleware in memory, ns", "middleware/memory/allowed", "ns"),
		added("middleware in memory, allocations", "middleware/memory/allowed", "allocs"),
		bareShare("HTTP requests ÷ bare handler, memory", "http/memory"), bareShare("HTTP requests ÷ bare handler, redis", "http/redis"),
	}
	for i, g := range []string{"g1", "g16", "g64", "g256"} {
		columns = slices.Insert(columns, i, col("allowed per second, "+g, "redis/allowed/"+g, "per_s").highestBest())
	}
	return columns
}

// Summarized returns the names of the rows of the summary.
func Summarized() (rows []string) {
	for _, c := range summarized() {
		rows = append(rows, c.row)
	}
	return rows
}

// summary compares weir with the best rival, line by line.
func summary(s *result.Set) string {
	var rows [][]string
	for _, c := range summarized() {
		if r := ratio(s, c); !math.IsNaN(r) {
			best := bestRival(s, c)
			rows = append(rows, []string{c.head, draw.Number(c.value(s, s.Ours(c.row))), draw.Number(c.value(s, best)), best.Peer, fmt.Sprintf("%.2f", r)})
		}
	}
	text := table(1, []string{"", "weir", "best rival", "", "weir ÷ best"}, rows)
	return strings.Replace(text, "---:|---:|---:|---:|", "---:|---:|---|---:|", 1)
}

// Worse returns a line for each row of the summary in which weir, next to the best rival of
// the same pass, lost more than a tenth since the stored run: in every pass, and more than the
// passes of the stored run differ.
func Worse(stored, now *result.Set) (lines []string, err error) {
	if before, after := stored.Machine, now.Machine; before.CPU != after.CPU || before.Cores != after.Cores {
		return nil, fmt.Errorf("the stored run is of another machine: %s, %d cores; this one is %s, %d cores", before.CPU, before.Cores, after.CPU, after.Cores)
	}
	for _, c := range summarized() {
		merit := func(s *result.Set) float64 {
			if c.highest {
				return ratio(s, c)
			}
			return 1 / ratio(s, c)
		}
		limit, best := 0.9*merit(stored), math.Inf(-1)
		for i := range stored.Passes {
			if m := merit(stored.Pass(i)); !math.IsNaN(m) {
				limit = min(limit, m)
			}
		}
		for i := range now.Passes {
			if m := merit(now.Pass(i)); !math.IsNaN(m) {
				best = max(best, m)
			}
		}
		if !math.IsInf(best, -1) && best < limit {
			lines = append(lines, fmt.Sprintf("%s: weir ÷ best rival was %.2f, and is %.2f", c.head, ratio(stored, c), ratio(now, c)))
		}
	}
	return lines, nil
}

func services(s *result.Set) string {
	if len(s.Rows("service/")) == 0 {
		return ""
	}
	shared := "which service, Redis and load generator share"
	if s.Machine.Cores > 1 {
		shared = "of which service and Redis have one, and the load generator the others"
	}
	text := fmt.Sprintf("Measured on %s: %d cores, %s; %s. 64 connections, each with one call at a time; %s clients; medians of %d passes of %d ms.\n",
		s.Started.Format(time.DateOnly), s.Machine.Cores, shared, s.Machine.Go, draw.Number(float64(s.Keys)), s.Passes, s.SampleMS)
	for _, row := range s.Rows("service/descriptors/") {
		text += "\n" + compare(s, "descriptors: "+strings.TrimPrefix(row, "service/descriptors/"),
			col("p50 µs", row, "p50_us"), col("p99 µs", row, "p99_us"), col("CPU µs a decision", row, "cpu_us"), col("decisions a second", row, "per_s").highestBest())
	}
	if row := "service/envoy"; len(s.Row(row)) > 0 {
		text += "\nHTTP requests through Envoy, which asks about each, and shares the load generator's cores:\n\n" + compare(s, "1 descriptor, HTTP",
			col("p50 µs", row, "p50_us"), col("p99 µs", row, "p99_us"), col("CPU µs of service and Redis", row, "cpu_us"), col("requests a second", row, "per_s").highestBest())
	}
	var rows [][]string
	for _, row := range s.Rows("service/hung/") {
		for _, r := range s.Row(row) {
			rows = append(rows, []string{r.Peer, strings.TrimPrefix(row, "service/hung/"), r.Text, draw.Number(slices.Max(r.Values["took_ms"]))})
		}
	}
	return text + "\nWhile Redis hangs, the slowest answer in the passes:\n\n" + table(3, []string{"", "deadline of the call", "answer", "answered, or given up, after ms"}, rows)
}
