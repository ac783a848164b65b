package throttler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// This file decides about several partitions that the backend does not join. Each partition is
// asked in the order of the charges, partitions with queues last, unless the backend remembers
// that it refuses one of them. If one refuses or fails, earlier charges are refunded.

// taken is the part of a decision about one partition.
type taken struct {
	part driver.Part
	d    driver.Decision // as the backend returned it
}

// takeParts takes the parts of r. If the decision is allowed, all contains the parts to settle.
func (t *Throttler) takeParts(ctx context.Context, r driver.Request) (whole driver.Decision, all []taken, err error) {
	whole = driver.Unread(r)
	parts, open := r.Parts(), false
	if t.isKnown(ctx, parts, &whole) {
		return whole, nil, nil
	}
	slices.SortStableFunc(parts, func(a, b driver.Part) int { return queues(&a) - queues(&b) })
	for i, p := range parts {
		d, err := t.backend.Take(ctx, p.Request)
		if err != nil {
			lost := t.giveBack(ctx, all, &whole)
			if errors.Is(err, ErrUnavailable) && t.look(ctx, parts[i+1:], &whole) {
				whole.Degraded = true
				return whole, nil, nil // after an error, a caller might serve a key that is used up
			}
			if lost != nil && !driver.MayHaveCharged(err) {
				err = &partlyChargedError{err, lost}
			}
			return driver.Decision{}, nil, err
		}
		p.CopyTo(&whole, &d)
		if !d.Allowed {
			_ = t.giveBack(ctx, all, &whole) // the observer receives it; a refusal is not an error
			t.look(ctx, parts[i+1:], &whole)
			return whole, nil, nil
		}
		all = append(all, taken{p, d})
		open = open || len(d.Charges()) == 0
	}
	if open { // one partition was allowed without counts, so the whole decision has none
		for i := range all {
			t.letGo(ctx, r.Now, all[i].d) // a settlement of this decision does not end its units in flight
		}
		whole = driver.NewDecision(driver.NewRequest(r.Now))
		whole.Degraded = true
	} else {
		copyCosts(&whole, all)
	}
	whole.Allowed = true
	return whole, all, nil
}

// isKnown reports whether the backend remembers that it refuses one of parts. If so, it writes
// the results of all parts to whole, charging nothing.
func (t *Throttler) isKnown(ctx context.Context, parts []driver.Part, whole *driver.Decision) bool {
	var others []driver.Part
	for i := range parts {
		if d, known := driver.Refused(ctx, t.backend, &parts[i].Request); known {
			parts[i].CopyTo(whole, &d)
		} else {
			others = append(others, parts[i])
		}
	}
	if len(others) == len(parts) {
		return false
	}
	t.look(ctx, others, whole)
	return true
}

// queues returns 1 if p has queues, otherwise 0: parts with queues come last. A queue keeps the
// first place of a charge after its start, so such a charge can't be refunded in full.
func queues(p *driver.Part) int {
	for _, c := range p.Request.Charges() {
		if slices.ContainsFunc(c.Policy.Limits, func(l quota.Limit) bool { return l.Algorithm.Queues() }) {
			return 1
		}
	}
	return 0
}

// giveBack refunds all, and writes the results to whole. It returns early if ctx is done: the
// refunds then continue, until settleTime has passed.
func (t *Throttler) giveBack(ctx context.Context, all []taken, whole *driver.Decision) error {
	if len(all) == 0 {
		return nil
	}
	type refund struct {
		part  *driver.Part
		after driver.Decision
		err   error
	}
	refunds := make(chan refund, len(all))
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	go func() {
		defer cancel()
		for i := len(all) - 1; i >= 0; i-- {
			after, err := t.refundPart(detached, &all[i])
			refunds <- refund{&all[i].part, after, err}
		}
	}()
	var err error
	for range all {
		select {
		case r := <-refunds:
			if err = errors.Join(err, r.err); r.err == nil {
				r.part.CopyTo(whole, &r.after)
			}
		case <-ctx.Done():
			whole.Degraded = true
			return errors.Join(err, ctx.Err())
		}
	}
	return err
}

// refundPart refunds the charges of one part. The observer receives a failure.
func (t *Throttler) refundPart(ctx context.Context, one *taken) (driver.Decision, error) {
	charges := one.d.Charges()
	if len(charges) == 0 { // it was allowed without counts
		return one.d, nil
	}
	start := time.Now()
	after, err := t.backend.Settle(ctx, driver.Settlement{Now: t.now(), Charged: one.d, Costs: make([]int64, len(charges))})
	if err != nil && t.observer != nil {
		t.observe(ctx, observe.OpSettle, charges, start, new(Decision), err)
	}
	return after, err
}

// look peeks at parts, writes the results to whole, which is not allowed, and reports whether
// one of them refuses. A part that does not answer makes whole Degraded.
func (t *Throttler) look(ctx context.Context, parts []driver.Part, whole *driver.Decision) (refuses bool) {
	for i := range parts {
		d, err := t.backend.Peek(ctx, parts[i].Request)
		if err != nil {
			whole.Degraded = true
			continue
		}
		parts[i].CopyTo(whole, &d)
		refuses = refuses || !d.Allowed
	}
	return refuses
}

// peekParts peeks at all parts of r. If one fails, and another refuses, the decision is a
// Degraded refusal, as in takeParts.
func (t *Throttler) peekParts(ctx context.Context, r driver.Request) (driver.Decision, error) {
	whole, parts := driver.Unread(r), r.Parts()
	whole.Allowed = true
	var all []taken
	for i, p := range parts {
		d, err := t.backend.Peek(ctx, p.Request)
		if err != nil {
			refuses := t.look(ctx, parts[i+1:], &whole) || !whole.Allowed
			if !refuses || !errors.Is(err, ErrUnavailable) {
				return driver.Decision{}, err
			}
			whole.Allowed, whole.Degraded = false, true
			return whole, nil
		}
		p.CopyTo(&whole, &d)
		all = append(all, taken{p, d})
		whole.Allowed = whole.Allowed && d.Allowed
	}
	if whole.Allowed {
		copyCosts(&whole, all)
	}
	return whole, nil
}

// copyCosts copies the costs of all, its parts, to whole.
func copyCosts(whole *driver.Decision, all []taken) {
	for i := range all {
		all[i].part.CopyCosts(whole, &all[i].d)
	}
}

// settleParts calls settle for each of all, with its share of s.Costs. If one fails, the
// others are still settled. driver.MayHaveCharged reports true for the error if any partition
// is settled, or may be.
func settleParts(s driver.Settlement, all []taken, settle func(*taken, driver.Settlement) (driver.Decision, error)) (driver.Decision, error) {
	r, costs := s.Charged.Request, s.Costs
	r.Now = s.Now
	whole := driver.Unread(r)
	whole.Allowed = true
	var failed error
	begun := false // one is settled, or may be
	for i := range all {
		one := &all[i]
		if len(one.d.Charges()) == 0 { // it was allowed without counts
			continue
		}
		s.Charged, s.Costs = one.d, one.part.Costs(costs)
		d, err := settle(one, s)
		if err != nil {
			failed = errors.Join(failed, err)
			begun = begun || driver.MayHaveCharged(err)
			continue
		}
		begun = true
		one.part.CopyTo(&whole, &d)
		whole.Allowed = whole.Allowed && d.Allowed
	}
	if begun && failed != nil && !driver.MayHaveCharged(failed) { // only the partitions that failed are certainly unchanged
		failed = &partlyChargedError{failed, errors.New("other partitions are settled, or may be")}
	}
	if failed != nil {
		return driver.Decision{}, failed
	}
	return whole, nil
}

// each calls do with r or, if r is not one decision of the backend, with each of its parts.
func (t *Throttler) each(r driver.Request, do func(driver.Request) error) (err error) {
	if driver.Joins(t.backend, &r) {
		return do(r)
	}
	for _, p := range r.Parts() {
		err = errors.Join(err, do(p.Request))
	}
	return err
}

// partlyChargedError is the error of a decision if one partition failed without a charge, but
// another remains charged.
type partlyChargedError struct{ err, lost error }

func (e *partlyChargedError) Error() string {
	return fmt.Sprintf("%v; another partition remains charged: %v", e.err, e.lost)
}

// Is reports that e wraps ErrUnavailable, and hides an ErrNotSent that is about one partition:
// see driver.MayHaveCharged.
func (e *partlyChargedError) Is(target error) bool {
	return target == driver.ErrUnavailable || target != driver.ErrNotSent && errors.Is(e.err, target)
}

// As searches the errors that e.err wraps.
func (e *partlyChargedError) As(target any) bool { return errors.As(e.err, target) }
