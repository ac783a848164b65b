package redisbackend_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// BenchmarkMostExpensiveDecisions reads the time of the most expensive decisions that
// quota.MaxWork allows from the server: takes, refusals, refunds. None must exceed 1 ms;
// docs/reference/operations.md has the figures.
func BenchmarkMostExpensiveDecisions(b *testing.B) {
	for _, bench := range []struct {
		name      string
		charges   int
		limits    int // of each
		algorithm quota.Algorithm
		quota     int64
		filled    int // takes before
	}{
		{"84 fixed windows", 6, 14, throttler.FixedWindow, 1 << 40, 1},
		{"42 sliding windows", 3, 14, throttler.SlidingWindow, 1 << 52, 1},
		{"42 token buckets", 3, 14, throttler.TokenBucket, 1000, 1},
		{"42 token buckets of 2^53", 3, 14, throttler.TokenBucket, 1 << 53, 1},
		{"a log of 10,000", 1, 1, throttler.SlidingLog, 10_000, 9900},
		{"8 logs of 1,000", 4, 2, throttler.SlidingLog, 1000, 900},
	} {
		if testing.Short() {
			bench.filled = min(bench.filled, 10)
		}
		c := newClient(b, testserver.Redis(b).Addr)
		clk := clock.NewManual(t0)
		th := throttler.New(newBackend(b, []redisbackend.Shard{{Name: "a", Primary: c}}, nil), &throttler.Options{Clock: clk})
		var limits []throttler.Limit
		for i := range bench.limits {
			limits = append(limits, throttler.Limit{Quota: bench.quota, Window: time.Hour + time.Duration(i)*time.Minute, Algorithm: bench.algorithm})
		}
		decide := func(cost int64) throttler.Decision {
			var charges []throttler.Charge
			for i := range bench.charges {
				charges = append(charges, throttler.Charge{Policy: policy("core", limits...), Key: fmt.Sprint(i), Cost: cost, Partition: "p"})
			}
			clk.Advance(time.Millisecond)
			d, err := th.Take(context.Background(), charges...)
			if err != nil {
				b.Fatal(err)
			}
			return d
		}
		for range bench.filled {
			decide(1)
		}
		measure := func(what string, before, do func()) {
			b.Run(bench.name+"/"+what, func(b *testing.B) {
				var costs []float64
				for b.Loop() {
					before()
					c.ConfigResetStat(context.Background())
					do()
					costs = append(costs, commandStats(b, c)["evalsha"].usecPerCall)
				}
				b.ReportMetric(median(costs), "µs")
			})
		}
		var d throttler.Decision
		nothing := func() {}
		measure("refused", nothing, func() { decide(bench.quota) })
		refund := func() {
			if _, err := th.Refund(context.Background(), d); err != nil {
				b.Fatal(err)
			}
		}
		measure("refunded", func() { d = decide(1) }, refund)
		measure("taken", nothing, func() { d = decide(1); refund() })
	}
}
