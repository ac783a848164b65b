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
// asked in the order of the charges, those with queues after the others, unless the backend
// remembers that it refuses one of them. What was taken is given back if a later one refuses
// or fails.

// taken is what a decision took of one partition.
type taken struct {
	part driver.Part
	d    driver.Decision // as the backend returned it
}

// takeParts takes the parts of r. It returns what to settle if the decision is allowed.
func (t *Throttler) takeParts(ctx context.Context, r driver.Request) (whole driver.Decision, all []taken, err error) {
	whole = unread(r)
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
				return whole, nil, nil // or one that is used up would be served while another one is away
			}
			if lost != nil && !driver.MayHaveCharged(err) {
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
		for i := range all {
			t.letGo(ctx, r.Now, all[i].d) // what is in flight, which the end of this decision does not end
		}
		whole = driver.NewDecision(driver.NewRequest(r.Now))
		whole.Degraded = true
	} else {
		copyCosts(&whole, all)
	}
	whole.Allowed = true
	return whole, all, nil
}

// isKnown reports whether one of parts is refused for all that the backend knows without
// asking, and writes to whole what all have used then. None is charged.
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

// queues returns 1 if p has queues, and else 0: parts with queues come after the others. A queue
// keeps the first place of a charge whose start has come, so all of it cannot be given back.
func queues(p *driver.Part) int {
	for _, c := range p.Request.Charges() {
		if slices.ContainsFunc(c.Policy.Limits, func(l quota.Limit) bool { return l.Algorithm.Queues() }) {
			return 1
		}
	}
	return 0
}

// giveBack refunds what was taken, and writes what is used then to whole. It returns when ctx
// is done; what is on its way then has settleTime.
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

// refundPart refunds what was taken of one partition. The observer receives a failure.
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

// look writes to whole, which is not allowed, what the parts that were not asked have used,
// and reports whether one of them refuses. A part that does not answer makes whole Degraded.
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

// unread returns the decision about r before anything is known: no limit has a window.
func unread(r driver.Request) driver.Decision {
	d := driver.NewDecision(r)
	for i := range d.Results() {
		d.Results()[i].ResetAt = r.Now
	}
	return d
}

// peekParts does what takeParts does, charging nothing.
func (t *Throttler) peekParts(ctx context.Context, r driver.Request) (driver.Decision, error) {
	whole := unread(r)
	whole.Allowed = true
	var all []taken
	for _, p := range r.Parts() {
		d, err := t.backend.Peek(ctx, p.Request)
		if err != nil {
			return driver.Decision{}, err
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

// copyCosts makes whole say what its parts charge.
func copyCosts(whole *driver.Decision, all []taken) {
	for i := range all {
		all[i].part.CopyCosts(whole, &all[i].d)
	}
}

// settleParts settles what was taken of each partition by settle, at costs that are of all
// charges. If one fails, the others are settled all the same, and the error leaves open what
// was charged.
func settleParts(s driver.Settlement, all []taken, settle func(*taken, driver.Settlement) (driver.Decision, error)) (driver.Decision, error) {
	r, costs := s.Charged.Request, s.Costs
	r.Now = s.Now
	whole := unread(r)
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
	if begun && failed != nil && !driver.MayHaveCharged(failed) { // it says that nothing was sent, but of one partition
		failed = &partlyChargedError{failed, errors.New("other partitions are settled, or may be")}
	}
	if failed != nil {
		return driver.Decision{}, failed
	}
	return whole, nil
}

// each calls do with r or, if that is not one decision of the backend, with each of its parts.
func (t *Throttler) each(r driver.Request, do func(driver.Request) error) (err error) {
	if driver.Joins(t.backend, &r) {
		return do(r)
	}
	for _, p := range r.Parts() {
		err = errors.Join(err, do(p.Request))
	}
	return err
}

// partlyChargedError is the error of a decision of which one partition failed without a
// charge, after another was charged and did not give it back.
type partlyChargedError struct{ err, lost error }

func (e *partlyChargedError) Error() string {
	return fmt.Sprintf("%v; another partition remains charged: %v", e.err, e.lost)
}

// Is reports that e is of an unavailable backend, and hides that nothing was sent to one
// partition: see driver.MayHaveCharged.
func (e *partlyChargedError) Is(target error) bool {
	return target == driver.ErrUnavailable || target != driver.ErrNotSent && errors.Is(e.err, target)
}

// As finds what e.err wraps.
func (e *partlyChargedError) As(target any) bool { return errors.As(e.err, target) }
