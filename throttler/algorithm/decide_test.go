package algorithm_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// chain returns two charges of two limits each, and their states. The last limit allows two.
func chain() (driver.Request, []*algorithm.State) {
	org := &throttler.Policy{Name: "org", Limits: []throttler.Limit{{Quota: 10, Window: time.Minute}, {Quota: 9, Window: time.Hour, Algorithm: throttler.TokenBucket}}}
	user := &throttler.Policy{Name: "user", Limits: []throttler.Limit{{Quota: 5, Window: time.Minute, Algorithm: throttler.SlidingWindow}, {Quota: 2, Window: time.Second, Algorithm: throttler.SlidingLog}}}
	return driver.NewRequest(time.UnixMilli(day).UTC().UnixMilli(), org.Charge("acme"), user.Charge("alice")),
		[]*algorithm.State{new(algorithm.State), new(algorithm.State)}
}

func wantUsed(t *testing.T, d driver.Decision, allowed bool, used ...int64) {
	t.Helper()
	if d.Allowed != allowed || len(d.Results()) != len(used) {
		t.Fatalf("%+v; want allowed %v and %d limits", d, allowed, len(used))
	}
	for i := range used {
		if d.Results()[i].Used != used[i] {
			t.Errorf("limit %d: used %d, want %d", i, d.Results()[i].Used, used[i])
		}
	}
}

func TestDecisionsAreAllOrNothing(t *testing.T) {
	r, states := chain()
	wantUsed(t, algorithm.Evaluate(r, make([]*algorithm.State, 2)), true, 0, 0, 0, 0)
	first := algorithm.Take(r, states)
	wantUsed(t, first, true, 1, 1, 1, 1)
	wantUsed(t, algorithm.Take(r, states), true, 2, 2, 2, 2)
	refused := algorithm.Take(r, states)
	wantUsed(t, refused, false, 2, 2, 2, 2)
	if s := refused.ResultsOf(1); len(s) != 2 || s[0].RetryAt != 0 || s[1].RetryAt == 0 {
		t.Errorf("alice's limits: %+v; want her second one to refuse", s)
	}
	settled := algorithm.Settle(driver.Settlement{Now: r.Now, Charged: first, Costs: []int64{0, 4}}, states)
	wantUsed(t, settled, true, 1, 1, 5, 5)
}

// A decision allocates only its statuses.
func TestDecisionAllocatesItsStatuses(t *testing.T) {
	r, states := chain()
	for i := range r.Charges() {
		p := *r.Charges()[i].Policy
		p.Limits = []throttler.Limit{{Quota: 1 << 40, Window: time.Hour}, {Quota: 1 << 40, Window: time.Hour, Algorithm: throttler.TokenBucket}}
		r.Charges()[i].Policy = &p
	}
	algorithm.Take(r, states)
	if n := testing.AllocsPerRun(100, func() {
		var some [quota.MaxCharges]*algorithm.State
		copy(some[:], states)
		algorithm.Take(r, some[:len(states)])
	}); n != 1 {
		t.Errorf("%v allocations, want 1", n)
	}
}
