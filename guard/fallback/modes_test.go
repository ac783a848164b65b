package fallback_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// During an outage AtMost takes the units that fit this process's share, a Check looks at the
// share, and a Record is charged beyond it. Only charged units are handed over.
func TestModesInAnOutage(t *testing.T) {
	f := newFixture(t, 2, fallback.Options{OnFailure: fallback.Local})
	in := func(m quota.Mode, cost int64) throttler.Charge {
		return throttler.Charge{Policy: core, Key: "alice", Cost: cost, Mode: m}
	}
	f.fail(down)
	for i, step := range []struct {
		charge  throttler.Charge
		allowed bool
		cost    int64
	}{
		{in(quota.Check, 30), true, 0},
		{in(quota.AtMost, 25), true, 25},
		{in(quota.AtMost, 60), true, 5}, // of the share of 30
		{in(quota.AtMost, 60), false, 60},
		{in(quota.Check, 1), false, 1},
		{in(quota.Record, 70), true, 70},
	} {
		d := f.take(0, step.charge)
		if d.Allowed != step.allowed || d.Charges()[0].Cost != step.cost {
			t.Errorf("step %d: allowed %v at %d; want %v at %d", i, d.Allowed, d.Charges()[0].Cost, step.allowed, step.cost)
		}
	}
	if _, err := f.processes[0].Refund(t.Context(), f.take(0, in(quota.Record, 7))); err != nil {
		t.Fatal(err)
	}
	f.recover()
	if n := f.used(core, "alice"); n != 100 {
		t.Errorf("%d were handed over; want 100", n)
	}
}

// AtMost charges the units of rates, and one of those in flight.
func TestAtMostInFlightInAnOutage(t *testing.T) {
	p := &throttler.Policy{Name: "both", Limits: []throttler.Limit{
		{Quota: 1000, Window: time.Hour},
		{Quota: 4, Window: time.Minute, Algorithm: throttler.InFlight},
	}}
	f := newFixture(t, 2, fallback.Options{OnFailure: fallback.Local})
	f.fail(down)
	if d := f.take(0, throttler.Charge{Policy: p, Key: "alice", Cost: 100, Mode: quota.AtMost}); !d.Allowed || d.Charges()[0].Cost != 100 {
		t.Errorf("allowed %v at %d; want 100", d.Allowed, d.Charges()[0].Cost)
	}
}
