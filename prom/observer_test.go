package weirprom_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/observe"
	weirprom "github.com/weir-go/weir/prom"
	"github.com/weir-go/weir/quota"
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

// want fails the test unless the metrics of these names are the lines, and no more.
func want(t *testing.T, registry *prometheus.Registry, lines string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(registry, strings.NewReader(lines), names...); err != nil {
		t.Error(err)
	}
}

var core = &throttler.Policy{Name: "core", Limits: []throttler.Limit{
	{Quota: 9, Window: time.Hour}, {Quota: 2, Window: time.Minute},
}}

func TestDecisions(t *testing.T) {
	ctx := t.Context()
	o, registry := newObserver(t, nil)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: o})
	d, err := th.Take(ctx, core.Charge("alice"))
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		_, _ = th.Take(ctx, core.Charge("alice")) // the last three are refused
	}
	_, _ = th.Refund(ctx, d)
	_, _ = th.Take(ctx, throttler.Charge{Policy: core, Key: "alice", Cost: -1})

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
# HELP weir_refusals_total Refused takes, by the limit that refused: its index in the policy.
# TYPE weir_refusals_total counter
weir_refusals_total{limit="1",policy="core"} 3
`, "weir_decisions_total", "weir_refusals_total", "weir_degraded_decisions_total")
	if n := testutil.CollectAndCount(registry, "weir_decision_duration_seconds"); n != 3 {
		t.Errorf("%d histograms of durations; one for each of take, peek and settle is right", n)
	}
}

func TestOtherEvents(t *testing.T) {
	o, registry := newObserver(t, &weirprom.Options{Buckets: []float64{.01}})
	o.Sent(observe.Sent{Backend: "redisbackend", Shard: "a", Decisions: 3, Duration: time.Millisecond})
	o.Sent(observe.Sent{Backend: "redisbackend", Shard: "a", Decisions: 1, Duration: time.Second, Err: errors.New("refused")})
	o.Sent(observe.Sent{Backend: "redisbackend", Shard: "a", Replica: true, Decisions: 1, Duration: time.Millisecond})
	server := observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary"}
	o.Checked(server)
	server.Skew, server.SkewKnown = -1500*time.Millisecond, true
	o.Checked(server)
	for range 2 { // two openings, reported twice each
		server.Open, server.SkewKnown = true, false
		o.Checked(server)
		o.Checked(server)
		server.Open = false
		o.Checked(server)
	}
	o.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true, Open: true, Cut: true, Lag: 2 * time.Second})
	o.Moved(observe.Moved{From: "a", To: "b"})
	o.Moved(observe.Moved{From: "a", To: "b", Lost: true})
	o.Moved(observe.Moved{From: "a", To: "b", Err: errors.New("no")})
	for range 2 {
		o.Failed(observe.Failed{Backend: "redisbackend", Shard: "a", Cause: "breaker open", Policy: "core", Result: observe.ResultAnswered503})
	}
	o.Failed(observe.Failed{Result: observe.Result(observe.Results)}) // of a newer middleware

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
# HELP weir_failures_total Requests that were not decided about by the shared counts, and what was not refunded, settled or charged.
# TYPE weir_failures_total counter
weir_failures_total{backend="redisbackend",cause="breaker open",result="answered_503",shard="a"} 2
# HELP weir_moves_total Counts that moved to another backend, and those that could not.
# TYPE weir_moves_total counter
weir_moves_total{from="a",outcome="failed",to="b"} 1
weir_moves_total{from="a",outcome="lost",to="b"} 1
weir_moves_total{from="a",outcome="moved",to="b"} 1
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
weir_round_trip_failures_total{backend="redisbackend",role="replica",shard="a"} 0
`, "weir_breaker_open", "weir_breaker_openings_total", "weir_clock_skew_seconds", "weir_failures_total", "weir_moves_total", "weir_replica_cut",
		"weir_replica_lag_seconds", "weir_round_trip_decisions", "weir_round_trip_duration_seconds", "weir_round_trip_failures_total")
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint finds %v, %v", problems, err)
	}
}

// Names that do not end, such as those of policies made out of requests, must not
// make series without end; and no part of a key is in any.
func TestSeriesAreBounded(t *testing.T) {
	const names = 20
	o, registry := newObserver(t, &weirprom.Options{MaxNames: names})
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: o})
	for i := range 50 * names {
		p := &throttler.Policy{Name: fmt.Sprintf("policy-%d", i), Limits: core.Limits}
		for range 3 {
			_, _ = th.Take(t.Context(), throttler.Charge{Policy: p, Key: "secret key", Partition: "secret partition"})
		}
		shard := fmt.Sprintf("shard-%d", i)
		o.Sent(observe.Sent{Backend: "redisbackend", Shard: shard, Decisions: 1})
		o.Checked(observe.Checked{Backend: "redisbackend", Shard: shard, Server: shard})
		o.Moved(observe.Moved{From: shard, To: "b"})
		o.Failed(observe.Failed{Backend: "redisbackend", Shard: shard, Cause: "other"})
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	perName := map[string]int{"weir_decisions_total": 6, "weir_decision_duration_seconds": 1}
	for _, f := range families {
		if most := max(perName[f.GetName()], 1) * (names + 1); len(f.Metric) > most {
			t.Errorf("%s has %d series; %d is the most", f.GetName(), len(f.Metric), most)
		}
		if strings.Contains(f.String(), "secret") {
			t.Errorf("%s has a key in it: %v", f.GetName(), f)
		}
	}
	want(t, registry, `
# HELP weir_refusals_total Refused takes, by the limit that refused: its index in the policy.
# TYPE weir_refusals_total counter
weir_refusals_total{limit="1",policy="(others)"} 980
`+func() string {
		var lines []string
		for i := range names {
			lines = append(lines, fmt.Sprintf("weir_refusals_total{limit=\"1\",policy=\"policy-%d\"} 1\n", i))
		}
		return strings.Join(lines, "")
	}(), "weir_refusals_total")
}

// What Prometheus or an array would panic at is no reason to fail a request.
func TestStrangeEvents(t *testing.T) {
	o, registry := newObserver(t, nil)
	ctx := t.Context()
	strange := "\xff\x00" + strings.Repeat("é", 500)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: o})
	_, err := th.Take(ctx, (&throttler.Policy{Name: strange}).Charge("a"))
	if !errors.Is(err, throttler.ErrInvalid) {
		t.Error(err)
	}
	o.Decided(ctx, observe.Decided{Op: 200})
	o.Decided(ctx, observe.Decided{Outcome: 200})
	for _, limit := range []int{-1, quota.MaxLimits, 1 << 30} {
		o.Decided(ctx, observe.Decided{Outcome: observe.OutcomeRefused, Limit: limit})
	}
	o.Sent(observe.Sent{Backend: strange, Shard: strange, Decisions: -1, Duration: -1})
	o.Checked(observe.Checked{Backend: strange, Shard: strange, Server: strange})
	o.Moved(observe.Moved{From: strange, To: strange})
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
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

func TestManyGoroutines(t *testing.T) {
	o, registry := newObserver(t, &weirprom.Options{MaxNames: 4})
	const each = 1000
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range each {
				o.Decided(t.Context(), observe.Decided{Policy: fmt.Sprint("p", i%8), Outcome: observe.OutcomeRefused, Limit: i % 2})
				o.Sent(observe.Sent{Shard: fmt.Sprint(i % 8)})
				o.Checked(observe.Checked{Shard: "a", Server: fmt.Sprint(i % 8), Open: i%2 == 0})
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			_, _ = registry.Gather()
		}
	})
	wg.Wait()
	for _, name := range []string{"weir_decisions_total", "weir_refusals_total", "weir_round_trip_decisions"} {
		if n := total(t, registry, name); n != 8*each {
			t.Errorf("%s counts %v events of %d", name, n, 8*each)
		}
	}
}

// total is the sum of a counter's series, or of the counts of a histogram's.
func total(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.Metric {
				sum += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func TestNoAllocations(t *testing.T) {
	o, _ := newObserver(t, nil)
	for name, event := range map[string]func(){
		"Decided": func() {
			o.Decided(context.Background(), observe.Decided{Policy: "core", Outcome: observe.OutcomeRefused, Limit: 1, Degraded: true})
		},
		"Sent": func() { o.Sent(observe.Sent{Backend: "redisbackend", Shard: "a", Decisions: 8}) },
		"Checked": func() {
			o.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary", SkewKnown: true})
		},
		"Moved": func() { o.Moved(observe.Moved{From: "a", To: "b", Lost: true}) },
	} {
		if n := testing.AllocsPerRun(1000, event); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// What the observer costs a take in memory.
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
