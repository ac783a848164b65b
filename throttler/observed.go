package throttler

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
)

// observed makes a decision about charges, and reports it to the observer.
func (t *Throttler) observed(ctx context.Context, op observe.Op, charges []Charge) (d Decision, err error) {
	panics := true // until the backend has returned
	defer func(start time.Time) {
		if panics {
			d = Decision{}
		}
		t.observe(ctx, op, charges, start, &d, err)
	}(time.Now())
	err = t.unobserved(ctx, op, charges, &d) // Take and Peek add the receipt
	panics = false
	return d, err
}

// observe reports a decision about charges to the observer, which is not nil.
func (t *Throttler) observe(ctx context.Context, op observe.Op, charges []Charge, start time.Time, d *Decision, err error) {
	e := observe.Decided{Op: op, Limit: -1, Start: start, Duration: time.Since(start), Err: err}
	if err != nil {
		e.Outcome = outcomeOf(err)
		if len(charges) > 0 && charges[0].Policy != nil {
			e.Policy = charges[0].Policy.Name
		}
		t.observer.Decided(ctx, e)
		return
	}
	switch {
	case op == observe.OpSettle || op >= observe.OpReset || d.Allowed:
	case d.NumLimits() == 0: // the backend panicked
		e.Outcome, e.Policy = observe.OutcomeUnavailable, charges[0].Policy.Name
	default:
		e.Outcome = observe.OutcomeRefused
	}
	e.Degraded = d.Degraded
	key, bound := "", (*Policy)(nil)
	switch d.NumLimits() {
	case 0:
		if len(charges) > 0 { // a reset, a pause, or a decision without counts
			e.Policy = charges[0].Policy.Name
		}
	case 1: // most decisions: to make a Status would be the slowest part
		bound, key = d.Charges()[0].Policy, d.Charges()[0].Key
		e.Policy, e.Limit = bound.Name, 0
	default:
		binding := d.Binding()
		bound, key = binding.Policy, binding.Key
		e.Policy, e.Limit = bound.Name, binding.Index
	}
	if op == observe.OpTake && e.Outcome == observe.OutcomeRefused {
		e.Key, e.RetryAt = key, d.RetryAt()
	}
	if bound != nil {
		e.Binding = &bound.Limits[e.Limit]
	}
	t.observer.Decided(ctx, e)
}

func outcomeOf(err error) observe.Outcome {
	switch {
	case errors.Is(err, ErrSettled):
		return observe.OutcomeRefused
	case errors.Is(err, ErrInvalid):
		return observe.OutcomeInvalid
	case errors.Is(err, driver.ErrOverloaded):
		return observe.OutcomeOverloaded
	case errors.Is(err, ErrUnavailable):
		return observe.OutcomeUnavailable
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return observe.OutcomeCanceled
	}
	return observe.OutcomeUnavailable
}
