package weirotel

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weir-go/weir/internal/stats"
)

// RegisterStats makes metrics of the numbers that a backend's Stats returns:
//
//	weirotel.RegisterStats(nil, "fallback", func() any { return b.Stats() })
//
// A field with the JSON name lost is weir.fallback.lost; each element of a map has its
// key as the attribute name. values is called for each reading, until the
// registration is undone. If provider is nil, it is otel.GetMeterProvider(). The error
// is the provider's. RegisterStats panics if what values returns is no struct.
func RegisterStats(provider metric.MeterProvider, name string, values func() any) (metric.Registration, error) {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	meter := provider.Meter(scope)
	instruments := make(map[string]metric.Int64Observable)
	var observables []metric.Observable
	for _, n := range stats.Numbers("weirotel: RegisterStats", values(), true) {
		if instruments[n.Name] != nil {
			continue
		}
		full, about := "weir."+name+"."+n.Name, n.Field+" of the Stats of weir's "+name+" backend."
		var instrument metric.Int64Observable
		var err error
		if n.Gauge {
			instrument, err = meter.Int64ObservableGauge(full, metric.WithDescription(about))
		} else {
			instrument, err = meter.Int64ObservableCounter(full, metric.WithDescription(about))
		}
		if err != nil {
			return nil, err
		}
		instruments[n.Name], observables = instrument, append(observables, instrument)
	}
	return meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		for _, n := range stats.Numbers("weirotel: RegisterStats", values(), false) {
			if n.Named {
				to.ObserveInt64(instruments[n.Name], n.Value, metric.WithAttributes(attribute.String("name", n.Key)))
			} else {
				to.ObserveInt64(instruments[n.Name], n.Value)
			}
		}
		return nil
	}, observables...)
}
