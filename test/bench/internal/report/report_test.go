package report

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/weir-go/weir/test/bench/peers"
	"github.com/weir-go/weir/test/bench/result"
)

func values(metric string, v ...float64) map[string][]float64 { return map[string][]float64{metric: v} }

func TestCompare(t *testing.T) {
	s := &result.Set{Results: []result.Result{
		{Row: "r", Peer: "slow", Values: values("per_s", 10, 30, 20)},
		{Row: "r", Peer: "weir", Role: peers.Ours, Values: values("per_s", 120)},
		{Row: "r", Peer: "fast", Values: values("per_s", 80)},
		{Row: "r", Peer: "floor", Role: peers.Ceiling, Values: values("per_s", 1e6)},
		{Row: "r", Peer: "broken", Err: "no answer"},
		{Row: "r", Peer: "sloppy", Values: map[string][]float64{"per_s": {40}, "errors_pct": {12.5}}},
	}}
	c := col("g1", "r", "per_s").highestBest()
	const want = `| per second | g1 |
|---|---:|
| **weir** | **120** |
| fast | 80 |
| sloppy | 40 (12.5 % errors) |
| slow | 20 |
| broken | failed |
| *floor* | 1 M |
| **weir ÷ best rival** | **1.50 ×** |

Spread, (highest − lowest) ÷ median of the passes: 100 % in the median of these cells, 100 % in the widest (slow, g1).
`
	if got := compare(s, "per second", c); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if best := bestRival(s, col("", "r", "per_s")); best.Peer != "slow" {
		t.Errorf("the lowest is %q, want slow", best.Peer)
	}
}

func TestNoRatioToNothing(t *testing.T) {
	s := &result.Set{Results: []result.Result{
		{Row: "r", Peer: "weir", Role: peers.Ours, Values: values("allocs", 1)},
		{Row: "r", Peer: "none", Values: values("allocs", 0.0004)},
	}}
	if got := ratio(s, col("", "r", "allocs")); !math.IsNaN(got) {
		t.Errorf("ratio is %v", got)
	}
}

func TestShardsAreDerivedFromRedisCPU(t *testing.T) {
	s := &result.Set{Results: []result.Result{
		{Row: "redis/allowed/g64", Peer: "weir", Role: peers.Ours, Values: values("redis_us", 6)},
		{Row: "redis/allowed/g64", Peer: "weir, 2 policies of 3 limits", Role: peers.Variant, Values: values("redis_us", 12)},
		{Row: "growth/limits/redis/16", Peer: "weir", Role: peers.Ours, Values: values("redis_us", 60)},
	}}
	// 6 µs is 0.6 s of CPU for 100,000 decisions: one shard at 60 %.
	if got := shards(s); !strings.Contains(got, "| 100 k | 1 | 2 | 10 |\n") {
		t.Errorf("got\n%s", got)
	}
}

func TestFillReplacesPlacesOnly(t *testing.T) {
	page := "before\n<!-- begin bench a -->\nold\n<!-- end bench -->\nbetween\n<!-- begin bench b -->\nkept\n<!-- end bench -->\nafter\n"
	const want = "before\n<!-- begin bench a -->\n\nnew\n\n<!-- end bench -->\nbetween\n<!-- begin bench b -->\nkept\n<!-- end bench -->\nafter\n"
	blocks := []Block{{Name: "a", Text: "new\n"}, {Name: "c", Text: "elsewhere\n"}}
	for range 2 { // the second time changes nothing
		if page = string(fill([]byte(page), blocks)); page != want {
			t.Errorf("got %q, want %q", page, want)
		}
	}
}

// A row is worse if its ratio is, in every pass, by more than a tenth, and by more than the
// stored passes differ.
func TestWorse(t *testing.T) {
	run := func(weir, rival, ns []float64) *result.Set {
		return &result.Set{Passes: len(weir), Results: []result.Result{
			{Row: "redis/allowed/g16", Peer: "weir", Role: peers.Ours, Values: values("per_s", weir...)},
			{Row: "redis/allowed/g16", Peer: "rival", Values: values("per_s", rival...)},
			{Row: "memory/hot", Peer: "weir", Role: peers.Ours, Values: values("ns", ns...)},
			{Row: "memory/hot", Peer: "rival", Values: values("ns", 100, 100, 100)},
		}}
	}
	stored := run([]float64{200, 210, 190}, []float64{100, 100, 100}, []float64{50, 50, 50})
	for name, c := range map[string]struct {
		now  *result.Set
		want []string
	}{
		"the same":              {stored, nil},
		"a slower machine":      {run([]float64{20, 21, 19}, []float64{10, 10, 10}, []float64{50, 50, 50}), nil},
		"worse in two of three": {run([]float64{100, 195, 100}, []float64{100, 100, 100}, []float64{90, 51, 90}), nil},
		"worse": {run([]float64{100, 110, 170}, []float64{100, 100, 100}, []float64{60, 61, 62}), []string{
			"allowed per second, g16: weir ÷ best rival was 2.00, and is 1.10", "in memory, hot, ns: weir ÷ best rival was 0.50, and is 0.61",
		}},
	} {
		if got, err := Worse(stored, c.now); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, error %v; want %q", name, got, err, c.want)
		}
	}
	changed := *stored
	changed.Machine.Cores = 64
	if _, err := Worse(stored, &changed); err == nil {
		t.Error("a run of another machine is no error")
	}
}
