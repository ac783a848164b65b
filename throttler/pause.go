package throttler

import (
	"context"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Pause refuses charges to these counts before until, at most [quota.MaxWindow] ahead, in every
// process, but not in mode Record. The latest pause holds.
func (t *Throttler) Pause(ctx context.Context, until time.Time, charges ...Charge) (err error) {
	t.warnOfKeys("Pause", charges)
	if t.observer != nil {
		defer func(start time.Time) { t.observe(ctx, observe.OpPause, charges, start, new(Decision), err) }(time.Now())
	}
	var r driver.Request
	decided, links, err := t.resolve(ctx, &r, charges)
	if decided != nil || err != nil {
		return err
	}
	if ahead := until.Sub(t.clock.Now()); ahead > quota.MaxWindow {
		return invalid.Errorf("throttler: a pause until %s, in %v; it must end within %v (366 days)", until.Format(time.RFC3339), ahead, quota.MaxWindow)
	}
	if links != nil { // not the parents
		if links.Given == 0 { // no limit holds for the charges
			return nil
		}
		r = r.Replace(r.Charges()[:links.Given]...)
	}
	t.queues.pause(charges, until)
	return t.forEach(r, func(b driver.Backend, r driver.Request) error { return pause(ctx, b, r, until) })
}

// pause is Pause for one decision of b: it settles charges of cost 0, and the pause is stored with
// their counts. An operator's block isn't: policies.Override has it, in the table of policies.
func pause(ctx context.Context, b driver.Backend, r driver.Request, until time.Time) error {
	charges := slices.Clone(r.Charges())
	for i := range charges {
		charges[i].Cost = 0
	}
	d := driver.NewDecision(driver.NewRequest(r.Now, charges...))
	d.Allowed = true
	_, err := b.Settle(ctx, driver.Settlement{
		Now: r.Now, ServerTime: r.ServerTime, Charged: d, Costs: make([]int64, len(charges)),
		PauseUntil: until.Add(time.Millisecond - 1).UnixMilli(),
	})
	return err
}
