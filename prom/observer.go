// Package weirprom has Prometheus metrics of weir: of decisions, round trips, servers
// and moves. No label is a key, or is made of one.
package weirprom

import (
	"context"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/quota"
)

// Options configures an Observer. Nil and the zero value select the defaults.
type Options struct {
	// Buckets are the upper bounds of the histograms of durations, in seconds. If
	// nil, fourteen from 10 µs to 1 s.
	Buckets []float64

	// MaxNames is how many policies have series of their own, and how many shards and
	// servers. Policies and shards that come later share series with the label
	// "(stats.Others)"; servers have none. If 0, 256.
	MaxNames int
}

var (
	defaultBuckets = []float64{10e-6, 100e-6, 250e-6, 500e-6, .001, .0025, .005, .010, .025, .050, .100, .250, .500, 1}
	batchBuckets   = []float64{1, 2, 4, 8, 16, 32, 64, 128}
)

// Observer is a observe.Observer with metrics. Give it to the throttler and to each
// backend. It is safe for concurrent use.
type Observer struct {
	observe.Nothing // events to come

	decisions *prometheus.CounterVec
	refusals  *prometheus.CounterVec
	degraded  *prometheus.CounterVec
	duration  *prometheus.HistogramVec

	tripDuration *prometheus.HistogramVec
	tripFailures *prometheus.CounterVec
	tripBatch    *prometheus.HistogramVec

	moves    *prometheus.CounterVec
	failures *prometheus.CounterVec

	byOp     [observe.Ops]prometheus.Observer // durations
	policies stats.Cache[string, *policySeries]
	trips    stats.Cache[tripKey, *tripSeries]
	moved    stats.Cache[moveKey, *moveSeries]
	failed   stats.Cache[failureKey, prometheus.Counter]
	servers  stats.Servers
}

var _ observe.Observer = (*Observer)(nil)

// New returns an Observer, and registers its metrics with r. The error is r's: another
// Observer's metrics are registered there. Use one Observer for all throttlers of a
// process, or give each a label with [prometheus.WrapRegistererWith].
func New(r prometheus.Registerer, options *Options) (*Observer, error) {
	if r == nil {
		panic("weirprom: New: the registerer is nil")
	}
	var opts Options
	if options != nil {
		opts = *options
	}
	if opts.Buckets == nil {
		opts.Buckets = defaultBuckets
	}
	if opts.MaxNames <= 0 {
		opts.MaxNames = 256
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	o := &Observer{
		decisions: counter("weir_decisions_total", "Decisions, by the policy whose limit binds.", "policy", "op", "outcome"),
		refusals:  counter("weir_refusals_total", "Refused takes, by the limit that refused: its index in the policy.", "policy", "limit"),
		degraded:  counter("weir_degraded_decisions_total", "Decisions made without the shared counts.", "policy"),
		duration:  histogram("weir_decision_duration_seconds", "How long decisions took.", opts.Buckets, "op"),

		tripDuration: histogram("weir_round_trip_duration_seconds", "How long round trips to servers took.", opts.Buckets, "backend", "shard", "role"),
		tripFailures: counter("weir_round_trip_failures_total", "Round trips to servers that failed.", "backend", "shard", "role"),
		tripBatch:    histogram("weir_round_trip_decisions", "How many decisions shared a round trip.", batchBuckets, "backend", "shard", "role"),

		moves:    counter("weir_moves_total", "Counts that moved to another backend, and those that could not.", "from", "to", "outcome"),
		failures: counter("weir_failures_total", "Requests that were not decided about by the shared counts, and what was not refunded, settled or charged.", "backend", "shard", "cause", "result"),
	}
	for op := range o.byOp {
		o.byOp[op] = o.duration.WithLabelValues(observe.Op(op).String())
	}
	o.policies.Max, o.policies.Others, o.policies.Create = opts.MaxNames, stats.Others, o.newPolicy
	o.trips.Max, o.trips.Others, o.trips.Create = opts.MaxNames, tripKey{stats.Others, stats.Others, false}, o.newTrip
	o.moved.Max, o.moved.Others, o.moved.Create = opts.MaxNames, moveKey{stats.Others, stats.Others}, o.newMove
	o.failed.Max, o.failed.Others, o.failed.Create = opts.MaxNames, failureKey{stats.Others, stats.Others, stats.Others, stats.Others}, o.newFailure
	o.servers.Max = opts.MaxNames
	if err := r.Register((*collector)(o)); err != nil {
		return nil, err
	}
	return o, nil
}

// collector registers and collects all of an Observer's metrics as one.
type collector Observer

func (c *collector) vectors() [9]prometheus.Collector {
	return [9]prometheus.Collector{c.decisions, c.refusals, c.degraded, c.duration, c.tripDuration, c.tripFailures, c.tripBatch, c.moves, c.failures}
}

func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, v := range c.vectors() {
		v.Describe(descs)
	}
	describeServers(descs)
}

func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	for _, v := range c.vectors() {
		v.Collect(metrics)
	}
	collectServers(&c.servers, metrics)
}

// policySeries is the series of one policy.
type policySeries struct {
	name     string
	outcomes [observe.Ops]atomic.Pointer[[observe.Outcomes]prometheus.Counter] // nil before the first
	refusals [quota.MaxLimits]atomic.Pointer[prometheus.Counter]
	degraded prometheus.Counter
}

func (o *Observer) newPolicy(name string) *policySeries {
	return &policySeries{name: stats.Label(name), degraded: o.degraded.WithLabelValues(stats.Label(name))}
}

// Decided counts and times a decision.
func (o *Observer) Decided(_ context.Context, e observe.Decided) {
	if int(e.Op) >= observe.Ops || int(e.Outcome) >= observe.Outcomes {
		return // of a newer throttler
	}
	o.byOp[e.Op].Observe(e.Duration.Seconds())
	p := o.policies.Of(e.Policy)
	byOutcome := p.outcomes[e.Op].Load()
	if byOutcome == nil {
		byOutcome = o.newOutcomes(p, e.Op)
	}
	byOutcome[e.Outcome].Inc()
	if e.Degraded {
		p.degraded.Inc()
	}
	if e.Op == observe.OpTake && e.Outcome == observe.OutcomeRefused && e.Limit >= 0 && e.Limit < len(p.refusals) {
		refused := p.refusals[e.Limit].Load()
		if refused == nil {
			refused = o.newRefusals(p, e.Limit)
		}
		(*refused).Inc()
	}
}

// newOutcomes creates the series of all outcomes, so that their rates are right from
// the first on. If two goroutines do, they get the same series.
func (o *Observer) newOutcomes(p *policySeries, op observe.Op) *[observe.Outcomes]prometheus.Counter {
	var all [observe.Outcomes]prometheus.Counter
	for i := range all {
		all[i] = o.decisions.WithLabelValues(p.name, op.String(), observe.Outcome(i).String())
	}
	p.outcomes[op].Store(&all)
	return &all
}

func (o *Observer) newRefusals(p *policySeries, limit int) *prometheus.Counter {
	c := o.refusals.WithLabelValues(p.name, strconv.Itoa(limit))
	p.refusals[limit].Store(&c)
	return &c
}

// tripKey is whose series a round trip is in.
type tripKey struct {
	backend, shard string
	replica        bool
}

type tripSeries struct {
	duration, decisions prometheus.Observer
	failures            prometheus.Counter
}

func (o *Observer) newTrip(k tripKey) *tripSeries {
	labels := []string{stats.Label(k.backend), stats.Label(k.shard), stats.Role(k.replica)}
	return &tripSeries{o.tripDuration.WithLabelValues(labels...), o.tripBatch.WithLabelValues(labels...), o.tripFailures.WithLabelValues(labels...)}
}

// Sent counts and times a round trip.
func (o *Observer) Sent(e observe.Sent) {
	s := o.trips.Of(tripKey{e.Backend, e.Shard, e.Replica})
	s.duration.Observe(e.Duration.Seconds())
	s.decisions.Observe(float64(e.Decisions))
	if e.Err != nil {
		s.failures.Inc()
	}
}

// Checked notes what is known of a server.
func (o *Observer) Checked(e observe.Checked) { o.servers.Checked(e) }

type moveKey struct{ from, to string }

// moveSeries is the series of moves between two backends, by what became of them.
type moveSeries [len(stats.MoveOutcomes)]prometheus.Counter

// newMove creates the series of all outcomes, so that a loss is a rise.
func (o *Observer) newMove(k moveKey) *moveSeries {
	all := new(moveSeries)
	for i, outcome := range stats.MoveOutcomes {
		all[i] = o.moves.WithLabelValues(stats.Label(k.from), stats.Label(k.to), outcome)
	}
	return all
}

// Moved counts a move.
func (o *Observer) Moved(e observe.Moved) {
	o.moved.Of(moveKey{e.From, e.To})[stats.MoveOutcome(e)].Inc()
}

// failureKey is whose series a failure is in.
type failureKey struct{ backend, shard, cause, result string }

func (o *Observer) newFailure(k failureKey) prometheus.Counter {
	return o.failures.WithLabelValues(stats.Label(k.backend), stats.Label(k.shard), stats.Label(k.cause), k.result)
}

// Failed counts a failure.
func (o *Observer) Failed(e observe.Failed) {
	if int(e.Result) < observe.Results { // else of a newer throttler
		o.failed.Of(failureKey{e.Backend, e.Shard, e.Cause, e.Result.String()}).Inc()
	}
}
