package throttler

import (
	"cmp"
	"context"
	"time"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
)

// Reset clears the counts of these charges, but not their parents'. Refunds of earlier charges
// do nothing. After an error, some counts may be cleared.
func (t *Throttler) Reset(ctx context.Context, charges ...Charge) error {
	t.warnOfKeys("Reset", charges)
	start := time.Now()
	err := t.reset(ctx, charges)
	t.queues.reset(charges) // after an error, too: some counts may be cleared
	if t.observer != nil {
		t.observe(ctx, observe.OpReset, charges, start, new(Decision), err)
	}
	return err
}

func (t *Throttler) reset(ctx context.Context, charges []Charge) error {
	now, inForce := t.now(), make([]Charge, len(charges))
	for i, c := range charges {
		if t.policies != nil && c.Policy != nil {
			view := t.policies.View()
			p, override, _ := view.Resolve(ctx, c.Policy, c.Key, now)
			if override != nil && override.Unlimited { // an unlimited key may have a count, too
				p = cmp.Or(view.PolicyAt(p.Name, now), c.Policy)
			}
			c.Policy = p
		}
		inForce[i] = c
	}
	if err := checkNumber(inForce); err != nil {
		return err
	}
	merged, err := together(inForce, nil)
	if err != nil {
		return err
	}
	r := t.request(now, merged)
	return t.forEach(r, func(b driver.Backend, r driver.Request) error { return b.Reset(ctx, r) })
}
