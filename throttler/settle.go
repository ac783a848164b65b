package throttler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Refund refunds d's charges to their windows, while they last, even if ctx is done, and
// returns the limits after it. After an error it may be called again, which does nothing if
// [driver.MayHaveCharged].
func (t *Throttler) Refund(ctx context.Context, d Decision) (Decision, error) {
	return t.settle(ctx, d, make([]int64, len(d.Charges())))
}

// Settle sets the real costs of d.Charges without the d.Added, and ends d's units in flight;
// without costs, only that. Too much is given back, too little charged, even beyond the quota: the
// next requests wait that debt out. A d that is settled, or took nothing, is returned.
func (t *Throttler) Settle(ctx context.Context, d Decision, costs ...int64) (Decision, error) {
	switch {
	case !d.Allowed || len(d.Charges()) == 0:
		return t.settle(ctx, d, nil)
	case len(costs) == 0 && d.receipt != nil && d.receipt.opened:
		return Decision{}, invalid.Errorf("throttler: a receipt is settled without costs, which would change nothing; it needs the real costs")
	case len(costs) == 0:
		return t.settle(ctx, d, nil)
	}
	for i, cost := range costs {
		if cost < 0 || cost > quota.MaxQuota {
			return Decision{}, invalid.Errorf("throttler: charge %d: real cost is %d; it must be from 0 to %d (2^53)", i, cost, int64(quota.MaxQuota))
		}
	}
	if d.receipt != nil {
		costs = d.receipt.links.callerCosts(costs)
	}
	if charges := len(d.Charges()) - int(d.Added); len(costs) != charges {
		return Decision{}, invalid.Errorf("throttler: %d costs for a decision about %d charges", len(costs), charges)
	}
	if d.receipt != nil && d.receipt.links != nil {
		costs = d.receipt.links.costs(costs)
	}
	return t.settle(ctx, d, costs)
}

var errReceiptMoved = invalid.Errorf("throttler: a decision with a receipt cannot be settled to more than it charged: a policy of it has moved to counts without receipts since then; settle at most the charged costs")

// settleTime bounds a refund or settlement after its context is done, such as the context of
// a request after its client has left.
const settleTime = time.Second

// settle settles d to costs or, if costs is nil, only ends its units in flight.
func (t *Throttler) settle(ctx context.Context, d Decision, costs []int64) (Decision, error) {
	switch {
	case !d.Allowed:
		return d, nil
	case d.receipt == nil:
		return Decision{}, invalid.Errorf("throttler: the decision has no receipt: Take of this process did not return it as it is, so its charges cannot be found")
	}
	r := d.receipt
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, serverTime := t.outlive(ctx) // not earlier: a renewal may have held the lock until ctx was done
	releases, holds := costs == nil, !r.released && holds(d.Charges())
	if r.done || releases && !holds {
		return d, nil
	}
	if releases {
		costs = costsOf(d.Charges())
	}
	r.done = !releases
	if r.extras().id == "" && costsAs(d.Charges(), costs) && !holds {
		return d, nil
	}
	start := time.Now()
	s := driver.Settlement{Now: t.now(), Charged: *d.Driver(), Costs: costs, ServerTime: serverTime}
	settled, err := t.settleCharges(ctx, &d, s, releases)
	r.released = r.released || err == nil || driver.MayHaveCharged(err) // if it is unknown, they lapse
	after := Decision{decision.FromDriver(settled), r}
	after.Added = d.Added
	if t.observer != nil {
		t.observe(ctx, observe.OpSettle, d.Charges(), start, &after, err)
	}
	if err != nil {
		r.done = !releases && driver.MayHaveCharged(err) && r.extras().id == "" // with an id, it is made once
		return Decision{}, err
	}
	t.queues.refunded(d.Charges()[:len(d.Charges())-int(d.Added)])
	if r.opened && isUncounted(&after, costs) && !t.uncounted.Swap(true) {
		weirlog.Ensure(t.observer).Warned(observe.Warned{
			Policy: after.Charges()[0].Policy.Name,
			Text:   "a receipt was settled, and nothing of its charges is counted, so that the settlement has changed nothing",
			Hint:   "this process must have the store of the process that took the charges, and its prefix; a store in memory is its own process's alone. Or the counts were reset or evicted",
		})
	}
	return after, nil
}

// isUncounted reports whether d was settled to costs above 0, and its store counts nothing. Only fixed
// windows are as the receipt has them: other counts drain.
func isUncounted(d *Decision, costs []int64) bool {
	for _, s := range d.Limits() {
		if s.Used > 0 || !s.Limit.Algorithm.ResetsAtOnce() {
			return false
		}
	}
	return !d.Degraded && slices.ContainsFunc(costs, func(cost int64) bool { return cost > 0 })
}

// settleCharges makes s, the settlement of d, where its charges were made.
func (t *Throttler) settleCharges(ctx context.Context, d *Decision, s driver.Settlement, releases bool) (driver.Decision, error) {
	r := d.receipt
	parts, m := t.later(&s, r), r.extras()
	switch {
	case m.id != "" && !releases && len(parts) > len(m.parts):
		return driver.Decision{}, errReceiptMoved
	case m.id != "" && !releases:
		r.byPartition(d)
		return t.settleOnce(ctx, s, r)
	case parts != nil:
		return settleParts(s, parts, func(take *partTake, s driver.Settlement) (driver.Decision, error) {
			if r.released {
				s.Charged = withoutUnits(s.Charged)
			}
			return t.settlePart(ctx, take, s)
		})
	case r.released:
		s.Charged = withoutUnits(s.Charged)
	}
	return t.backends[r.backend].Settle(ctx, s)
}

// settlement returns the settlement of d to costs now.
func (t *Throttler) settlement(d driver.Decision, costs []int64) driver.Settlement {
	return driver.Settlement{Now: t.now(), Charged: d, Costs: costs, ServerTime: t.serverTime}
}

// outlive returns ctx or, if it is done, a context that is not, and the server's time: the
// request is over, but its charge is not.
func (t *Throttler) outlive(ctx context.Context) (context.Context, time.Duration) {
	if ctx.Err() == nil {
		return ctx, t.serverTime
	}
	return context.WithoutCancel(ctx), cmp.Or(t.serverTime, settleTime)
}

// costsAs reports whether costs are the costs of charges, so that there is nothing to send.
func costsAs(charges []Charge, costs []int64) bool {
	for i := range charges {
		if charges[i].Cost != costs[i] {
			return false
		}
	}
	return true
}
