package weirotel

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/weir-go/weir/observe"
)

// forgotten is when a server is dropped: its shard's others were checked for so long
// and it was not. So goes a node that left a cluster; the servers of a process that is
// idle, and checks none, keep what was last known.
const forgotten = 10 * time.Minute

// servers is what is known of each server.
type servers struct {
	max          int
	registration metric.Registration

	breakerOpen     metric.Int64ObservableGauge
	breakerOpenings metric.Int64ObservableCounter
	replicaCut      metric.Int64ObservableGauge
	replicaLag      metric.Float64ObservableGauge
	clockSkew       metric.Float64ObservableGauge

	mu  sync.Mutex // events are about one a second and server
	all map[serverKey]*server
}

type serverKey struct{ backend, shard, server string }

type server struct {
	attributes         []metric.ObserveOption
	replica, open, cut bool
	openings           int64
	lag, skew          time.Duration
	skewKnown          bool
	at                 time.Time
}

func (s *servers) register(meter metric.Meter, most int) error {
	s.max = most
	var errs [6]error
	s.breakerOpen, errs[0] = meter.Int64ObservableGauge("weir.breaker.open", metric.WithUnit("1"),
		metric.WithDescription("Whether the server's breaker is open: 1, it does not answer and is sent nothing."))
	s.breakerOpenings, errs[1] = meter.Int64ObservableCounter("weir.breaker.openings", metric.WithUnit("{opening}"),
		metric.WithDescription("How often the server's breaker opened."))
	s.replicaCut, errs[2] = meter.Int64ObservableGauge("weir.replica.cut", metric.WithUnit("1"),
		metric.WithDescription("Whether the replica is cut off from its primary, or lags too far: 1, it is not asked."))
	s.replicaLag, errs[3] = meter.Float64ObservableGauge("weir.replica.lag", metric.WithUnit("s"),
		metric.WithDescription("How far the replica's counts may be behind."))
	s.clockSkew, errs[4] = meter.Float64ObservableGauge("weir.clock.skew", metric.WithUnit("s"),
		metric.WithDescription("How far this process' clock is ahead of the server's; negative if behind."))
	s.registration, errs[5] = meter.RegisterCallback(s.observe, s.breakerOpen, s.breakerOpenings, s.replicaCut, s.replicaLag, s.clockSkew)
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *servers) checked(e observe.Checked) {
	key := serverKey{e.Backend, e.Shard, e.Server}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.all[key]
	if v == nil {
		if len(s.all) >= s.max {
			return
		}
		if s.all == nil {
			s.all = make(map[serverKey]*server)
		}
		v = &server{attributes: []metric.ObserveOption{attributes(
			backendKey.String(value(e.Backend)), shardKey.String(value(e.Shard)), serverName.String(value(e.Server)))}}
		s.all[key] = v
	}
	if e.Open && !v.open {
		v.openings++
	}
	v.replica, v.open, v.cut, v.lag, v.at = e.Replica, e.Open, e.Cut, e.Lag, time.Now()
	if e.SkewKnown {
		v.skew, v.skewKnown = e.Skew, true
	}
}

// observe gives a reader what is known.
func (s *servers) observe(_ context.Context, to metric.Observer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	for _, v := range s.all {
		to.ObserveInt64(s.breakerOpen, number(v.open), v.attributes...)
		to.ObserveInt64(s.breakerOpenings, v.openings, v.attributes...)
		if v.replica {
			to.ObserveInt64(s.replicaCut, number(v.cut), v.attributes...)
			to.ObserveFloat64(s.replicaLag, v.lag.Seconds(), v.attributes...)
		}
		if v.skewKnown {
			to.ObserveFloat64(s.clockSkew, v.skew.Seconds(), v.attributes...)
		}
	}
	return nil
}

func (s *servers) forget() {
	latest := make(map[serverKey]time.Time) // by shard
	for key, v := range s.all {
		key.server = ""
		if v.at.After(latest[key]) {
			latest[key] = v.at
		}
	}
	for key, v := range s.all {
		shard := serverKey{key.backend, key.shard, ""}
		if latest[shard].Sub(v.at) > forgotten {
			delete(s.all, key)
		}
	}
}

func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
