package modes

import (
	"context"

	"github.com/weir-go/weir/fleet/synced"
	"github.com/weir-go/weir/throttler/driver"
)

// Joins implements driver.Joiner: several partitions are decided about at once if the store
// does so and has the counts of all.
func (b *Backend) Joins(r driver.Request) bool {
	return b.place(&r).all == inStore && driver.Joins(b.store, &r)
}

// Refused implements driver.Rememberer, of what the store has the counts of.
func (b *Backend) Refused(ctx context.Context, r driver.Request) (d driver.Decision, known bool) {
	if b.place(&r).all != inStore {
		return d, false
	}
	return driver.Refused(ctx, b.store, &r)
}

// agreed is the synced counts. A request that was about to be decided at once when a policy
// became synced is of several partitions here, too, and so is the settlement of such a
// decision. Each partition is asked then; none of that is a call.
type agreed struct{ *synced.Backend }

// Take implements driver.Backend.
func (b agreed) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if !r.IsSplit() {
		return b.Backend.Take(ctx, r)
	}
	whole, err := b.Peek(ctx, r)
	if err != nil || !whole.Allowed {
		return whole, err
	}
	parts := r.Parts()
	made := make([]driver.Decision, len(parts))
	for i := range parts {
		made[i], err = b.Backend.Take(ctx, parts[i].Request)
		if err == nil && made[i].Allowed {
			parts[i].CopyTo(&whole, &made[i])
			continue
		}
		for k := range i { // another take was quicker
			costs := make([]int64, len(made[k].Charges()))
			after, settleErr := b.Backend.Settle(context.WithoutCancel(ctx), driver.Settlement{Now: r.Now, Charged: made[k], Costs: costs})
			if settleErr != nil {
				return driver.Decision{}, settleErr // cannot be: its policies were known a moment ago
			}
			parts[k].CopyTo(&whole, &after)
		}
		whole.Allowed = false
		parts[i].CopyTo(&whole, &made[i])
		return whole, err
	}
	for i := range parts {
		parts[i].CopyCosts(&whole, &made[i])
	}
	return whole, nil
}

// Peek implements driver.Backend.
func (b agreed) Peek(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if !r.IsSplit() {
		return b.Backend.Peek(ctx, r)
	}
	whole := driver.NewDecision(r)
	whole.Allowed = true
	for _, p := range r.Parts() {
		d, err := b.Backend.Peek(ctx, p.Request)
		if err != nil {
			return driver.Decision{}, err
		}
		p.CopyTo(&whole, &d)
		whole.Allowed = whole.Allowed && d.Allowed
	}
	return whole, nil
}

// Settle implements driver.Backend.
func (b agreed) Settle(ctx context.Context, st driver.Settlement) (driver.Decision, error) {
	if !st.Charged.Request.IsSplit() {
		return b.Backend.Settle(ctx, st)
	}
	r := st.Charged.Request
	parts := r.Parts()
	r.Now = st.Now
	whole := driver.NewDecision(r)
	whole.Allowed = true
	for _, p := range parts {
		part := st
		part.Charged, part.Costs = driver.NewDecision(p.Request), p.Costs(st.Costs)
		part.Charged.Allowed, part.Charged.Degraded = true, st.Charged.Degraded
		p.CopyFrom(&st.Charged, &part.Charged)
		d, err := b.Backend.Settle(ctx, part)
		if err != nil {
			return driver.Decision{}, err
		}
		p.CopyTo(&whole, &d)
	}
	return whole, nil
}

// Reset implements driver.Backend.
func (b agreed) Reset(ctx context.Context, r driver.Request) error {
	for _, p := range r.Parts() {
		if err := b.Backend.Reset(ctx, p.Request); err != nil {
			return err
		}
	}
	return nil
}
