package weirotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-go/weir/observe"
)

// Attributes of spans, besides error.type.
const (
	spanPolicy   = attribute.Key("weir.policy")
	spanLimit    = attribute.Key("weir.limit")
	spanOutcome  = attribute.Key("weir.outcome")
	spanDegraded = attribute.Key("weir.degraded")
)

var spanNames = [observe.Ops]string{"weir.take", "weir.peek", "weir.settle", "weir.wait", "weir.reset", "weir.pause"}

// span makes the span of a decision that is over. It leaves out the text of the error, which
// may contain addresses.
func (o *Observer) span(ctx context.Context, policy string, e observe.Decided) {
	var room [5]attribute.KeyValue
	set := append(room[:0], spanPolicy.String(policy), spanOutcome.String(e.Outcome.String()))
	if e.Binding != nil {
		if text, err := e.Binding.MarshalText(); err == nil {
			set = append(set, spanLimit.String(string(text)))
		}
	}
	if e.Degraded {
		set = append(set, spanDegraded.Bool(true))
	}
	if e.Err != nil {
		set = append(set, errorKey.String(e.Outcome.String()))
	}
	_, span := o.tracer.Start(ctx, spanNames[e.Op], trace.WithTimestamp(e.Start), trace.WithAttributes(set...))
	if e.Err != nil {
		span.SetStatus(codes.Error, e.Outcome.String())
	}
	span.End(trace.WithTimestamp(e.Start.Add(e.Duration)))
}
