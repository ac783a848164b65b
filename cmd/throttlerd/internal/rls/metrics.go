package rls

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
)

// Metrics are the metrics of envoyproxy/ratelimit, by the names of its Prometheus mapping.
type Metrics struct {
	total, exceeded, near, fitting, shadow *prometheus.CounterVec
	notFound                               *prometheus.CounterVec

	requests                   prometheus.Counter
	times                      prometheus.Observer
	serviceErrors, storeErrors prometheus.Counter
	loads, loadErrors          prometheus.Counter
	globalShadow               prometheus.Counter
	withoutStore               prometheus.Counter

	byLabels      sync.Map     // descriptors.Labels → *counters, from values in requests
	unknown       sync.Map     // domains in requests that no configuration has
	names         *names       // nil unless compatible
	dynamicSeries atomic.Int64 // how many values in requests have added
}

// maxDynamic bounds the number of series that values in requests may add.
const maxDynamic = 10_000

// counters are the metrics of a descriptor.
type counters struct{ total, exceeded, near, fitting, shadow, cached, unknown adder }

type adder interface{ Add(hits float64) }

// NewMetrics returns metrics that are registered with r. If compatible, limits and domains have
// the names of envoyproxy/ratelimit, with all keys.
func NewMetrics(r prometheus.Registerer, compatible bool) *Metrics {
	m := &Metrics{}
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ratelimit_service_" + name, Help: help}, labels)
		r.MustRegister(v)
		return v
	}
	limitVec := func(name, help string) *prometheus.CounterVec {
		return vec("rate_limit_"+name, help, "domain", "key1", "key2")
	}
	single := func(name, help string) prometheus.Counter { return vec(name, help).WithLabelValues() }
	if compatible {
		m.names = &names{byName: make(map[string]*counters)}
		r.MustRegister(m.names)
	} else {
		m.total = limitVec("total_hits", "Hits that descriptors with a limit were asked about.")
		m.exceeded = limitVec("over_limit", "Hits over a limit.")
		m.near = limitVec("near_limit", "Hits above NEAR_LIMIT_RATIO of a limit, and not over it.")
		m.fitting = limitVec("within_limit", "Hits that a limit had room for.")
		m.shadow = limitVec("shadow_mode", "Hits over a limit in shadow_mode.")
		m.notFound = vec("rate_limit_domain_not_found", "Requests of a domain without descriptors.", "domain")
	}
	m.requests = vec("total_requests", "Calls.", "grpc_method").WithLabelValues("ShouldRateLimit")
	times := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "ratelimit_service_response_time_seconds", Help: "Time of calls.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .02, .05, .1, .25, 1},
	}, []string{"grpc_method"})
	r.MustRegister(times)
	m.times = times.WithLabelValues("ShouldRateLimit")
	errs := vec("should_rate_limit_error", "Calls that failed.", "err_type")
	m.serviceErrors, m.storeErrors = errs.WithLabelValues("service_error"), errs.WithLabelValues("redis_error")
	m.loads = single("config_load_success", "Configurations put in force.")
	m.loadErrors = single("config_load_error", "Configurations that were wrong.")
	m.withoutStore = single("without_store", "Calls that were answered without the counts of a store, which did not answer.")
	m.globalShadow = single("global_shadow_mode", "Requests that SHADOW_MODE allowed.")
	return m
}

func (m *Metrics) answered(start time.Time) {
	m.requests.Inc()
	m.times.Observe(time.Since(start).Seconds())
}

// countersOf returns the counters of a descriptor of the configuration.
func (m *Metrics) countersOf(l descriptors.Labels) *counters {
	l = short(l)
	get := func(v *prometheus.CounterVec) prometheus.Counter { return v.WithLabelValues(l.Domain, l.Key1, l.Key2) }
	return &counters{get(m.total), get(m.exceeded), get(m.near), get(m.fitting), get(m.shadow), nil, nil}
}

// forget removes the counters of a descriptor that the configuration no longer has: gateways
// name descriptors by routes, which come and go.
func (m *Metrics) forget(l descriptors.Labels) {
	l = short(l)
	if _, dynamic := m.byLabels.Load(l); dynamic {
		return // kept for requests
	}
	for _, v := range []*prometheus.CounterVec{m.total, m.exceeded, m.near, m.fitting, m.shadow} {
		v.DeleteLabelValues(l.Domain, l.Key1, l.Key2)
	}
}

// short returns l with values that are valid in labels.
func short(l descriptors.Labels) descriptors.Labels {
	return descriptors.Labels{Domain: label(l.Domain), Key1: label(l.Key1), Key2: label(l.Key2)}
}

// maxLabel bounds the bytes of a label's value.
const maxLabel = 256

// label returns text as a valid value of a label: in UTF-8, and not longer than maxLabel. It
// does not keep a long text in memory.
func label(text string) string {
	if len(text) > maxLabel {
		text = strings.Clone(text[:maxLabel])
	}
	return strings.ToValidUTF8(text, "")
}

// domainNotFound counts a request of a domain that is not configured.
func (m *Metrics) domainNotFound(domain string, descriptors int) {
	if m.names != nil {
		m.names.countersOf(domain).unknown.Add(float64(descriptors))
		return
	}
	domain = label(domain)
	if _, found := m.unknown.Load(domain); !found {
		if m.dynamicSeries.Load() >= maxDynamic {
			domain = "" // the rest share a counter
		} else if _, found = m.unknown.LoadOrStore(domain, true); !found {
			m.dynamicSeries.Add(1)
		}
	}
	m.notFound.WithLabelValues(domain).Inc()
}

// dynamic returns the counters of labels from values in a request. When there are too many, it
// returns instead or, if that is nil, counters with the domain alone.
func (m *Metrics) dynamic(l descriptors.Labels, fallback *counters) *counters {
	l = short(l)
	if c, found := m.byLabels.Load(l); found {
		return c.(*counters)
	}
	if m.dynamicSeries.Load() >= maxDynamic {
		if fallback != nil {
			return fallback
		}
		return m.countersOf(descriptors.Labels{Domain: l.Domain})
	}
	c, found := m.byLabels.LoadOrStore(l, m.countersOf(l))
	if !found {
		m.dynamicSeries.Add(1)
	}
	return c.(*counters)
}

// refused counts hits over a limit.
func (c *counters) refused(hits float64, shadow bool) {
	c.exceeded.Add(hits)
	if shadow {
		c.shadow.Add(hits)
	}
}

// allowed counts hits within a limit with this capacity. used includes the hits.
func (c *counters) allowed(hits, used, capacity int64, nearRatio float64) {
	c.fitting.Add(float64(hits))
	near := int64(math.Floor(float64(capacity) * nearRatio))
	if above := used - near; above > 0 {
		c.near.Add(float64(min(above, hits)))
	}
}
