package report

import (
	"math"
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
