// Package weirotel has OpenTelemetry metrics and spans of weir: of decisions, round
// trips, servers and moves. No attribute is a key, or is made of one.
package weirotel

import (
	"context"
	"errors"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/quota"
)

// Options configures an Observer. Nil and the zero value select the defaults.
type Options struct {
	// MeterProvider is where the metrics go. If nil, otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// TracerProvider is where the spans go. If nil, otel.GetTracerProvider().
	TracerProvider trace.TracerProvider

	// MaxNames is how many policies have attributes of their own, and how many shards
	// and servers. Policies and shards that come later share the attribute "(stats.Others)";
	// servers have none. If 0, 100: so many fit in the 2,000 combinations of attributes that
	// the SDK keeps of a metric by default.
	MaxNames int
}

// scope is the name of the meter and the tracer.
const scope = "github.com/weir-go/weir/otel"

// Observer is a observe.Observer with metrics and spans. Give it to the throttler and
// to each backend. It is safe for concurrent use.
type Observer struct {
	observe.Nothing // events to come

	tracer trace.Tracer

	decisions    metric.Int64Counter
	refusals     metric.Int64Counter
	degraded     metric.Int64Counter
	duration     metric.Float64Histogram
	tripDuration metric.Float64Histogram
	tripBatch    metric.Int64Histogram
	moves        metric.Int64Counter
	failures     metric.Int64Counter

	byOp     [observe.Ops][]metric.RecordOption
	policies stats.Cache[string, *policyOptions]
	trips    stats.Cache[tripKey, []metric.RecordOption]
	moved    stats.Cache[moveKey, *moveOptions]
	failed   stats.Cache[failureKey, []metric.AddOption]
	servers  servers
}

var _ observe.Observer = (*Observer)(nil)

// Attributes of metrics. They, and the names and units of the metrics, are such that an
// exporter to Prometheus makes of them what package weirprom has: rules and boards fit both.
const (
	policyKey  = attribute.Key("policy")
	limitKey   = attribute.Key("limit") // the index in the policy
	opKey      = attribute.Key("op")
	outcomeKey = attribute.Key("outcome")
	backendKey = attribute.Key("backend")
	shardKey   = attribute.Key("shard")
	serverName = attribute.Key("server")
	roleKey    = attribute.Key("role") // primary or replica
	fromKey    = attribute.Key("from")
	toKey      = attribute.Key("to")
	causeKey   = attribute.Key("cause")
	resultKey  = attribute.Key("result")
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
	counter := func(name, unit, description string) metric.Int64Counter {
		c, e := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		failed(e)
		return c
	}
	seconds := func(name, description string) metric.Float64Histogram {
		h, e := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(durationBuckets...))
		failed(e)
		return h
	}
	o.decisions = counter("weir.decisions", "{decision}", "Decisions, by the policy whose limit binds.")
	o.refusals = counter("weir.refusals", "{decision}", "Refused takes, by the limit that refused: its index in the policy.")
	o.degraded = counter("weir.degraded_decisions", "{decision}", "Decisions made without the shared counts.")
	o.moves = counter("weir.moves", "{count}", "Counts that moved to another backend, and those that could not.")
	o.failures = counter("weir.failures", "{failure}", "Requests that were not decided about by the shared counts, and what was not refunded, settled or charged.")
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
	o.policies.Max, o.policies.Others, o.policies.Create = opts.MaxNames, stats.Others, o.newPolicy
	o.trips.Max, o.trips.Others, o.trips.Create = opts.MaxNames, tripKey{backend: stats.Others, shard: stats.Others}, newTrip
	o.moved.Max, o.moved.Others, o.moved.Create = opts.MaxNames, moveKey{stats.Others, stats.Others}, o.newMove
	o.failed.Max, o.failed.Others, o.failed.Create = opts.MaxNames, failureKey{stats.Others, stats.Others, stats.Others, stats.Others}, newFailure
	return o, nil
}

// Close ends the metrics of servers. It is for programs that make Observers again and
// again: one that lasts as long as its program needs none.
func (o *Observer) Close() error { return o.servers.registration.Unregister() }

// policyOptions is the attributes of one policy's events. They are made once: the SDK
// sorts and hashes them.
type policyOptions struct {
	name     string
	degraded []metric.AddOption
	outcomes [observe.Ops]atomic.Pointer[[observe.Outcomes][]metric.AddOption] // nil before the first
	refusals [quota.MaxLimits]atomic.Pointer[[]metric.AddOption]
}

func (o *Observer) newPolicy(name string) *policyOptions {
	p := &policyOptions{name: stats.Label(name), degraded: []metric.AddOption{attributes(policyKey.String(stats.Label(name)))}}
	o.degraded.Add(context.Background(), 0, p.degraded...)
	return p
}

// newOutcomes begins the series of all outcomes at zero, so that their rates are right
// from the first on.
func (o *Observer) newOutcomes(p *policyOptions, op observe.Op) *[observe.Outcomes][]metric.AddOption {
	var all [observe.Outcomes][]metric.AddOption
	for i := range all {
		all[i] = []metric.AddOption{attributes(policyKey.String(p.name), opKey.String(op.String()), outcomeKey.String(observe.Outcome(i).String()))}
		o.decisions.Add(context.Background(), 0, all[i]...)
	}
	p.outcomes[op].Store(&all)
	return &all
}

func (p *policyOptions) refusal(limit int) []metric.AddOption {
	at := &p.refusals[limit]
	if options := at.Load(); options != nil {
		return *options
	}
	options := []metric.AddOption{attributes(policyKey.String(p.name), limitKey.Int(limit))}
	at.Store(&options)
	return options
}

// Decided counts and times a decision and, in a trace that is recorded, makes its span.
func (o *Observer) Decided(ctx context.Context, e observe.Decided) {
	if int(e.Op) >= observe.Ops || int(e.Outcome) >= observe.Outcomes {
		return // of a newer throttler
	}
	p := o.policies.Of(e.Policy)
	o.duration.Record(ctx, e.Duration.Seconds(), o.byOp[e.Op]...)
	byOutcome := p.outcomes[e.Op].Load()
	if byOutcome == nil {
		byOutcome = o.newOutcomes(p, e.Op)
	}
	o.decisions.Add(ctx, 1, byOutcome[e.Outcome]...)
	if e.Degraded {
		o.degraded.Add(ctx, 1, p.degraded...)
	}
	if e.Op == observe.OpTake && e.Outcome == observe.OutcomeRefused && e.Limit >= 0 && e.Limit < len(p.refusals) {
		o.refusals.Add(ctx, 1, p.refusal(e.Limit)...)
	}
	if parent := trace.SpanFromContext(ctx); parent.IsRecording() || parent.SpanContext().IsSampled() {
		o.span(ctx, p.name, e)
	}
}

// tripKey is whose attributes a round trip has.
type tripKey struct {
	backend, shard string
	replica        bool
	failure        string
}

func newTrip(k tripKey) []metric.RecordOption {
	all := []attribute.KeyValue{backendKey.String(stats.Label(k.backend)), shardKey.String(stats.Label(k.shard)), roleKey.String(stats.Role(k.replica))}
	if k.failure != "" {
		all = append(all, errorKey.String(k.failure))
	}
	return []metric.RecordOption{attributes(all...)}
}

// Sent counts and times a round trip.
func (o *Observer) Sent(e observe.Sent) {
	ctx := context.Background() // it is of many decisions
	failure := ""
	if e.Err != nil {
		failure = errorType(e.Err)
	}
	options := o.trips.Of(tripKey{e.Backend, e.Shard, e.Replica, failure})
	o.tripDuration.Record(ctx, e.Duration.Seconds(), options...)
	o.tripBatch.Record(ctx, int64(e.Decisions), options...)
}

// errorType returns the class of err, of which there are few.
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

// Checked notes what is known of a server.
func (o *Observer) Checked(e observe.Checked) { o.servers.Checked(e) }

type moveKey struct{ from, to string }

// moveOptions is the attributes of moves between two backends, by what became of them.
type moveOptions [len(stats.MoveOutcomes)][]metric.AddOption

// newMove begins the series of all outcomes at zero, so that a loss is a rise.
func (o *Observer) newMove(k moveKey) *moveOptions {
	all := new(moveOptions)
	for i, outcome := range stats.MoveOutcomes {
		all[i] = []metric.AddOption{attributes(fromKey.String(stats.Label(k.from)), toKey.String(stats.Label(k.to)), outcomeKey.String(outcome))}
		o.moves.Add(context.Background(), 0, all[i]...)
	}
	return all
}

// Moved counts a move.
func (o *Observer) Moved(e observe.Moved) {
	o.moves.Add(context.Background(), 1, o.moved.Of(moveKey{e.From, e.To})[stats.MoveOutcome(e)]...)
}

// failureKey is whose attributes a failure has.
type failureKey struct{ backend, shard, cause, result string }

func newFailure(k failureKey) []metric.AddOption {
	return []metric.AddOption{attributes(backendKey.String(stats.Label(k.backend)), shardKey.String(stats.Label(k.shard)), causeKey.String(stats.Label(k.cause)), resultKey.String(k.result))}
}

// Failed counts a failure.
func (o *Observer) Failed(e observe.Failed) {
	if int(e.Result) < observe.Results { // else of a newer throttler
		o.failures.Add(context.Background(), 1, o.failed.Of(failureKey{e.Backend, e.Shard, e.Cause, e.Result.String()})...)
	}
}

func attributes(all ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(all...))
}
