package weirprom_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	memorybackend "github.com/weir-go/weir/backend/memory"
	weirprom "github.com/weir-go/weir/observe/prom"
	"github.com/weir-go/weir/throttler"
)

// The metrics contain a client's decisions, but not its key.
func ExampleNew() {
	registry := prometheus.NewRegistry()
	observer, err := weirprom.New(registry, nil)
	if err != nil {
		log.Fatal(err)
	}
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: observer})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	for range 5 {
		_, _ = t.Take(context.Background(), core.Charge("alice"))
	}

	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "weir_decisions_total") && !strings.HasSuffix(line, " 0\n") {
			fmt.Print(line)
		}
	}
	// Output:
	// weir_decisions_total{op="take",outcome="allowed",policy="core"} 2
	// weir_decisions_total{op="take",outcome="refused",policy="core"} 3
}

// Serve the handler only where operators can reach it.
func ExampleNew_handler() {
	backend := memorybackend.NewDefault()

	metrics, err := weirprom.New(prometheus.DefaultRegisterer, nil)
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/metrics", promhttp.Handler())
	t := throttler.New(backend, &throttler.Options{Observer: metrics})

	_ = t
}

// The numbers of a backend's Stats are metrics, too.
func ExampleStats() {
	registry := prometheus.NewRegistry()
	backend := memorybackend.NewDefault()

	registry.MustRegister(weirprom.Stats("memory", func() any { return backend.Stats() }))

	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(families[0].GetName())
	// Output: weir_memory_bytes
}
