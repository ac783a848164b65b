package weirprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir/internal/stats"
)

var (
	serverLabels = []string{"backend", "shard", "server"}

	breakerOpen     = prometheus.NewDesc("weir_breaker_open", "Whether the server's breaker is open: 1, it does not answer and is sent nothing.", serverLabels, nil)
	breakerOpenings = prometheus.NewDesc("weir_breaker_openings_total", "How often the server's breaker opened.", serverLabels, nil)
	replicaCut      = prometheus.NewDesc("weir_replica_cut", "Whether the replica is cut off from its primary, or lags too far: 1, it is not asked.", serverLabels, nil)
	replicaLag      = prometheus.NewDesc("weir_replica_lag_seconds", "How far the replica's counts may be behind.", serverLabels, nil)
	clockSkew       = prometheus.NewDesc("weir_clock_skew_seconds", "How far this process' clock is ahead of the server's; negative if behind.", serverLabels, nil)
)

func describeServers(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{breakerOpen, breakerOpenings, replicaCut, replicaLag, clockSkew} {
		descs <- d
	}
}

func collectServers(servers *stats.Servers, metrics chan<- prometheus.Metric) {
	servers.ForEach(func(name stats.ServerName, s *stats.Server) {
		add := func(d *prometheus.Desc, kind prometheus.ValueType, value float64) {
			metrics <- prometheus.MustNewConstMetric(d, kind, value, name.Backend, name.Shard, name.Server)
		}
		add(breakerOpen, prometheus.GaugeValue, number(s.Open))
		add(breakerOpenings, prometheus.CounterValue, float64(s.Openings))
		if s.Replica {
			add(replicaCut, prometheus.GaugeValue, number(s.Cut))
			add(replicaLag, prometheus.GaugeValue, s.Lag.Seconds())
		}
		if s.SkewKnown {
			add(clockSkew, prometheus.GaugeValue, s.Skew.Seconds())
		}
	})
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
