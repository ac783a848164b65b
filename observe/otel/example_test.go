package weirotel_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	memorybackend "github.com/weir-go/weir/backend/memory"
	weirotel "github.com/weir-go/weir/observe/otel"
	"github.com/weir-go/weir/throttler"
)

// Without options, metrics and spans go to the global providers.
func ExampleNew() {
	backend := memorybackend.NewDefault()

	observer, err := weirotel.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	t := throttler.New(backend, &throttler.Options{Observer: observer})

	_ = t
}

func ExampleNew_reader() {
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	observer, err := weirotel.New(&weirotel.Options{MeterProvider: provider})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: observer})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	for range 5 {
		_, _ = t.Take(ctx, core.Charge("alice"))
	}

	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		log.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name == "weir.refusals" {
			fmt.Println(m.Name, m.Data.(metricdata.Sum[int64]).DataPoints[0].Value)
		}
	}
	// Output: weir.refusals 3
}

// The numbers of a backend's Stats are metrics, too.
func ExampleRegisterStats() {
	backend := memorybackend.NewDefault()

	registration, err := weirotel.RegisterStats(nil, "memory", func() any { return backend.Stats() })
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(registration.Unregister())
	// Output: <nil>
}
