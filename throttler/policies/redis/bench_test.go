package redispolicies_test

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// fill writes n policies, and n overrides of another one if asked, with quotas from first on.
func fill(b *testing.B, store *redispolicies.Store, n int, first int64, overrides bool) {
	b.Helper()
	for i := 0; i < n; i += redispolicies.MaxChange {
		var set, override redispolicies.Change
		for j := i; j < min(i+redispolicies.MaxChange, n); j++ {
			set.Set = append(set.Set, hourly(fmt.Sprintf("policy-%07d", j), first+int64(j)))
			override.Override = append(override.Override, policies.Override{Policy: "core", Key: fmt.Sprintf("key-%07d", j), Limits: limits(first + int64(j))})
		}
		write(b, store, set)
		if overrides {
			write(b, store, override)
		}
	}
}

// BenchmarkAtRest stores n policies and n overrides in Redis, and decides in a process that has
// them: under one policy after the other, half of the time for keys with overrides. It reports
// the memory of the process for each policy, the memory of Redis for a policy and an override,
// and the bytes of a look each second. If there are enough policies, 50,000 of them change, and
// come into force.
func BenchmarkAtRest(b *testing.B) {
	for _, n := range []int{100, 10_000, 1_000_000} {
		if testing.Short() && n > 10_000 {
			continue
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			store, client, traffic := open(b, testserver.Redis(b))
			empty := used(b, client)
			write(b, store, redispolicies.Change{Set: []*quota.Policy{hourly("core", quota.MaxQuota)}})
			fill(b, store, n, 1_000_000, true)
			pair := (used(b, client) - empty) / float64(n)

			before := heap()
			f := follow(b, store)
			held := (heap() - before) / float64(n)
			sent := traffic.n.Load()
			for range 10 {
				refresh(b, f)
			}
			sent = traffic.n.Load() - sent

			th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &f.table})
			charges := make([]throttler.Charge, 1<<15)
			for i := range charges {
				at := i * 7919 % n
				if i%2 == 0 {
					charges[i] = hourly(fmt.Sprintf("policy-%07d", at), 1).Charge("alice")
				} else {
					charges[i] = hourly("core", 1).Charge(fmt.Sprintf("key-%07d", at))
				}
			}
			decide := func(i int) {
				if d, err := th.Take(b.Context(), charges[i%len(charges)]); err != nil || d.NumLimits() != 1 {
					b.Fatal(d, err)
				}
			}
			for i := range charges { // overrides are asked for once
				decide(i)
			}
			runtime.GC() // not caused by decisions
			began := cpu(b)
			for i := 0; b.Loop(); i++ {
				decide(i)
			}
			b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/decision")
			b.ReportMetric(pair, "redis-B/pair")
			b.ReportMetric(held, "B/policy")
			b.ReportMetric(float64(sent)/10, "B/s")
			if found := f.status().Found; found > policies.DefaultMaxFound+64 {
				b.Errorf("%d overrides are remembered", found)
			}
			const many = 50_000
			if n >= many {
				fill(b, store, many, 2_000_000, false)
				wall, began := time.Now(), cpu(b)
				refresh(b, f)
				b.ReportMetric(float64(time.Since(wall).Milliseconds()), "50000-ms")
				b.ReportMetric(float64((cpu(b) - began).Milliseconds()), "50000-cpu-ms")
				if q := f.quota(fmt.Sprintf("policy-%07d", many-1), "k"); q != 2_000_000+many-1 {
					b.Errorf("quota %d", q)
				}
			}
		})
	}
}

// cpu returns the CPU time that this process has used: others may use the machine, too.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// used returns the memory that a server uses for its data.
func used(b *testing.B, client redis.UniversalClient) (n float64) {
	b.Helper()
	_, text, _ := strings.Cut(client.Info(b.Context(), "memory").Val(), "used_memory:")
	if _, err := fmt.Sscan(text, &n); err != nil {
		b.Fatal(err)
	}
	return n
}
