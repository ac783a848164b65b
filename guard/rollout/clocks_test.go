package rollout_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Counts that were charged, settled and reset by clocks from 1970 to 9999 move between backends of
// three kinds. At any instant, the backend that a count has moved to answers as the one before.
func TestSequentialCountsOfAllYearsMove(t *testing.T) {
	rng := testseed.Rand(t, 4)
	backends := houses(t)["three kinds"](t)
	names := []string{"memcached", "memory", "redis"}
	var flag atomic.Int64
	value := func(context.Context, string) openfeature.StringResolutionDetail { return says(names[flag.Load()]) }
	b := newRollout(t, backends, names[0], clientOf(t, &provider{value: value}), &rollout.Options{Refresh: 1}) // each decision asks
	last := decision.Never.UnixMilli()
	for n, a := range slices.Repeat(quota.Algorithms(), 3) {
		p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{
			Algorithm: a, Quota: []int64{1, 60, 10_000}[rng.IntN(3)], Window: []time.Duration{time.Millisecond, time.Minute, 365 * 24 * time.Hour}[rng.IntN(3)],
		}}}
		if rng.IntN(3) == 0 {
			p.Limits = append(p.Limits, throttler.Limit{Quota: 10, Window: 24 * time.Hour}, throttler.Limit{Algorithm: a, Quota: 60, Window: time.Second})
		}
		now, taken := int64(0), []driver.Decision(nil)
		request := func(cost int64) driver.Request {
			return driver.NewRequest(now, throttler.Charge{Policy: p, Key: fmt.Sprint(n), Partition: fmt.Sprint(n), Cost: cost})
		}
		move := func() {
			edges := []int64{0, 1735689600000, 1735689600000 + 1e12, last}
			switch rng.IntN(5) {
			case 0:
				now = rng.Int64N(last + 1)
			case 1:
				now = edges[rng.IntN(len(edges))] + rng.Int64N(7_200_000) - 3_600_000
			case 2:
				now += rng.Int64N(7_200_000) - 3_600_000
			}
			now = min(max(now, 0), last)
		}
		for range 40 {
			move()
			var err error
			switch what := rng.IntN(10); {
			case what == 0:
				err = b.Reset(t.Context(), request(1))
			case what < 4 && len(taken) > 0:
				_, err = b.Settle(t.Context(), driver.Settlement{Now: now, Charged: taken[rng.IntN(len(taken))], Costs: []int64{rng.Int64N(100)}})
			default:
				var d driver.Decision
				if d, err = b.Take(t.Context(), request(1+rng.Int64N(20))); d.Allowed {
					taken = append(taken, d)
				}
			}
			if err != nil {
				t.Fatalf("%v at %d: %v", p.Limits, now, err)
			}
			if rng.IntN(2) == 0 {
				move()
			}
			before, err := b.Peek(t.Context(), request(1))
			if err != nil {
				t.Fatalf("%v at %d: %v", p.Limits, now, err)
			}
			from := names[flag.Swap(int64(rng.IntN(3)))]
			if _, err := b.Take(t.Context(), request(0)); err != nil { // it moves the count
				t.Fatalf("%v at %d, from %s to %s: %v", p.Limits, now, from, names[flag.Load()], err)
			}
			if after, err := b.Peek(t.Context(), request(1)); err != nil || after.Allowed != before.Allowed || !reflect.DeepEqual(after.Results(), before.Results()) {
				t.Fatalf("%v at %d, from %s to %s: %+v, %v; before the move %+v", p.Limits, now, from, names[flag.Load()], after.Results(), err, before.Results())
			}
		}
	}
	if s := b.Stats(); s.Moved < 100 || s.Lost > 0 {
		t.Errorf("%d moves, %d lost; want more than 100, and none", s.Moved, s.Lost)
	}
}
