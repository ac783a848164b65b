package main

import (
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	weirdebug "github.com/weir-go/weir/contrib/debug"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	weirprom "github.com/weir-go/weir/observe/prom"
	"github.com/weir-go/weir/throttler/policies"
)

// observation makes the demo's throttler and backends observable.
type observation struct {
	observer observe.Observer // of the throttler and all backends
	metrics  http.Handler
	registry *prometheus.Registry
	page     *weirdebug.Observer // for the operator
}

// export adds the results of Stats methods to the metrics and to the operator's page, under
// the names of their parts.
func (o *observation) export(parts map[string]func() any) {
	for name, stats := range parts {
		o.registry.MustRegister(weirprom.Stats(name, stats))
		o.page.Stats(name, stats)
	}
}

// exportPolicies shows which policies are in force.
func (o *observation) exportPolicies(table *policies.Table) {
	o.registry.MustRegister(weirprom.Stats("policies", func() any { return table.Stats() }))
	o.page.Stats("policies", func() any { return table.Status() })
}

func newObservation(log *slog.Logger) (*observation, error) {
	registry := prometheus.NewRegistry() // not the global one: tests run several demos
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics, err := weirprom.New(registry, nil)
	if err != nil {
		return nil, err
	}
	page := weirdebug.New(&weirdebug.Options{ClientPage: "/debug/weir/client"})
	return &observation{
		observer: observe.All(metrics, weirlog.New(log, nil), page),
		registry: registry,
		page:     page,
		metrics:  promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
	}, nil
}
