package weirprom

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir/observe"
)

// forgotten is when a server is dropped: its shard's others were checked for so long
// and it was not. So goes a node that left a cluster; the servers of a process that is
// idle, and checks none, keep what was last known.
const forgotten = 10 * time.Minute

var (
	serverLabels = []string{"backend", "shard", "server"}

	breakerOpen     = prometheus.NewDesc("weir_breaker_open", "Whether the server's breaker is open: 1, it does not answer and is sent nothing.", serverLabels, nil)
	breakerOpenings = prometheus.NewDesc("weir_breaker_openings_total", "How often the server's breaker opened.", serverLabels, nil)
	replicaCut      = prometheus.NewDesc("weir_replica_cut", "Whether the replica is cut off from its primary, or lags too far: 1, it is not asked.", serverLabels, nil)
	replicaLag      = prometheus.NewDesc("weir_replica_lag_seconds", "How far the replica's counts may be behind.", serverLabels, nil)
	clockSkew       = prometheus.NewDesc("weir_clock_skew_seconds", "How far this process' clock is ahead of the server's; negative if behind.", serverLabels, nil)
)

// servers is what is known of each server.
type servers struct {
	max int

	mu  sync.Mutex // events are about one a second and server
	all map[serverKey]*server
}

type serverKey struct{ backend, shard, server string }

type server struct {
	replica, open, cut bool
	openings           int64
	lag, skew          time.Duration
	skewKnown          bool
	at                 time.Time
}

func (s *servers) checked(e observe.Checked) {
	key := serverKey{label(e.Backend), label(e.Shard), label(e.Server)}
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
		v = new(server)
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

func (s *servers) describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{breakerOpen, breakerOpenings, replicaCut, replicaLag, clockSkew} {
		descs <- d
	}
}

func (s *servers) collect(metrics chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	for key, v := range s.all {
		gauge := func(d *prometheus.Desc, value float64) {
			metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, key.backend, key.shard, key.server)
		}
		gauge(breakerOpen, number(v.open))
		metrics <- prometheus.MustNewConstMetric(breakerOpenings, prometheus.CounterValue, float64(v.openings), key.backend, key.shard, key.server)
		if v.replica {
			gauge(replicaCut, number(v.cut))
			gauge(replicaLag, v.lag.Seconds())
		}
		if v.skewKnown {
			gauge(clockSkew, v.skew.Seconds())
		}
	}
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

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
