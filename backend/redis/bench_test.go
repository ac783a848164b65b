package redisbackend_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/backendtest"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func BenchmarkBackend(b *testing.B) {
	c := newClient(b, testserver.Redis(b).Addr)
	n := 0
	backendtest.Bench(b, func(b *testing.B) driver.Backend {
		n++
		return newBackend(b, []redisbackend.Shard{{Name: "a", Primary: c}}, &redisbackend.Options{Prefix: "b" + strconv.Itoa(n) + ":"})
	})
}

// BenchmarkServerTime reads the time of a take, by policy, from the server.
func BenchmarkServerTime(b *testing.B) {
	limit := func(a quota.Algorithm, quota int64, window time.Duration) throttler.Limit {
		return throttler.Limit{Quota: quota, Window: window, Algorithm: a}
	}
	for _, bench := range []struct {
		name   string
		filled int // earlier charges
		limits []throttler.Limit
	}{
		{"fixed-window", 0, []throttler.Limit{limit(throttler.FixedWindow, 1<<40, time.Hour)}},
		{"sliding-window", 0, []throttler.Limit{limit(throttler.SlidingWindow, 1<<40, time.Hour)}},
		{"token-bucket", 0, []throttler.Limit{limit(throttler.TokenBucket, 1<<40, time.Hour)}},
		{"leaky-bucket", 0, []throttler.Limit{limit(throttler.LeakyBucket, 1<<40, time.Hour)}},
		{"sliding-log/10", 10, []throttler.Limit{limit(throttler.SlidingLog, 10, time.Hour)}},
		{"sliding-log/1000", 1000, []throttler.Limit{limit(throttler.SlidingLog, 1000, time.Hour)}},
		{"sliding-log/10000", 10_000, []throttler.Limit{limit(throttler.SlidingLog, 10_000, time.Hour)}},
		{"two-fixed-windows", 0, []throttler.Limit{limit(throttler.FixedWindow, 1<<40, time.Hour), limit(throttler.FixedWindow, 1<<40, time.Minute)}},
		{"four-algorithms", 0, []throttler.Limit{
			limit(throttler.FixedWindow, 1<<40, time.Hour), limit(throttler.SlidingWindow, 1<<40, time.Minute),
			limit(throttler.TokenBucket, 1<<40, time.Second), limit(throttler.LeakyBucket, 1<<40, time.Hour),
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			if testing.Short() {
				bench.filled = min(bench.filled, 10)
			}
			c := newClient(b, testserver.Redis(b).Addr)
			clk := clock.NewManual(t0)
			th := throttler.New(newBackend(b, []redisbackend.Shard{{Name: "a", Primary: c}}, nil), &throttler.Options{Clock: clk})
			p := policy("core", bench.limits...)
			take := func() {
				clk.Advance(time.Millisecond)
				if _, err := th.Take(context.Background(), p.Charge("alice")); err != nil {
					b.Fatal(err)
				}
			}
			for range max(bench.filled, 1) {
				take()
			}
			// The log is full: each further charge finds one entry that ends.
			clk.Advance(time.Hour - time.Duration(bench.filled)*time.Millisecond)
			if err := c.ConfigResetStat(context.Background()).Err(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				take()
			}
			b.ReportMetric(commandStats(b, c)["evalsha"].usecPerCall, "server-µs/call")
		})
	}
}
