package throttler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// Decisions about several partitions whose counts are not in one place. Each partition is
// asked in the order of the charges, those with queues after the others. What was taken is
// given back if a later one refuses or fails.

// taken is what a decision took of one partition.
type taken struct {
	part driver.Part
	d    driver.Decision // as the backend returned it
}

// takeParts takes the parts of r. It returns what to settle if the decision is allowed.
func (t *Throttler) takeParts(ctx context.Context, r driver.Request) (whole driver.Decision, all []taken, err error) {
	whole = driver.NewDecision(r)
	parts, open := r.Parts(), false
	slices.SortStableFunc(parts, queuesLast)
	for i, p := range parts {
		d, err := t.backend.Take(ctx, p.Request)
		if err != nil {
			if lost := t.giveBack(ctx, all, nil); lost != nil && !MayHaveCharged(err) {
				err = &partlyChargedError{err, lost}
			}
			return driver.Decision{}, nil, err
		}
		p.CopyTo(&whole, &d)
		if !d.Allowed {
			_ = t.giveBack(ctx, all, &whole) // the observer receives it; a refusal is no error
			t.look(ctx, parts[i+1:], &whole)
			return whole, nil, nil
		}
		all = append(all, taken{p, d})
		open = open || len(d.Charges()) == 0
	}
	if open { // one partition was allowed without counts: nothing is known of all
		whole = driver.NewDecision(driver.NewRequest(r.Now))
		whole.Degraded = true
	}
	whole.Allowed = true
	return whole, all, nil
}

// queuesLast orders parts so that those with queues come after the others. A queue keeps the
// first place of a charge whose start has come, so all of it cannot be given back.
func queuesLast(a, b driver.Part) int {
	switch queues := hasQueue(&a); {
	case queues == hasQueue(&b):
		return 0
	case queues:
		return 1
	}
	return -1
}

func hasQueue(p *driver.Part) bool {
	return slices.ContainsFunc(p.Request.Charges(), func(c Charge) bool {
		return slices.ContainsFunc(c.Policy.Limits, func(l quota.Limit) bool { return l.Algorithm.Queues() })
	})
}

// giveBack refunds what was taken, and writes what is used then to whole, if it is not nil.
func (t *Throttler) giveBack(ctx context.Context, all []taken, whole *driver.Decision) (err error) {
	ctx, cancel := outlive(ctx)
	defer cancel()
	for i := len(all) - 1; i >= 0; i-- {
		one := &all[i]
		if len(one.d.Charges()) == 0 {
			continue // it was allowed without counts
		}
		start := time.Now()
		charges := one.d.Charges()
		after, failed := t.backend.Settle(ctx, driver.Settlement{Now: t.now(), Charged: one.d, Costs: make([]int64, len(charges))})
		if failed != nil {
			err = errors.Join(err, failed)
			if t.observer != nil {
				t.observe(ctx, observe.OpSettle, charges, start, new(Decision), failed)
			}
		} else if whole != nil {
			one.part.CopyTo(whole, &after)
		}
	}
	return err
}

// look writes to whole, a refusal, what the parts that were not asked have used. A part
// that does not answer makes whole Degraded: the refusal holds without it.
func (t *Throttler) look(ctx context.Context, parts []driver.Part, whole *driver.Decision) {
	for i := range parts {
		if d, err := t.backend.Peek(ctx, parts[i].Request); err == nil {
			parts[i].CopyTo(whole, &d)
		} else {
			whole.Degraded = true
		}
	}
}

// peekParts does what takeParts does, charging nothing.
func (t *Throttler) peekParts(ctx context.Context, r driver.Request) (driver.Decision, error) {
	whole := driver.NewDecision(r)
	whole.Allowed = true
	for _, p := range r.Parts() {
		d, err := t.backend.Peek(ctx, p.Request)
		if err != nil {
			return driver.Decision{}, err
		}
		p.CopyTo(&whole, &d)
		whole.Allowed = whole.Allowed && d.Allowed
	}
	return whole, nil
}

// settleParts settles what was taken of each partition at costs, those of all charges. If
// one fails, the others are settled all the same, and the error leaves open what was charged.
func (t *Throttler) settleParts(ctx context.Context, s driver.Settlement, all []taken) (driver.Decision, error) {
	r := s.Charged.Request
	r.Now = s.Now
	whole := driver.NewDecision(r)
	whole.Allowed = true
	var failed error
	begun := false // one is settled, or may be
	for i := range all {
		one := &all[i]
		if len(one.d.Charges()) == 0 {
			continue
		}
		d, err := t.backend.Settle(ctx, driver.Settlement{Now: s.Now, Charged: one.d, Costs: one.part.Costs(s.Costs)})
		if err != nil {
			failed = errors.Join(failed, err)
			begun = begun || MayHaveCharged(err)
			continue
		}
		begun = true
		one.part.CopyTo(&whole, &d)
	}
	if begun && failed != nil && !MayHaveCharged(failed) { // it says that nothing was sent, but of one partition
		failed = &partlyChargedError{failed, errors.New("other partitions are settled, or may be")}
	}
	if failed != nil {
		return driver.Decision{}, failed
	}
	return whole, nil
}

// partlyChargedError is the error of a decision of which one partition failed without a
// charge, after another was charged and did not give it back.
type partlyChargedError struct{ err, lost error }

func (e *partlyChargedError) Error() string {
	return fmt.Sprintf("%v; another partition remains charged: %v", e.err, e.lost)
}

// Is reports that e is of an unavailable backend, and hides that nothing was sent to one
// partition: see MayHaveCharged.
func (e *partlyChargedError) Is(target error) bool {
	return target == driver.ErrUnavailable || target != driver.ErrNotSent && errors.Is(e.err, target)
}

// As finds what e.err wraps.
func (e *partlyChargedError) As(target any) bool { return errors.As(e.err, target) }
