package algorithm_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Renewals under an old policy, whose bucket has another window and a lower rate, add one
// record to the new policy's, and charge nothing.
func TestRenewalsUnderAnOldPolicy(t *testing.T) {
	held := quota.Limit{Quota: 10, Window: time.Hour, Algorithm: quota.InFlight}
	for _, a := range []quota.Algorithm{quota.TokenBucket, quota.LeakyBucket} {
		older := &quota.Policy{Name: "p", Limits: []quota.Limit{held, {Quota: 100, Window: time.Hour, Algorithm: a}}}
		newer := &quota.Policy{Name: "p", Limits: []quota.Limit{held, {Quota: 100, Window: time.Minute, Algorithm: a}}}
		take := func(p *quota.Policy, states []*algorithm.State) driver.Decision {
			return algorithm.Take(driver.NewRequest(day, p.Charge("alice")), states)
		}
		var s algorithm.State
		take(newer, []*algorithm.State{&s})
		d := take(older, []*algorithm.State{new(algorithm.State)}) // its unit is at the same instant
		var size, used int
		for i := range 40 {
			after := algorithm.Settle(driver.Settlement{Now: day, Charged: d, Costs: []int64{1}, Renews: true}, []*algorithm.State{&s})
			d = d.Renewed(&after)
			if i == 0 {
				size, used = s.Size(), int(after.Results()[1].Used)
			}
			if got := s.Size(); !after.Allowed || got != size || int(after.Results()[1].Used) != used {
				t.Fatalf("%v, renewal %d: allowed %t, %d bytes, %+v; want %d bytes and %d used", a, i, after.Allowed, got, after.Results(), size, used)
			}
		}
		if used != 1 {
			t.Errorf("%v: %d used, want 1", a, used)
		}
	}
}

// Ending a unit in flight drops the entries of a log that no longer count, as the Redis scripts do.
func TestReleaseDropsDeadEntries(t *testing.T) {
	p := &quota.Policy{Name: "p", Limits: []quota.Limit{{Quota: 10, Window: time.Hour, Algorithm: quota.InFlight}, {Quota: 10, Window: time.Second, Algorithm: quota.SlidingLog}}}
	var s algorithm.State
	states := []*algorithm.State{&s}
	d := algorithm.Take(driver.NewRequest(day, p.Charge("alice")), states)
	before := s.Size()
	algorithm.Settle(driver.Settlement{Now: day + 2000, Charged: d, Costs: []int64{1}}, states)
	if got, want := s.Size(), before-20; got != want {
		t.Errorf("%d bytes after the settlement, and %d before; want %d, without the unit and the entry", got, before, want)
	}
}
