package algorithm_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// TestResumeCountsNoLess charges a state again and again, and compares it with the
// state that Resume makes of its results, at once and later.
func TestResumeCountsNoLess(t *testing.T) {
	const start = 1_900_000_000_123
	for _, a := range quota.Algorithms() {
		for _, burst := range []int64{0, 25} {
			limit := throttler.Limit{Quota: 10, Window: 10 * time.Second, Algorithm: a}
			if a.Drains() {
				limit.Burst = burst
			}
			limits := []throttler.Limit{limit}
			var s algorithm.State
			result := make([]driver.Result, 1)
			for now := int64(start); now < start+60_000; now += 1_700 {
				if s.Evaluate(limits, 3, now, result) {
					s.Charge(limits, 3, now, result)
				}
				s.Evaluate(limits, 0, now, result)
				said := result[0]
				resumed := algorithm.Resume(limits, now, []driver.Result{said})
				for later := now; later < now+25_000; later += 311 {
					s.Evaluate(limits, 0, later, result)
					want := result[0].Used
					resumed.Evaluate(limits, 0, later, result)
					if got := result[0].Used; got < want || later == now && got != want {
						t.Fatalf("%v: said at %d: %+v; at +%dms the state has used %d, the resumed one %d", limit, now, said, later-now, want, got)
					}
				}
			}
		}
	}
}

// TestResumeKeepsLimitsApart resumes a used limit and an unused one: the second must not
// adopt the units of the first.
func TestResumeKeepsLimitsApart(t *testing.T) {
	const now = 1_900_000_000_000
	limits := []throttler.Limit{{Quota: 20, Window: time.Minute}, {Quota: 5, Window: 3 * time.Second}}
	s := algorithm.Resume(limits, now, []driver.Result{{Used: 15, ResetAt: now + 30_000}, {Used: 0, ResetAt: now}})
	results := make([]driver.Result, 2)
	if !s.Evaluate(limits, 5, now, results) || results[0].Used != 15 || results[0].ResetAt != now+30_000 || results[1].Used != 0 {
		t.Errorf("got %+v, want 15 used until +30s, and none of the second", results)
	}
}
