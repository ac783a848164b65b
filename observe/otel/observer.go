// Package weirotel exports OpenTelemetry metrics and spans of weir: of decisions, round trips,
// servers and moves. No attribute is a key, or is made of one.
package weirotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
)

// Options configures an Observer. Nil and the zero value select the defaults.
type Options struct {
	// MeterProvider is where the metrics go. If nil, otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// TracerProvider is where the spans go. If nil, otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// MaxNames is how many policies have their own attributes, and how many shards and
	// servers. Policies and shards that come later share the attribute "(others)"; servers
	// that come later have no metrics. If 0, 100, which fit in the 2,000 combinations of
	// attributes that the SDK keeps of a metric by default.
	MaxNames int
}

// scope is the name of the meter and the tracer.
const scope = "github.com/weir-go/weir/observe/otel"

// Observer is an observe.Observer with metrics and spans. Give it to the throttler and
// to each backend. It is safe for concurrent use.
type Observer struct {
	observe.Nothing // events to come

	tracer trace.Tracer

	duration     metric.Float64Histogram
	tripDuration metric.Float64Histogram
	tripBatch    metric.Int64Histogram

	counters stats.Counters
	byOp     [observe.Ops][]metric.RecordOption
	trips    stats.Cache[tripKey, []metric.RecordOption]
	servers  servers
}

var _ observe.Observer = (*Observer)(nil)

// Attributes of metrics. From them, and the names and units of the metrics, an exporter to
// Prometheus makes the metrics of package weirprom: rules and dashboards fit both.
const (
	opKey      = attribute.Key("op")
	backendKey = attribute.Key("backend")
	shardKey   = attribute.Key("shard")
	serverName = attribute.Key("server")
	roleKey    = attribute.Key("role") // primary or replica
	errorKey   = attribute.Key("error.type")
)

// The default boundaries are for milliseconds.
var (
	durationBuckets = []float64{10e-6, 100e-6, 250e-6, 500e-6, .001, .0025, .005, .010, .025, .050, .100, .250, .500, 1}
	batchBuckets    = []float64{1, 2, 4, 8, 16, 32, 64, 128}
)

// New returns an Observer. The error is the meter provider's.
func New(options *Options) (*Observer, error) {
	var opts Options
	if options != nil {
		opts = *options
	}
	if opts.MeterProvider == nil {
		opts.MeterProvider = otel.GetMeterProvider()
	}
	if opts.TracerProvider == nil {
		opts.TracerProvider = otel.GetTracerProvider()
	}
	if opts.MaxNames <= 0 {
		opts.MaxNames = 100
	}
	o := &Observer{tracer: opts.TracerProvider.Tracer(scope)}
	meter := opts.MeterProvider.Meter(scope)
	var err error
	failed := func(e error) { err = errors.Join(err, e) }
	seconds := func(name, description string) metric.Float64Histogram {
		h, e := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(durationBuckets...))
		failed(e)
		return h
	}
	var counts [len(stats.Metrics)]metric.Int64Counter
	for i, m := range stats.Metrics {
		var e error
		counts[i], e = meter.Int64Counter("weir."+m.Name, metric.WithUnit(m.Unit), metric.WithDescription(m.Help))
		failed(e)
	}
	o.duration = seconds("weir.decision.duration", "How long decisions took.")
	o.tripDuration = seconds("weir.round_trip.duration", "How long round trips to servers took.")
	var e error
	o.tripBatch, e = meter.Int64Histogram("weir.round_trip.decisions", metric.WithUnit("{decision}"),
		metric.WithDescription("How many decisions shared a round trip."), metric.WithExplicitBucketBoundaries(batchBuckets...))
	failed(e)
	failed(o.servers.register(meter, opts.MaxNames))
	if err != nil {
		return nil, err
	}
	for op := range o.byOp {
		o.byOp[op] = []metric.RecordOption{attributes(opKey.String(observe.Op(op).String()))}
	}
	o.counters.Init(opts.MaxNames, func(m stats.Metric, labels ...string) stats.Counter { return newSeries(counts[m], m, labels) })
	o.trips.Max, o.trips.Overflow, o.trips.Create = opts.MaxNames, tripKey{backend: stats.Others, shard: stats.Others}, newTrip
	return o, nil
}

// Close ends the metrics of servers. It is for programs that make Observers repeatedly: an
// Observer that lasts as long as its program need not be closed.
func (o *Observer) Close() error { return o.servers.registration.Unregister() }

// series is a stats.Counter. Its attributes are made once: the SDK sorts and hashes them.
type series struct {
	counter metric.Int64Counter
	options []metric.AddOption
}

func newSeries(counter metric.Int64Counter, m stats.Metric, labels []string) series {
	var set []attribute.KeyValue
	for i, label := range labels {
		set = append(set, attribute.String(stats.Metrics[m].Labels[i], label))
	}
	s := series{counter, []metric.AddOption{attributes(set...)}}
	s.counter.Add(context.Background(), 0, s.options...)
	return s
}

func (s series) Inc(ctx context.Context) { s.counter.Add(ctx, 1, s.options...) }

// Decided counts and times a decision and, in a recorded trace, makes its span.
func (o *Observer) Decided(ctx context.Context, e observe.Decided) {
	policy, ok := o.counters.Decided(ctx, e)
	if !ok {
		return
	}
	o.duration.Record(ctx, e.Duration.Seconds(), o.byOp[e.Op]...)
	if parent := trace.SpanFromContext(ctx); parent.IsRecording() || parent.SpanContext().IsSampled() {
		o.span(ctx, policy, e)
	}
}

// tripKey identifies the attributes of a round trip.
type tripKey struct {
	backend, shard string
	replica        bool
	failure        string
}

func newTrip(k tripKey) []metric.RecordOption {
	set := []attribute.KeyValue{backendKey.String(stats.Label(k.backend)), shardKey.String(stats.Label(k.shard)), roleKey.String(stats.Role(k.replica))}
	if k.failure != "" {
		set = append(set, errorKey.String(k.failure))
	}
	return []metric.RecordOption{attributes(set...)}
}

// Sent counts and times a round trip.
func (o *Observer) Sent(e observe.Sent) {
	ctx := context.Background() // many decisions share a round trip
	failure := ""
	if e.Err != nil {
		failure = errorType(e.Err)
	}
	options := o.trips.Get(tripKey{e.Backend, e.Shard, e.Replica, failure})
	o.tripDuration.Record(ctx, e.Duration.Seconds(), options...)
	o.tripBatch.Record(ctx, int64(e.Decisions), options...)
}

// errorType returns the class of err, one of a few.
func errorType(err error) string {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return "_OTHER" // by the semantic conventions
}

// Checked records the state of a server.
func (o *Observer) Checked(e observe.Checked) { o.servers.Checked(e) }

// Moved counts a move.
func (o *Observer) Moved(e observe.Moved) { o.counters.Moved(e) }

// Failed counts a failure.
func (o *Observer) Failed(e observe.Failed) { o.counters.Failed(e) }

func attributes(set ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(set...))
}
