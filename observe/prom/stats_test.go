package weirprom_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	weirprom "github.com/weir-go/weir/observe/prom"
)

func TestStats(t *testing.T) {
	type numbers struct {
		Held  int64            `json:"held" metric:"gauge"`
		Lost  int64            `json:"lost"`
		Moved map[string]int64 `json:"moved"`
	}
	n := numbers{} // the map is empty when the collector is registered
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(weirprom.Stats("fallback", func() any { return n }))
	n = numbers{2, 3, map[string]int64{"a": 4, "b": 5}}
	want(t, registry, `
# HELP weir_fallback_held Held of the Stats of weir's fallback backend.
# TYPE weir_fallback_held gauge
weir_fallback_held 2
# HELP weir_fallback_lost_total Lost of the Stats of weir's fallback backend.
# TYPE weir_fallback_lost_total counter
weir_fallback_lost_total 3
# HELP weir_fallback_moved_total Moved of the Stats of weir's fallback backend.
# TYPE weir_fallback_moved_total counter
weir_fallback_moved_total{name="a"} 4
weir_fallback_moved_total{name="b"} 5
`)
}

func TestStatsOfNoStruct(t *testing.T) {
	defer func() {
		const want = "weirprom: Stats: the function returns a int; it must return a struct, such as what a backend's Stats returns"
		if got := recover(); got != want {
			t.Errorf("it panics with %v; want %q", got, want)
		}
	}()
	weirprom.Stats("fallback", func() any { return 7 }).Describe(make(chan *prometheus.Desc, 1))
}
