package weirprom

import (
	"fmt"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir/internal/stats"
)

// Stats returns a collector of the numbers that a backend's Stats returns. The caller
// registers it:
//
//	registry.MustRegister(weirprom.Stats("fallback", func() any { return b.Stats() }))
//
// A field with the JSON name lost is weir_fallback_lost_total, or, if its number may
// fall, weir_fallback_lost; each element of a map has its key as the label "name".
// stats is called for each scrape. Stats panics if name is not of lower case letters
// and underscores, and the collector if the value of stats is no struct.
func Stats(name string, stats func() any) prometheus.Collector {
	if !regexp.MustCompile(`^[a-z][a-z_]*$`).MatchString(name) {
		panic(fmt.Sprintf("weirprom: Stats: the name %q is not of lower case letters", name))
	}
	return &statsCollector{name, stats}
}

type statsCollector struct {
	name  string
	stats func() any
}

func (c *statsCollector) desc(n *stats.Number) *prometheus.Desc {
	name, labels := "weir_"+c.name+"_"+n.Name, []string(nil)
	if !n.Gauge {
		name += "_total"
	}
	if n.Named {
		labels = []string{"name"}
	}
	return prometheus.NewDesc(name, n.Field+" of the Stats of weir's "+c.name+" backend.", labels, nil)
}

func (c *statsCollector) Describe(descs chan<- *prometheus.Desc) {
	last := ""
	for _, n := range stats.Numbers("weirprom: Stats", c.stats(), true) {
		if n.Name != last {
			descs <- c.desc(&n)
		}
		last = n.Name
	}
}

func (c *statsCollector) Collect(metrics chan<- prometheus.Metric) {
	for _, n := range stats.Numbers("weirprom: Stats", c.stats(), false) {
		kind := prometheus.CounterValue
		if n.Gauge {
			kind = prometheus.GaugeValue
		}
		var labels []string
		if n.Named {
			labels = []string{stats.Label(n.Key)}
		}
		metrics <- prometheus.MustNewConstMetric(c.desc(&n), kind, float64(n.Value), labels...)
	}
}
