package algorithm_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

const day = 1_900_000_800_000 // ms, a multiple of a day

// take evaluates and, if the cost fits, charges.
func take(s *algorithm.State, limits []throttler.Limit, cost, now int64) (bool, []driver.Result) {
	results := make([]driver.Result, len(limits))
	if !s.Evaluate(limits, cost, now, results) {
		return false, results
	}
	s.Charge(limits, cost, now, results)
	return true, results
}

// https://blog.cloudflare.com/counting-things-a-lot-of-different-things/: 42
// requests in the last minute, 18 in this one, 15 seconds old: 42 * 0.75 + 18 =
// 49.5, of a limit of 50 per minute.
func TestCloudflareExample(t *testing.T) {
	limits := []throttler.Limit{{Quota: 50, Window: time.Minute, Algorithm: throttler.SlidingWindow}}
	var s algorithm.State
	take(&s, limits, 42, day+1000)
	_, r := take(&s, limits, 18, day+75_000)
	if r[0].Used != 50 {
		t.Errorf("used %d, want 49.5 rounded up", r[0].Used)
	}
	// 42 * (60 - e)/60 + 18 + 1 <= 50 from e = 15.714... s on.
	allowed, r := take(&s, limits, 1, day+75_000)
	if allowed || r[0].RetryAt != day+75_715 {
		t.Errorf("one more: allowed %v, retry at %d after the window's start; want a refusal until 15715", allowed, r[0].RetryAt-day-60_000)
	}
	if allowed, _ := take(&s, limits, 1, day+75_714); allowed {
		t.Error("allowed 1 ms before retry at")
	}
	if allowed, _ := take(&s, limits, 1, day+75_715); !allowed {
		t.Error("refused at retry at")
	}
}

// The table of github.com/throttled/throttled's test of its GCRA: a rate of one
// a second, bursts of five.
func TestThrottledTable(t *testing.T) {
	limits := []throttler.Limit{{Quota: 1, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 5}}
	var s algorithm.State
	for i, step := range []struct {
		at, cost, remaining, reset, retry int64 // ms after the start, ms from at
		allowed                           bool
	}{
		{0, 6, 5, 0, -1, false}, // more than the burst never fits
		{0, 1, 4, 1000, 0, true},
		{0, 1, 3, 2000, 0, true},
		{0, 1, 2, 3000, 0, true},
		{0, 1, 1, 4000, 0, true},
		{0, 1, 0, 5000, 0, true},
		{0, 1, 0, 5000, 1000, false},
		{3000, 1, 2, 3000, 0, true},
		{3100, 1, 1, 3900, 0, true},
		{4000, 1, 1, 4000, 0, true},
		{8000, 1, 4, 1000, 0, true},
		{9500, 1, 4, 1000, 0, true},
		{9500, 0, 4, 1000, 0, true}, // cost 0 only looks
		{9500, 2, 2, 3000, 0, true},
		{9500, 5, 2, 3000, 3000, false},
	} {
		now := day + step.at
		allowed, r := take(&s, limits, step.cost, now)
		retry := r[0].RetryAt
		if retry > 0 {
			retry -= now
		}
		if remaining, reset := 5-r[0].Used, r[0].ResetAt-now; allowed != step.allowed || remaining != step.remaining || reset != step.reset || retry != step.retry {
			t.Errorf("step %d, cost %d at %d ms: allowed %v, remaining %d, reset %d, retry %d; want %+v",
				i, step.cost, step.at, allowed, remaining, reset, retry, step)
		}
	}
}
