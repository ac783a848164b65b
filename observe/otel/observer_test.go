package weirotel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/internal/testkit/observertest"
	"github.com/weir-go/weir/observe"
	weirotel "github.com/weir-go/weir/observe/otel"
	"github.com/weir-go/weir/throttler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// observed is an Observer, and readers of its metrics and spans.
type observed struct {
	*weirotel.Observer
	reader *metric.ManualReader
	spans  *tracetest.SpanRecorder
	tracer *trace.TracerProvider
}

func newObserved(t testing.TB, maxNames int) *observed {
	t.Helper()
	o := &observed{reader: metric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	o.tracer = trace.NewTracerProvider(trace.WithSpanProcessor(o.spans))
	var err error
	o.Observer, err = weirotel.New(&weirotel.Options{
		MeterProvider: metric.NewMeterProvider(metric.WithReader(o.reader)), TracerProvider: o.tracer, MaxNames: maxNames,
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// series returns the data points, each as a text with its unit, and its value.
func (o *observed) series(t testing.TB) (read []observertest.Series) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := o.reader.Collect(t.Context(), &all); err != nil {
		t.Error(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			add := func(attributes fmt.Stringer, value any, counts float64) {
				read = append(read, observertest.Series{Name: m.Name, Text: fmt.Sprintf("%s %v %s: %v", m.Name, attributes, m.Unit, value), Value: counts})
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(attributes(p.Attributes.MarshalLog()), p.Value, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					add(attributes(p.Attributes.MarshalLog()), p.Value, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					add(attributes(p.Attributes.MarshalLog()), p.Value, p.Value)
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					add(attributes(p.Attributes.MarshalLog()), fmt.Sprintf("%d in %d, %d buckets", p.Sum, p.Count, len(p.BucketCounts)), float64(p.Count))
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(attributes(p.Attributes.MarshalLog()), fmt.Sprintf("%d, %d buckets", p.Count, len(p.BucketCounts)), float64(p.Count))
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return read
}

type marshaled map[string]string

func attributes(m any) marshaled {
	all := make(marshaled)
	for k, v := range m.(map[string]string) {
		all[k] = v
	}
	return all
}

func (m marshaled) String() string {
	return strings.TrimPrefix(fmt.Sprint(map[string]string(m)), "map")
}

func (o *observed) want(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for _, s := range o.series(t) {
		got = append(got, s.Text)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("read\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestObserver(t *testing.T) {
	observertest.Run(t, func(t testing.TB, maxNames int) observertest.Observer {
		o := newObserved(t, maxNames)
		return observertest.Observer{
			Observer: o, Read: o.series,
			Decisions: "weir.decisions", PerPolicy: 6, // one of each outcome
			Moves: "weir.moves", Degraded: "weir.degraded_decisions",
			Counts: []string{"weir.decisions", "weir.refusals", "weir.round_trip.decisions"},
		}
	})
}

func TestDecisions(t *testing.T) {
	o := newObserved(t, 0)
	observertest.Decide(t, o)
	o.Decided(t.Context(), observe.Decided{Policy: "core", Limit: -1, Degraded: true})
	o.want(t,
		"weir.decisions [op:settle outcome:allowed policy:core] {decision}: 1",
		"weir.decisions [op:settle outcome:canceled policy:core] {decision}: 0",
		"weir.decisions [op:settle outcome:invalid policy:core] {decision}: 0",
		"weir.decisions [op:settle outcome:overloaded policy:core] {decision}: 0",
		"weir.decisions [op:settle outcome:refused policy:core] {decision}: 0",
		"weir.decisions [op:settle outcome:unavailable policy:core] {decision}: 0",
		"weir.decisions [op:take outcome:allowed policy:core] {decision}: 3",
		"weir.decisions [op:take outcome:canceled policy:core] {decision}: 0",
		"weir.decisions [op:take outcome:invalid policy:core] {decision}: 1",
		"weir.decisions [op:take outcome:overloaded policy:core] {decision}: 0",
		"weir.decisions [op:take outcome:unavailable policy:core] {decision}: 0",
		"weir.decisions [op:take outcome:refused policy:core] {decision}: 3",
		"weir.degraded_decisions [policy:core] {decision}: 1",
		"weir.refusals [limit:2 per 1m policy:core] {decision}: 3",
		"weir.decision.duration [op:take] s: 7, 15 buckets",
		"weir.decision.duration [op:settle] s: 1, 15 buckets",
	)
	if n := len(o.spans.Ended()); n != 0 {
		t.Errorf("%d spans without a trace", n)
	}
}

// By default, the SDK merges combinations of attributes beyond 2,000 into one.
func TestAllPoliciesFitInTheSDK(t *testing.T) {
	o := newObserved(t, 0)
	for i := range 300 {
		for _, op := range []observe.Op{observe.OpTake, observe.OpPeek, observe.OpSettle} {
			o.Decided(t.Context(), observe.Decided{Policy: fmt.Sprint(i), Op: op})
		}
	}
	for _, s := range o.series(t) {
		if strings.Contains(s.Text, "overflow") {
			t.Errorf("beyond the limit: %s", s.Text)
		}
	}
}

func TestOtherEvents(t *testing.T) {
	o := newObserved(t, 0)
	observertest.Serve(o)
	want := []string{
		"weir.round_trip.duration [backend:redisbackend role:primary shard:a] s: 1, 15 buckets",
		"weir.round_trip.duration [backend:redisbackend error.type:_OTHER role:primary shard:a] s: 1, 15 buckets",
		"weir.round_trip.duration [backend:redisbackend error.type:timeout role:replica shard:a] s: 1, 15 buckets",
		"weir.round_trip.decisions [backend:redisbackend role:primary shard:a] {decision}: 3 in 1, 9 buckets",
		"weir.round_trip.decisions [backend:redisbackend error.type:_OTHER role:primary shard:a] {decision}: 1 in 1, 9 buckets",
		"weir.round_trip.decisions [backend:redisbackend error.type:timeout role:replica shard:a] {decision}: 1 in 1, 9 buckets",
		"weir.failures [backend:redisbackend cause:breaker open result:answered_503 shard:a] {failure}: 2",
		"weir.moves [from:x outcome:moved to:y] {count}: 1",
		"weir.moves [from:x outcome:lost to:y] {count}: 1",
		"weir.moves [from:x outcome:failed to:y] {count}: 1",
	}
	o.want(t, append(slices.Clone(want),
		"weir.breaker.open [backend:redisbackend server:primary shard:a] : 0",
		"weir.breaker.open [backend:redisbackend server:replica 0 shard:a] : 1",
		"weir.breaker.openings [backend:redisbackend server:primary shard:a] {opening}: 2",
		"weir.breaker.openings [backend:redisbackend server:replica 0 shard:a] {opening}: 1",
		"weir.replica.cut [backend:redisbackend server:replica 0 shard:a] : 1",
		"weir.replica.lag [backend:redisbackend server:replica 0 shard:a] s: 2",
		"weir.clock.skew [backend:redisbackend server:primary shard:a] s: -1.5",
	)...)
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	o.want(t, want...)
}

func TestSpans(t *testing.T) {
	o := newObserved(t, 0)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: o})
	ctx, request := o.tracer.Tracer("test").Start(t.Context(), "request")
	take := func(ctx context.Context) {
		_, _ = th.Take(ctx, throttler.Charge{Policy: observertest.Core, Key: "secret", Partition: "secret"})
	}
	before := time.Now()
	for range 3 {
		take(ctx)
	}
	_, _ = th.Peek(ctx, observertest.Core.Charge("secret"))
	o.Decided(ctx, observe.Decided{
		Policy: "core", Limit: -1, Outcome: observe.OutcomeUnavailable, Degraded: true, Err: errors.New("dial 10.0.0.1"),
		Start: before, Duration: time.Second,
	})
	after := time.Now()
	request.End()
	take(t.Context()) // in no trace
	unsampled := trace.NewTracerProvider(trace.WithSampler(trace.NeverSample()))
	ctx, other := unsampled.Tracer("test").Start(t.Context(), "request")
	take(ctx)
	other.End()

	want := []string{
		"weir.take Unset map[weir.limit:2 per 1m weir.outcome:allowed weir.policy:core]",
		"weir.take Unset map[weir.limit:2 per 1m weir.outcome:allowed weir.policy:core]",
		"weir.take Unset map[weir.limit:2 per 1m weir.outcome:refused weir.policy:core]",
		"weir.peek Unset map[weir.limit:2 per 1m weir.outcome:refused weir.policy:core]",
		"weir.take Error map[error.type:unavailable weir.degraded:true weir.outcome:unavailable weir.policy:core]",
		"request Unset map[]",
	}
	var got []string
	for _, s := range o.spans.Ended() {
		all := make(map[string]string)
		for _, a := range s.Attributes() {
			all[string(a.Key)] = a.Value.String()
		}
		got = append(got, fmt.Sprint(s.Name(), " ", s.Status().Code, " ", all))
		if s.Name() == "request" {
			continue
		}
		if s.Parent().SpanID() != request.SpanContext().SpanID() {
			t.Errorf("%s has the parent %v, not the request", s.Name(), s.Parent())
		}
		if s.Status().Code == codes.Error {
			if s.Status().Description != "unavailable" || len(s.Events()) > 0 || s.EndTime().Sub(s.StartTime()) != time.Second {
				t.Errorf("a failed decision has the status %q, the events %v, and took %v", s.Status().Description, s.Events(), s.EndTime().Sub(s.StartTime()))
			}
		} else if s.StartTime().Before(before) || s.EndTime().After(after) || s.EndTime().Before(s.StartTime()) {
			t.Errorf("%s was from %v to %v, which is not in the request", s.Name(), s.StartTime(), s.EndTime())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("spans are\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestGlobalProvidersAreTheDefault(t *testing.T) {
	o, err := weirotel.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	o.Decided(t.Context(), observe.Decided{Policy: "core"})
	if err := o.Close(); err != nil {
		t.Error(err)
	}
}

// BenchmarkTake measures the cost of the observer for a take in memory.
func BenchmarkTake(b *testing.B) {
	o := newObserved(b, 0)
	traced, _ := o.tracer.Tracer("test").Start(b.Context(), "request")
	for _, run := range []struct {
		name     string
		ctx      context.Context
		observer observe.Observer
	}{
		{"none", b.Context(), nil},
		{"metrics", b.Context(), o},
		{"metrics and a span", traced, o},
	} {
		b.Run(run.name, func(b *testing.B) {
			th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: run.observer})
			p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1 << 50, Window: time.Hour}}}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := th.Take(run.ctx, p.Charge("alice")); err != nil {
					b.Fatal(err)
				}
				o.spans.Reset()
			}
		})
	}
}
