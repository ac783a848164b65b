package weirotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/weir-go/weir/internal/stats"
)

// servers holds the state of the servers, and its metrics.
type servers struct {
	stats.Servers
	registration metric.Registration

	breakerOpen     metric.Int64ObservableGauge
	breakerOpenings metric.Int64ObservableCounter
	replicaCut      metric.Int64ObservableGauge
	replicaLag      metric.Float64ObservableGauge
	clockSkew       metric.Float64ObservableGauge
}

func (s *servers) register(meter metric.Meter, bound int) error {
	s.Max = bound
	var errs [6]error
	s.breakerOpen, errs[0] = meter.Int64ObservableGauge("weir.breaker.open", // without a unit: an exporter would add _ratio for "1"
		metric.WithDescription("Whether the server's breaker is open: 1, it does not answer and is sent nothing."))
	s.breakerOpenings, errs[1] = meter.Int64ObservableCounter("weir.breaker.openings", metric.WithUnit("{opening}"),
		metric.WithDescription("How often the server's breaker opened."))
	s.replicaCut, errs[2] = meter.Int64ObservableGauge("weir.replica.cut",
		metric.WithDescription("Whether the replica is cut off from its primary, or lags too far: 1, it is not asked."))
	s.replicaLag, errs[3] = meter.Float64ObservableGauge("weir.replica.lag", metric.WithUnit("s"),
		metric.WithDescription("How far the replica's counts may be behind."))
	s.clockSkew, errs[4] = meter.Float64ObservableGauge("weir.clock.skew", metric.WithUnit("s"),
		metric.WithDescription("How far this process' clock is ahead of the server's; negative if behind."))
	s.registration, errs[5] = meter.RegisterCallback(s.observe, s.breakerOpen, s.breakerOpenings, s.replicaCut, s.replicaLag, s.clockSkew)
	return errors.Join(errs[:]...)
}

// observe reports the state of each server to a reader.
func (s *servers) observe(_ context.Context, to metric.Observer) error {
	s.ForEach(func(name stats.ServerName, v *stats.Server) {
		labels := attributes(backendKey.String(name.Backend), shardKey.String(name.Shard), serverName.String(name.Server))
		to.ObserveInt64(s.breakerOpen, number(v.Open), labels)
		to.ObserveInt64(s.breakerOpenings, v.Openings, labels)
		if v.Replica {
			to.ObserveInt64(s.replicaCut, number(v.Cut), labels)
			to.ObserveFloat64(s.replicaLag, v.Lag.Seconds(), labels)
		}
		if v.SkewKnown {
			to.ObserveFloat64(s.clockSkew, v.Skew.Seconds(), labels)
		}
	})
	return nil
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
