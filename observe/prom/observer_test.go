package weirprom_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/internal/testkit/observertest"
	"github.com/weir-go/weir/observe"
	weirprom "github.com/weir-go/weir/observe/prom"
	"github.com/weir-go/weir/throttler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newObserver(t testing.TB, options *weirprom.Options) (*weirprom.Observer, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	o, err := weirprom.New(registry, options)
	if err != nil {
		t.Fatal(err)
	}
	return o, registry
}

// want fails the test unless lines are exactly the metrics of these names.
func want(t *testing.T, registry *prometheus.Registry, lines string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(registry, strings.NewReader(lines), names...); err != nil {
		t.Error(err)
	}
}

// observed returns an observer for the suite of all observers.
func observed(t testing.TB, maxNames int) observertest.Observer {
	o, registry := newObserver(t, &weirprom.Options{MaxNames: maxNames})
	return observertest.Observer{
		Observer: o, Decisions: "weir_decisions_total", PerPolicy: 6, // one of each outcome
		Moves: "weir_moves_total", Degraded: "weir_degraded_decisions_total",
		Counts: []string{"weir_decisions_total", "weir_refusals_total", "weir_round_trip_decisions"},
		Read: func(t testing.TB) (all []observertest.Series) {
			families, err := registry.Gather()
			if err != nil {
				t.Error(err)
			}
			for _, f := range families {
				for _, m := range f.Metric {
					all = append(all, observertest.Series{
						Name: f.GetName(), Text: m.String(),
						Value: m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()),
					})
				}
			}
			return all
		},
	}
}

func TestObserver(t *testing.T) { observertest.Run(t, observed) }

func TestDecisions(t *testing.T) {
	o, registry := newObserver(t, nil)
	observertest.Decide(t, o)
	want(t, registry, `
# HELP weir_decisions_total Decisions, by the policy whose limit binds.
# TYPE weir_decisions_total counter
weir_decisions_total{op="settle",outcome="allowed",policy="core"} 1
weir_decisions_total{op="settle",outcome="canceled",policy="core"} 0
weir_decisions_total{op="settle",outcome="invalid",policy="core"} 0
weir_decisions_total{op="settle",outcome="overloaded",policy="core"} 0
weir_decisions_total{op="settle",outcome="refused",policy="core"} 0
weir_decisions_total{op="settle",outcome="unavailable",policy="core"} 0
weir_decisions_total{op="take",outcome="allowed",policy="core"} 2
weir_decisions_total{op="take",outcome="canceled",policy="core"} 0
weir_decisions_total{op="take",outcome="invalid",policy="core"} 1
weir_decisions_total{op="take",outcome="overloaded",policy="core"} 0
weir_decisions_total{op="take",outcome="refused",policy="core"} 3
weir_decisions_total{op="take",outcome="unavailable",policy="core"} 0
# HELP weir_degraded_decisions_total Decisions made without the shared counts.
# TYPE weir_degraded_decisions_total counter
weir_degraded_decisions_total{policy="core"} 0
# HELP weir_refusals_total Refused takes, by the limit that refused, such as 60 per 1h.
# TYPE weir_refusals_total counter
weir_refusals_total{limit="2 per 1m",policy="core"} 3
`, "weir_decisions_total", "weir_refusals_total", "weir_degraded_decisions_total")
	if n := testutil.CollectAndCount(registry, "weir_decision_duration_seconds"); n != 6 {
		t.Errorf("%d histograms of durations; one for each of take, peek, settle, wait, reset and pause is right", n)
	}
}

func TestOtherEvents(t *testing.T) {
	o, registry := newObserver(t, &weirprom.Options{Buckets: []float64{.01}})
	observertest.Serve(o)
	want(t, registry, `
# HELP weir_breaker_open Whether the server's breaker is open: 1, it does not answer and is sent nothing.
# TYPE weir_breaker_open gauge
weir_breaker_open{backend="redisbackend",server="primary",shard="a"} 0
weir_breaker_open{backend="redisbackend",server="replica 0",shard="a"} 1
# HELP weir_breaker_openings_total How often the server's breaker opened.
# TYPE weir_breaker_openings_total counter
weir_breaker_openings_total{backend="redisbackend",server="primary",shard="a"} 2
weir_breaker_openings_total{backend="redisbackend",server="replica 0",shard="a"} 1
# HELP weir_clock_skew_seconds How far this process' clock is ahead of the server's; negative if behind.
# TYPE weir_clock_skew_seconds gauge
weir_clock_skew_seconds{backend="redisbackend",server="primary",shard="a"} -1.5
# HELP weir_failures_total Requests that the shared counts did not decide, and refunds, settlements and charges that failed.
# TYPE weir_failures_total counter
weir_failures_total{backend="redisbackend",cause="breaker open",result="answered_503",shard="a"} 2
# HELP weir_moves_total Counts that moved to another backend, or could not.
# TYPE weir_moves_total counter
weir_moves_total{from="x",outcome="failed",to="y"} 1
weir_moves_total{from="x",outcome="lost",to="y"} 1
weir_moves_total{from="x",outcome="moved",to="y"} 1
# HELP weir_replica_cut Whether the replica is cut off from its primary, or lags too far: 1, it is not asked.
# TYPE weir_replica_cut gauge
weir_replica_cut{backend="redisbackend",server="replica 0",shard="a"} 1
# HELP weir_replica_lag_seconds How far the replica's counts may be behind.
# TYPE weir_replica_lag_seconds gauge
weir_replica_lag_seconds{backend="redisbackend",server="replica 0",shard="a"} 2
# HELP weir_round_trip_decisions How many decisions shared a round trip.
# TYPE weir_round_trip_decisions histogram
weir_round_trip_decisions_bucket{backend="redisbackend",role="primary",shard="a",le="1"} 1
weir_round_trip_decisions_bucket{backend="redisbackend",role="primary",shard="a",le="2"} 1
weir_round_trip_decisions_bucket{backend="redisbackend",role="primary",shard="a",le="4"} 2
weir_round_trip_decisions_bucket{backend="redisbackend",role="primary",shard="a",le="8"} 2
weir_round_trip_decisions_bucket{backend="redisbackend",role="primary",shard="a",le="16"} 2
weir_round_trip_decisions_bucket{backend="redisbackend",role="primary",shard="a",le="32"} 2
weir_round_trip_decisions_bucket{backend="redisbackend",role="primary",shard="a",le="64"} 2
weir_round_trip_decisions_bucket{backend="redisbackend",role="primary",shard="a",le="128"} 2
weir_round_trip_decisions_bucket{backend="redisbackend",role="primary",shard="a",le="+Inf"} 2
weir_round_trip_decisions_sum{backend="redisbackend",role="primary",shard="a"} 4
weir_round_trip_decisions_count{backend="redisbackend",role="primary",shard="a"} 2
weir_round_trip_decisions_bucket{backend="redisbackend",role="replica",shard="a",le="1"} 1
weir_round_trip_decisions_bucket{backend="redisbackend",role="replica",shard="a",le="2"} 1
weir_round_trip_decisions_bucket{backend="redisbackend",role="replica",shard="a",le="4"} 1
weir_round_trip_decisions_bucket{backend="redisbackend",role="replica",shard="a",le="8"} 1
weir_round_trip_decisions_bucket{backend="redisbackend",role="replica",shard="a",le="16"} 1
weir_round_trip_decisions_bucket{backend="redisbackend",role="replica",shard="a",le="32"} 1
weir_round_trip_decisions_bucket{backend="redisbackend",role="replica",shard="a",le="64"} 1
weir_round_trip_decisions_bucket{backend="redisbackend",role="replica",shard="a",le="128"} 1
weir_round_trip_decisions_bucket{backend="redisbackend",role="replica",shard="a",le="+Inf"} 1
weir_round_trip_decisions_sum{backend="redisbackend",role="replica",shard="a"} 1
weir_round_trip_decisions_count{backend="redisbackend",role="replica",shard="a"} 1
# HELP weir_round_trip_duration_seconds How long round trips to servers took.
# TYPE weir_round_trip_duration_seconds histogram
weir_round_trip_duration_seconds_bucket{backend="redisbackend",role="primary",shard="a",le="0.01"} 1
weir_round_trip_duration_seconds_bucket{backend="redisbackend",role="primary",shard="a",le="+Inf"} 2
weir_round_trip_duration_seconds_sum{backend="redisbackend",role="primary",shard="a"} 1.001
weir_round_trip_duration_seconds_count{backend="redisbackend",role="primary",shard="a"} 2
weir_round_trip_duration_seconds_bucket{backend="redisbackend",role="replica",shard="a",le="0.01"} 1
weir_round_trip_duration_seconds_bucket{backend="redisbackend",role="replica",shard="a",le="+Inf"} 1
weir_round_trip_duration_seconds_sum{backend="redisbackend",role="replica",shard="a"} 0.001
weir_round_trip_duration_seconds_count{backend="redisbackend",role="replica",shard="a"} 1
# HELP weir_round_trip_failures_total Round trips to servers that failed.
# TYPE weir_round_trip_failures_total counter
weir_round_trip_failures_total{backend="redisbackend",role="primary",shard="a"} 1
weir_round_trip_failures_total{backend="redisbackend",role="replica",shard="a"} 1
`, "weir_breaker_open", "weir_breaker_openings_total", "weir_clock_skew_seconds", "weir_failures_total", "weir_moves_total", "weir_replica_cut",
		"weir_replica_lag_seconds", "weir_round_trip_decisions", "weir_round_trip_duration_seconds", "weir_round_trip_failures_total")
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint finds %v, %v", problems, err)
	}
}

func TestOneObserverForEachRegisterer(t *testing.T) {
	_, registry := newObserver(t, nil)
	var already prometheus.AlreadyRegisteredError
	if _, err := weirprom.New(registry, nil); !errors.As(err, &already) {
		t.Errorf("a second observer has the error %v", err)
	}
	registry = prometheus.NewRegistry()
	for _, api := range []string{"public", "internal"} {
		if _, err := weirprom.New(prometheus.WrapRegistererWith(prometheus.Labels{"api": api}, registry), nil); err != nil {
			t.Errorf("an observer with a label of its own: %v", err)
		}
	}
}

// BenchmarkTake measures the cost of the observer for a take in memory.
func BenchmarkTake(b *testing.B) {
	o, _ := newObserver(b, nil)
	for _, run := range []struct {
		name     string
		observer observe.Observer
	}{
		{"none", nil},
		{"unobserved", observe.Nothing{}},
		{"prometheus", o},
	} {
		b.Run(run.name, func(b *testing.B) {
			th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: run.observer})
			p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1 << 50, Window: time.Hour}}}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := th.Take(b.Context(), p.Charge("alice")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
