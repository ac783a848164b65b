// Package weirprom exports Prometheus metrics of weir: of decisions, round trips, servers and
// moves. No label is a key, or is made of one.
package weirprom

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
)

// Options configures an Observer. Nil and the zero value select the defaults.
type Options struct {
	// Buckets are the upper bounds of the histograms of durations, in seconds. If
	// nil, fourteen from 10 µs to 1 s.
	Buckets []float64

	// MaxNames is how many policies have their own series, and how many shards and servers.
	// Policies and shards that come later share series with the label "(others)"; servers that
	// come later have no series. If 0, 256.
	MaxNames int
}

var (
	defaultBuckets = []float64{10e-6, 100e-6, 250e-6, 500e-6, .001, .0025, .005, .010, .025, .050, .100, .250, .500, 1}
	batchBuckets   = []float64{1, 2, 4, 8, 16, 32, 64, 128}
)

// Observer is an observe.Observer with metrics. Give it to the throttler and to each
// backend. It is safe for concurrent use.
type Observer struct {
	observe.Nothing // events to come

	counts   [len(stats.Metrics)]*prometheus.CounterVec
	duration *prometheus.HistogramVec

	tripDuration *prometheus.HistogramVec
	tripFailures *prometheus.CounterVec
	tripBatch    *prometheus.HistogramVec

	counters stats.Counters
	byOp     [observe.Ops]prometheus.Observer // durations
	trips    stats.Cache[tripKey, *tripSeries]
	servers  stats.Servers
}

var _ observe.Observer = (*Observer)(nil)

// New returns an Observer, and registers its metrics with r. The error is r's, as when
// another Observer's metrics are registered there. Use one Observer for all throttlers of a
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
		duration: histogram("weir_decision_duration_seconds", "How long decisions took.", opts.Buckets, "op"),

		tripDuration: histogram("weir_round_trip_duration_seconds", "How long round trips to servers took.", opts.Buckets, "backend", "shard", "role"),
		tripFailures: counter("weir_round_trip_failures_total", "Round trips to servers that failed.", "backend", "shard", "role"),
		tripBatch:    histogram("weir_round_trip_decisions", "How many decisions shared a round trip.", batchBuckets, "backend", "shard", "role"),
	}
	for i, m := range stats.Metrics {
		o.counts[i] = counter("weir_"+m.Name+"_total", m.Help, m.Labels...)
	}
	o.counters.Init(opts.MaxNames, func(m stats.Metric, labels ...string) stats.Counter {
		return series{o.counts[m].WithLabelValues(labels...)}
	})
	for op := range o.byOp {
		o.byOp[op] = o.duration.WithLabelValues(observe.Op(op).String())
	}
	o.trips.Max, o.trips.Overflow, o.trips.Create = opts.MaxNames, tripKey{stats.Others, stats.Others, false}, o.newTrip
	o.servers.Max = opts.MaxNames
	if err := r.Register((*collector)(o)); err != nil {
		return nil, fmt.Errorf("weirprom: the registerer takes the metrics of one Observer, which may be that of several throttlers: %w", err)
	}
	return o, nil
}

// collector registers and collects all of an Observer's metrics as one.
type collector Observer

func (c *collector) vectors() []prometheus.Collector {
	collectors := []prometheus.Collector{c.duration, c.tripDuration, c.tripFailures, c.tripBatch}
	for _, v := range c.counts {
		collectors = append(collectors, v)
	}
	return collectors
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

// series is a stats.Counter.
type series struct{ prometheus.Counter }

func (s series) Inc(context.Context) { s.Counter.Inc() }

// Decided counts and times a decision.
func (o *Observer) Decided(ctx context.Context, e observe.Decided) {
	if _, ok := o.counters.Decided(ctx, e); ok {
		o.byOp[e.Op].Observe(e.Duration.Seconds())
	}
}

// tripKey identifies the series of a round trip.
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
	s := o.trips.Get(tripKey{e.Backend, e.Shard, e.Replica})
	s.duration.Observe(e.Duration.Seconds())
	s.decisions.Observe(float64(e.Decisions))
	if e.Err != nil {
		s.failures.Inc()
	}
}

// Checked records the state of a server.
func (o *Observer) Checked(e observe.Checked) { o.servers.Checked(e) }

// Moved counts a move.
func (o *Observer) Moved(e observe.Moved) { o.counters.Moved(e) }

// Failed counts a failure.
func (o *Observer) Failed(e observe.Failed) { o.counters.Failed(e) }
