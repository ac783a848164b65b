package synced

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// BenchmarkRoot measures the cost to a root of one process with many counters, each asked for
// once in every sync: bytes and CPU for one sync of all, and the longest time that the root is
// blocked.
func BenchmarkRoot(b *testing.B) {
	for _, c := range []struct{ counters, perCall int }{{1000, perCall}, {100_000, perCall}, {100_000, 4 * perCall}} {
		if testing.Short() {
			c.counters = min(c.counters, 2*perCall)
		}
		b.Run(fmt.Sprintf("%d counters, %d a call", c.counters, c.perCall), func(b *testing.B) {
			policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota.MaxQuota, Window: time.Hour, Aligned: true}}}
			addr := testserver.Redis(b).Addr
			client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{addr}, ReadTimeout: time.Minute, WriteTimeout: time.Minute})
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			servers, err := dial([]Root{{Name: "root", Client: client}}, "weir-sync:", time.Minute)
			if err != nil {
				b.Fatal(err)
			}
			o := Options{}
			if err := o.complete(); err != nil {
				b.Fatal(err)
			}
			backend := newBackend(servers, &o)
			backend.perCall = c.perCall
			th := throttler.New(backend, nil)
			charges := make([]throttler.Charge, c.counters)
			for i := range charges {
				charges[i] = policy.Charge("client-" + strconv.Itoa(i))
			}
			round := func() {
				for _, charge := range charges {
					if _, err := th.Take(context.Background(), charge); err != nil {
						b.Fatal(err)
					}
				}
				backend.syncOnce(context.Background(), backend.aggregators[0])
			}
			round() // creates the keys

			info := infoOf(b, addr)
			stop, blocked := blockedOf(b, addr)
			before := info()
			for b.Loop() {
				round()
			}
			after := info()
			stop()
			if failed := backend.Stats().Failed; failed > 0 {
				b.Fatalf("%d syncs failed", failed)
			}
			per := func(field string) float64 { return (after[field] - before[field]) / float64(b.N) }
			b.ReportMetric(per("total_net_input_bytes"), "B-in/sync")
			b.ReportMetric(per("total_net_output_bytes"), "B-out/sync")
			b.ReportMetric(1000*(per("used_cpu_user")+per("used_cpu_sys")), "cpu-ms/sync")
			b.ReportMetric(float64(blocked.Load())/1e6, "longest-block-ms")
		})
	}
}

// infoOf returns a function that returns the numbers of INFO.
func infoOf(t testing.TB, addr string) func() map[string]float64 {
	client := redisClient(t, addr)
	return func() map[string]float64 {
		text, err := client.Info(context.Background(), "stats", "cpu").Result()
		if err != nil {
			t.Fatal(err)
		}
		numbers := map[string]float64{}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				numbers[name], _ = strconv.ParseFloat(value, 64)
			}
		}
		return numbers
	}
}

// blockedOf measures the longest PING, in ns, until it is stopped.
func blockedOf(t testing.TB, addr string) (stop func(), longest *atomic.Int64) {
	client, end, ended := redisClient(t, addr), make(chan struct{}), make(chan struct{})
	longest = new(atomic.Int64)
	if err := client.Ping(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
			}
			start := time.Now()
			_ = client.Ping(context.Background()).Err()
			longest.Store(max(longest.Load(), int64(time.Since(start))))
		}
	}()
	return func() { close(end); <-ended }, longest
}
