package synced

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// BenchmarkFleet measures a root's CPU time for one sync of each process of a fleet. All
// processes are asked for the same counters.
func BenchmarkFleet(b *testing.B) {
	for _, processes := range []int{10, 100, 300} {
		for _, counters := range []int{10, 100, 1000} {
			if testing.Short() && processes*counters > 1000 {
				continue
			}
			b.Run(fmt.Sprintf("%d processes, %d counters", processes, counters), func(b *testing.B) { benchmarkFleet(b, processes, counters) })
		}
	}
}

func benchmarkFleet(b *testing.B, processes, counters int) {
	policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: quota.MaxQuota, Window: time.Hour, Aligned: true}}}
	addr := testserver.Redis(b).Addr
	client, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{addr}})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	o := Options{}
	if err := o.complete(); err != nil {
		b.Fatal(err)
	}
	backends := make([]*Backend, processes)
	for i := range backends {
		servers, err := dial([]Root{{Name: "root", Client: client}}, "weir-sync:", time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		backends[i] = newBackend(servers, &o)
	}
	round := func() {
		for _, backend := range backends {
			th := throttler.New(backend, nil)
			for i := range counters {
				if _, err := th.Take(context.Background(), policy.Charge("client-"+strconv.Itoa(i))); err != nil {
					b.Fatal(err)
				}
			}
			if backend.syncOnce(context.Background(), backend.aggregators[0]); backend.Stats().Failed > 0 {
				b.Fatal("a sync failed")
			}
		}
	}
	round() // creates the keys
	info := infoOf(b, addr)
	before := info()
	for b.Loop() {
		round()
	}
	after := info()
	seconds := after["used_cpu_user"] + after["used_cpu_sys"] - before["used_cpu_user"] - before["used_cpu_sys"]
	syncs := float64(b.N * processes)
	b.ReportMetric(1e6*seconds/syncs, "root-µs/sync")
	b.ReportMetric(syncs*float64(counters)/seconds, "counters/root-s")
}
