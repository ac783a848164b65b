package refusals_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/backendtest"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/refusals"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

func Benchmark(b *testing.B) {
	backendtest.Bench(b, func(b *testing.B) driver.Backend { return open(b, memorybackend.NewDefault(), nil) })
}

// refusing refuses everything for a minute, and takes no time.
type refusing struct{ driver.Backend }

func (refusing) Take(_ context.Context, r driver.Request) (driver.Decision, error) {
	d := driver.NewDecision(r)
	decided := decision.FromDriver(d)
	for i, s := range decided.Limits() {
		end := r.Now + time.Minute.Milliseconds()
		d.Results()[i] = driver.Result{Used: s.Limit.Quota, ResetAt: end, RetryAt: end}
	}
	return d, nil
}

// BenchmarkAnswer measures a take that is refused from memory, without the front door.
func BenchmarkAnswer(b *testing.B) {
	one := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	two := &throttler.Policy{Name: "search", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}, {Quota: 5, Window: time.Second}}}
	request := func(key string, policies ...*throttler.Policy) driver.Request {
		var charges []throttler.Charge
		for _, p := range policies {
			charges = append(charges, throttler.Charge{Policy: p, Key: key, Cost: 1, Partition: key})
		}
		return driver.NewRequest(1_900_000_000_000, charges...)
	}
	for _, bench := range []struct {
		name     string
		keys     int
		policies []*throttler.Policy
	}{
		{"keys=1", 1, []*throttler.Policy{one}},
		{"keys=10000", 10_000, []*throttler.Policy{one}},
		{"two policies, three limits/keys=1", 1, []*throttler.Policy{one, two}},
	} {
		backend := open(b, refusing{}, &refusals.Options{MaxAge: time.Hour, MaxKeys: 1 << 16})
		var requests []driver.Request
		for i := range bench.keys {
			requests = append(requests, request(fmt.Sprintf("client-%d", i), bench.policies...))
		}
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if d, err := backend.Take(b.Context(), requests[i%len(requests)]); err != nil || d.Allowed {
					b.Fatal(d.Allowed, err)
				}
			}
		})
		b.Run("parallel "+bench.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := rand.IntN(len(requests)); pb.Next(); i++ {
					if d, err := backend.Take(context.Background(), requests[i%len(requests)]); err != nil || d.Allowed {
						b.Error(d.Allowed, err)
						return
					}
				}
			})
		})
	}
}
