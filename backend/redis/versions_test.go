package redisbackend_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// Two processes with two versions of a policy take in turn, as during a deploy, or permanently
// if two services share a policy's name. They get no more than the looser version allows.
func TestSequentialTwoProcessesWithTwoVersions(t *testing.T) {
	limit := func(a quota.Algorithm, units int64, window time.Duration, burst int64) throttler.Limit {
		return throttler.Limit{Algorithm: a, Quota: units, Window: window, Burst: burst}
	}
	server := testserver.Redis(t)
	clk := clock.NewManual(t0)
	var processes [2]*throttler.Throttler
	for i := range processes {
		processes[i] = throttler.New(newBench(t, newClient(t, server.Addr)).backend, &throttler.Options{Clock: clk})
	}
	for _, test := range []struct {
		name     string
		versions [2]throttler.Limit
		turns    int           // one in so many is the first process's
		pause    time.Duration // between two takes
		takes    int
		most     int
	}{
		{"token bucket", [2]throttler.Limit{limit(throttler.TokenBucket, 100, time.Minute, 0), limit(throttler.TokenBucket, 90, time.Minute, 0)}, 2, 20 * time.Millisecond, 250, 108},
		{"lower rate", [2]throttler.Limit{limit(throttler.TokenBucket, 100, time.Minute, 100), limit(throttler.TokenBucket, 10, time.Minute, 100)}, 2, 80 * time.Millisecond, 250, 133},
		{"leaky bucket", [2]throttler.Limit{limit(throttler.LeakyBucket, 100, time.Minute, 0), limit(throttler.LeakyBucket, 90, time.Minute, 0)}, 2, 20 * time.Millisecond, 250, 108},
		{"fixed window", [2]throttler.Limit{limit(throttler.FixedWindow, 100, time.Minute, 0), limit(throttler.FixedWindow, 10, 6*time.Second, 0)}, 10, 400 * time.Millisecond, 750, 500},
		{"sliding log", [2]throttler.Limit{limit(throttler.SlidingLog, 100, time.Minute, 0), limit(throttler.SlidingLog, 10, 6*time.Second, 0)}, 10, 400 * time.Millisecond, 750, 500},
		{"sliding window", [2]throttler.Limit{limit(throttler.SlidingWindow, 100, time.Minute, 0), limit(throttler.SlidingWindow, 10, 6*time.Second, 0)}, 10, 400 * time.Millisecond, 750, 550},
	} {
		var charges [2]throttler.Charge
		for i, l := range test.versions {
			charges[i] = policy("versions", l).Charge(test.name)
		}
		served := 0
		for i := range test.takes {
			version := min(i%test.turns, 1)
			d, err := processes[version].Take(t.Context(), charges[version])
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				served++
			}
			clk.Advance(test.pause)
		}
		if served > test.most || served < test.most*8/10 {
			t.Errorf("%s: %d of %d were served, want about %d, and no more", test.name, served, test.takes, test.most)
		}
	}
}
