package stats_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/quota"
)

type counted struct {
	counts map[string]int
	name   string
}

func (c counted) Inc(context.Context) { c.counts[c.name]++ }

// blocked is what binds a blocked key.
type blocked struct{}

func (blocked) MarshalText() ([]byte, error) { return []byte("blocked"), nil }

// A policy may have many limits, by overrides. The first 15 that refuse have series, and the
// others share one.
func TestRefusalsByLimit(t *testing.T) {
	var c stats.Counters
	counts := make(map[string]int)
	c.Init(10, func(m stats.Metric, labels ...string) stats.Counter {
		return counted{counts, strings.Join(append([]string{stats.Metrics[m].Name}, labels...), " ")}
	})
	refuse := func(e observe.Decided) {
		e.Policy, e.Outcome = "core", observe.OutcomeRefused
		c.Decided(t.Context(), e)
	}
	for range 2 {
		refuse(observe.Decided{Binding: blocked{}})
		for n := range int64(20) {
			refuse(observe.Decided{Binding: &quota.Limit{Quota: 1 + n, Window: time.Hour}})
		}
	}
	refuse(observe.Decided{Limit: -1})
	refuse(observe.Decided{Op: observe.OpPeek, Binding: blocked{}})
	want := map[string]int{"decisions core take refused": 43, "decisions core peek refused": 1, "refusals core blocked": 2, "refusals core (others)": 12}
	for n := range 14 {
		want[fmt.Sprintf("refusals core %d per 1h", 1+n)] = 2
	}
	if fmt.Sprint(counts) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", counts, want)
	}
}
