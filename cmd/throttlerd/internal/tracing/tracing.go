// Package tracing sends traces of calls and decisions by OTLP.
package tracing

import (
	"cmp"
	"context"
	"errors"
	"os"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"

	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/observe"
	weirotel "github.com/weir-go/weir/observe/otel"
)

// Tracing makes spans. The zero value makes no spans.
type Tracing struct {
	// Observer makes a span of each decision in a recorded trace. If nil, there are no such spans.
	Observer observe.Observer

	// ServerOptions have a gRPC server's calls continue their callers' traces.
	ServerOptions []grpc.ServerOption

	provider *sdktrace.TracerProvider
}

// New returns the Tracing that s describes. It does not wait for the collector.
func New(ctx context.Context, s *settings.Tracing) (*Tracing, error) {
	if !s.TracingEnabled {
		return new(Tracing), nil
	}
	client := otlptracehttp.NewClient()
	if s.TracingProtocol == "grpc" {
		client = otlptracegrpc.NewClient()
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	attributes := []attribute.KeyValue{attribute.String("service.name", s.ServiceName), attribute.String("service.instance.id", cmp.Or(s.ServiceInstance, host))}
	if s.ServiceNamespace != "" {
		attributes = append(attributes, attribute.String("service.namespace", s.ServiceNamespace))
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(s.SamplingRate))),
		sdktrace.WithResource(resource.NewSchemaless(attributes...)),
	)
	observer, err := weirotel.New(&weirotel.Options{TracerProvider: provider, MeterProvider: noop.NewMeterProvider()}) // metrics are Prometheus'
	if err != nil {
		return nil, errors.Join(err, provider.Shutdown(ctx))
	}
	return &Tracing{
		Observer: observer,
		ServerOptions: []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(provider), otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
			otelgrpc.WithPropagators(propagation.TraceContext{}), otelgrpc.WithFilter(filters.Not(filters.HealthCheck())),
		))},
		provider: provider,
	}, nil
}

// Close sends the remaining spans, until ctx is done.
func (t *Tracing) Close(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}
