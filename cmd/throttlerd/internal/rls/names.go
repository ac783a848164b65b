package rls

import (
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// names are the counters of WEIR_COMPATIBLE, by the names that envoyproxy/ratelimit gives them:
// the domain and all keys of a descriptor, with the values that its file asks for.
type names struct {
	mu     sync.RWMutex
	byName map[string]*counters
}

// hits is a counter. It is exported if it is not 0, as in envoyproxy/ratelimit.
type hits struct{ atomic.Uint64 }

func (h *hits) Add(n float64) { h.Uint64.Add(uint64(n)) }

// endings are the endings of names, in the order of counters.list.
var endings = []string{"total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode", "over_limit_with_local_cache", "domain_not_found"}

func (c *counters) list() []adder {
	return []adder{c.total, c.exceeded, c.near, c.fitting, c.shadow, c.cached, c.unknown}
}

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// clean returns a name without the characters that statsd separates parts by.
func clean(name string) string {
	name = strings.NewReplacer(":", "_", "|", "_").Replace(name)
	return ipv4.ReplaceAllStringFunc(name, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

// countersOf returns the counters of a name, such as domain.key_value.key.
func (n *names) countersOf(name string) *counters {
	name = label(name)
	n.mu.RLock()
	c := n.byName[name]
	n.mu.RUnlock()
	if c != nil {
		return c
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if c = n.byName[name]; c != nil {
		return c
	}
	if len(n.byName) >= maxDynamic { // the rest of a domain share counters
		name, _, _ = strings.Cut(name, ".")
		if c = n.byName[name]; c != nil {
			return c
		}
	}
	c = &counters{new(hits), new(hits), new(hits), new(hits), new(hits), new(hits), new(hits)}
	n.byName[name] = c
	return c
}

// each calls f for each counter that is not 0.
func (n *names) each(f func(name, ending string, value uint64)) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for name, c := range n.byName {
		name = clean(name)
		for i, counter := range c.list() {
			if value := counter.(*hits).Load(); value > 0 {
				f(name, endings[i], value)
			}
		}
	}
}

// Describe implements prometheus.Collector: the names are not known before.
func (n *names) Describe(chan<- *prometheus.Desc) {}

var invalidInName = regexp.MustCompile(`[^a-zA-Z0-9_:]`)

// Collect implements prometheus.Collector, with the names of the Prometheus mapping of
// envoyproxy/ratelimit. What that does not map has its statsd name, with underscores.
func (n *names) Collect(to chan<- prometheus.Metric) {
	type series struct{ name, domain, key1, key2 string }
	sums := make(map[series]uint64)
	n.each(func(name, ending string, value uint64) {
		s := series{name: "ratelimit_service_rate_limit_" + ending}
		switch parts := strings.Split(name, "."); {
		case ending == "over_limit_with_local_cache" && len(parts) > 2: // a pattern there has no end
			s = series{"ratelimit_service_rate_limit_over_limit", parts[0], parts[1], parts[2]}
		case ending == "over_limit_with_local_cache", ending == "domain_not_found", len(parts) == 1:
			s.name = invalidInName.ReplaceAllString("ratelimit_service_rate_limit_"+name+"_"+ending, "_")
		case len(parts) == 2:
			s.domain, s.key1 = parts[0], parts[1]
		default:
			s.domain, s.key1, s.key2 = parts[0], parts[1], parts[2]
		}
		sums[s] += value
	})
	for s, value := range sums {
		labels := prometheus.Labels{}
		if s.domain != "" {
			labels = prometheus.Labels{"domain": s.domain, "key1": s.key1, "key2": s.key2}
		}
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc(s.name, "Hits, by the names of envoyproxy/ratelimit.", nil, labels), prometheus.CounterValue, float64(value))
	}
}

// stats is Server.Stats.
func (m *Metrics) stats(f func(name string, value uint64)) bool {
	if m.names == nil {
		return false
	}
	m.names.each(func(name, ending string, value uint64) { f("ratelimit.service.rate_limit."+name+"."+ending, value) })
	return true
}
