package consistency_test

import (
	"fmt"
	"testing"

	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// moded returns a charge of alice in level m.
func moded(m quota.Mode, p *throttler.Policy, cost int64) throttler.Charge {
	return throttler.Charge{Policy: p, Key: "alice", Cost: cost, Mode: m}
}

// Synced and exact policies in one take, with charges in different modes.
func TestModesOfCharges(t *testing.T) {
	f := newFleet(t)
	p := f.start()
	f.begin(p, window, consistency.Synced)
	f.begin(p, hour, consistency.Exact)
	for i, step := range []struct {
		ofWindow, ofHour throttler.Charge
		want             string // allowed, the costs, and the units used
	}{
		{moded(quota.AtMost, window, 30), moded(quota.Record, hour, 70), "true 30 70, 30 70"},
		{moded(quota.AtMost, window, 300), moded(quota.AtMost, hour, 1), "false 300 1, 30 70"},
		{moded(quota.AtMost, window, 300), moded(quota.Check, hour, 1), "false 300 1, 30 70"},
		{moded(quota.AtMost, window, 300), moded(quota.Record, hour, 1), "true 70 1, 100 71"},
		{moded(quota.Check, window, 1), moded(quota.Record, hour, 1), "false 1 1, 100 71"},
		{moded(quota.Record, window, 9), moded(quota.Record, hour, 1), "true 9 1, 109 72"},
	} {
		d := f.take(p, step.ofWindow, step.ofHour)
		got := fmt.Sprintf("%v %d %d, %d %d", d.Allowed, d.Charges()[0].Cost, d.Charges()[1].Cost, f.used(p, window), f.used(p, hour))
		if got != step.want {
			t.Errorf("step %d: %s; want %s", i, got, step.want)
		}
	}
}

// While a policy changes its level, AtMost charges the units that fit both the old counts and
// the new ones, and charges both the same.
func TestAtMostInBothCounts(t *testing.T) {
	for _, change := range []struct{ from, to consistency.Level }{{consistency.Exact, consistency.Synced}, {consistency.Synced, consistency.Exact}} {
		f := newFleet(t)
		p := f.start()
		f.begin(p, window, change.from)
		f.take(p, costing(window, 90))
		f.set(p, window, change.to)
		d := f.take(p, moded(quota.AtMost, window, 40))
		if !d.Allowed || d.Charges()[0].Cost != 10 {
			t.Errorf("from %v: %v at %d; want 10, which the old counts have", change.from, d, d.Charges()[0].Cost)
		}
		for _, counts := range []driver.Backend{p.soft, f.store} {
			is, err := throttler.New(counts, &throttler.Options{Clock: f.clock}).Peek(t.Context(), costing(window, 1))
			if used := is.Limit(0).Used; err != nil || used != 10 && used != 100 {
				t.Errorf("from %v: %T has %v, %v; want 10 in the new counts, and 100 in the old ones", change.from, counts, is, err)
			}
		}
		if _, err := p.throttler.Settle(t.Context(), d, 3); err != nil {
			t.Fatal(err)
		}
		if d := f.peek(p, moded(quota.AtMost, window, 40)); !d.Allowed || d.Charges()[0].Cost != 7 {
			t.Errorf("from %v: after a settlement to 3: %v at %d; want 7", change.from, d, d.Charges()[0].Cost)
		}
	}
}
