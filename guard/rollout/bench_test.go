package rollout_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/throttler/driver"
)

// instant decides nothing, at once.
type instant struct{ handoff.Store }

func (instant) TakeAt(context.Context, driver.Request, *handoff.Placement) (driver.Decision, error) {
	return driver.Decision{Allowed: true}, nil
}

// BenchmarkOverhead measures the cost that a rollout adds to a decision in the steady state,
// and the cost of evaluating the flag for each decision.
func BenchmarkOverhead(b *testing.B) {
	requests := func(n int) []driver.Request {
		all := make([]driver.Request, n)
		for i := range all {
			c := core.Charge(fmt.Sprint("client number ", i))
			c.Partition = c.Key
			all[i] = driver.NewRequest(t0.UnixMilli(), c)
		}
		return all
	}
	all := []int{1, 10_000, 100_000}
	if testing.Short() {
		all = []int{1, 100}
	}
	for _, keys := range all {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			backends := map[string]handoff.Store{"old": instant{}, "new": instant{}}
			r := newRollout(b, backends, "old", clientOf(b, inMemory(rollout.DefaultFlag, "new")), &rollout.Options{Refresh: time.Minute})
			all := requests(keys)
			for i := range all {
				if _, err := r.Take(b.Context(), all[i]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := r.Take(b.Context(), all[i%keys]); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(r.Stats().Evaluations-int64(keys))/float64(b.N), "evaluations/op")
		})
	}
	b.Run("evaluation", func(b *testing.B) {
		c := clientOf(b, inMemory(rollout.DefaultFlag, "new"))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.StringValue(b.Context(), rollout.DefaultFlag, "old", openfeature.NewEvaluationContext("key", nil)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
