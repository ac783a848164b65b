package throttler

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// This file decides about requests that are several decisions of backends: charges of several
// partitions that the backend does not join, or charges that a driver.Router routes to several
// backends. Each part is asked in the order of the backends and of the charges, parts with
// queues last, unless a backend remembers that it refuses one of them. If one refuses or
// fails, earlier charges are refunded.

// part is some of a request's charges, which are one decision of a backend.
type part struct {
	driver.Part
	on int // index of the backend in Throttler.backends
}

// parts returns the parts of r in the order in which a take asks them. If r is one decision of
// one backend, parts returns none, and the index of that backend.
func (t *Throttler) parts(r *driver.Request) (on int, parts []part) {
	if t.router == nil && driver.Joins(t.backends[0], r) {
		return 0, nil
	}
	charges := r.Charges()
	var routes [quota.MaxCharges]uint8
	together := uint8(0)
	for i := range charges {
		routes[i] = 1
		if t.router != nil {
			routes[i] = t.router.Route(charges[i].Policy, r.Now)
		}
		together |= routes[i]
	}
	if on = bits.TrailingZeros8(together); together == 1<<on && driver.Joins(t.backends[on], r) {
		return on, nil
	}
	for k, b := range slices.Backward(t.backends) {
		var places []int
		for i := range charges {
			if routes[i]&(1<<k) != 0 {
				places = append(places, i)
			}
		}
		if len(places) > 0 {
			parts = append(parts, partsOf(b, k, r.Part(places))...)
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int { return queues(&a) - queues(&b) })
	return 0, parts
}

// partsOf returns p, if b decides about it at once, or its parts.
func partsOf(b driver.Backend, on int, p driver.Part) (parts []part) {
	if driver.Joins(b, &p.Request) {
		return []part{{p, on}}
	}
	for _, own := range p.Request.Parts() {
		for k, place := range own.Places {
			own.Places[k] = p.Places[place]
		}
		parts = append(parts, part{own, on})
	}
	return parts
}

// queues returns 1 if p has queues, otherwise 0: parts with queues come last. A queue keeps the
// first place of a charge after its start, so such a charge can't be refunded in full.
func queues(p *part) int {
	for _, c := range p.Request.Charges() {
		if slices.ContainsFunc(c.Policy.Limits, func(l quota.Limit) bool { return l.Algorithm.Queues() }) {
			return 1
		}
	}
	return 0
}

// taken is a part that was taken.
type taken struct {
	part  part
	d     driver.Decision // as the backend returned it
	later bool            // its backend decides about it only since then: see Throttler.later
}

// answers contains the decisions about the parts of a request.
type answers struct {
	parts    []part
	of       []*driver.Decision // nil: no answer
	degraded bool
}

func newAnswers(parts []part) *answers {
	return &answers{parts: parts, of: make([]*driver.Decision, len(parts))}
}

// whole returns the decision about r, which is allowed as all parts are. The results of a limit
// that several backends count are the stricter values. An allowed charge has the lowest cost of
// its parts.
func (a *answers) whole(r driver.Request, allowed bool) driver.Decision {
	whole := driver.Unread(r)
	whole.Allowed, whole.Degraded = allowed, a.degraded
	var read [quota.MaxCharges]bool
	for i, d := range a.of {
		if d == nil {
			continue
		}
		whole.Degraded = whole.Degraded || d.Degraded
		for k, c := range d.Charges() {
			place := a.parts[i].Places[k]
			results := whole.ResultsOf(place)
			for l, result := range d.ResultsOf(k) {
				if read[place] {
					result = stricter(&results[l], &result)
				}
				results[l] = result
			}
			if allowed && (!read[place] || c.Cost < whole.Charges()[place].Cost) {
				whole.SetCost(place, c.Cost)
			}
			read[place] = true
		}
	}
	return whole
}

// stricter merges the results of two backends for the same limit: each value is the stricter
// one. The mark belongs to neither.
func stricter(a, b *driver.Result) driver.Result {
	m := driver.Result{Used: max(a.Used, b.Used), ResetAt: max(a.ResetAt, b.ResetAt), NextAt: max(a.NextAt, b.NextAt), RetryAt: max(a.RetryAt, b.RetryAt), StartAt: max(a.StartAt, b.StartAt)}
	if a.RetryAt == driver.NeverFits || b.RetryAt == driver.NeverFits {
		m.RetryAt = driver.NeverFits
	}
	return m
}

// takeParts takes the parts of r. If the decision is allowed, all contains the parts to settle.
func (t *Throttler) takeParts(ctx context.Context, r driver.Request, parts []part) (whole driver.Decision, all []taken, err error) {
	a, open := newAnswers(parts), false
	if t.isKnown(ctx, a) {
		return a.whole(r, false), nil, nil
	}
	for i := range parts {
		p := &parts[i]
		p.Request = atMost(p, all)
		d, err := t.backends[p.on].Take(ctx, p.Request)
		if err != nil {
			lost := t.giveBack(ctx, all, a)
			if errors.Is(err, ErrUnavailable) && t.look(ctx, a, i+1) {
				a.degraded = true
				return a.whole(r, false), nil, nil // after an error, a caller might serve a key that is used up
			}
			if lost != nil && !driver.MayHaveCharged(err) {
				err = &partlyChargedError{err, lost}
			}
			return driver.Decision{}, nil, err
		}
		a.of[i] = &d
		if !d.Allowed {
			_ = t.giveBack(ctx, all, a) // the observer receives it; a refusal is not an error
			t.look(ctx, a, i+1)
			return a.whole(r, false), nil, nil
		}
		all = append(all, taken{part: *p, d: d})
		open = open || len(d.Charges()) == 0
	}
	if open { // one part was allowed without counts, so the whole decision has none
		for i := range all {
			t.letGo(ctx, r.Now, all[i].d) // a settlement of this decision does not end its units in flight
		}
		whole = driver.NewDecision(driver.NewRequest(r.Now))
		whole.Allowed, whole.Degraded = true, true
		return whole, all, nil
	}
	whole = a.whole(r, true)
	if t.router != nil {
		t.even(ctx, &whole, all)
	}
	return whole, all, nil
}

// atMost returns p's request. Charges in mode AtMost ask for no more than all, which were taken
// before, have charged for them.
func atMost(p *part, all []taken) driver.Request {
	d := driver.NewDecision(p.Request)
	for k, place := range p.Places {
		for i := range all {
			if j := slices.Index(all[i].part.Places, place); j >= 0 && d.Charges()[k].Mode == quota.AtMost && len(all[i].d.Charges()) > 0 {
				d.SetCost(k, min(d.Charges()[k].Cost, all[i].d.Charges()[j].Cost))
			}
		}
	}
	return d.Request
}

// even makes the backends of a charge that several have charged alike: it gives back what a
// part was charged beyond the cost in whole, and tells the router.
func (t *Throttler) even(ctx context.Context, whole *driver.Decision, all []taken) {
	results := make([][][]driver.Result, len(whole.Charges()))
	for i := range all {
		one := &all[i]
		costs := one.part.Costs(costsOf(whole.Charges()))
		if !costsAs(one.d.Charges(), costs) {
			after, err := t.backends[one.part.on].Settle(context.WithoutCancel(ctx), t.settlement(one.d, costs))
			if err != nil {
				continue // its settlement corrects it
			}
			for k, cost := range costs {
				one.d.SetCost(k, cost)
			}
			for k, result := range after.Results() {
				result.Mark = one.d.Results()[k].Mark
				one.d.Results()[k] = result
			}
		}
		for k, place := range one.part.Places {
			if results[place] == nil {
				results[place] = make([][]driver.Result, len(t.backends))
			}
			results[place][one.part.on] = one.d.ResultsOf(k)
		}
	}
	for i, c := range whole.Charges() {
		several := slices.IndexFunc(results[i], func(r []driver.Result) bool { return r != nil })
		if !whole.Degraded && slices.ContainsFunc(results[i][several+1:], func(r []driver.Result) bool { return r != nil }) {
			t.router.Taken(ctx, whole.Request.Replace(c), results[i])
		}
	}
}

// isKnown reports whether a backend remembers that it refuses one of the parts. If so, it looks
// at the others, charging nothing.
func (t *Throttler) isKnown(ctx context.Context, a *answers) bool {
	refused := false
	for i := range a.parts {
		if d, known := driver.Refused(ctx, t.backends[a.parts[i].on], &a.parts[i].Request); known {
			a.of[i], refused = &d, true
		}
	}
	if refused {
		t.look(ctx, a, 0)
	}
	return refused
}

// giveBack refunds all, the first parts of a, and replaces their answers. It returns early if ctx
// is done, or after the server's time: the refunds then continue, until settleTime has passed.
func (t *Throttler) giveBack(ctx context.Context, all []taken, a *answers) error {
	if len(all) == 0 {
		return nil
	}
	type refund struct {
		part  int
		after driver.Decision
		err   error
	}
	refunds := make(chan refund, len(all))
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	go func() {
		defer cancel()
		for i := len(all) - 1; i >= 0; i-- {
			after, err := t.refundPart(detached, &all[i])
			refunds <- refund{i, after, err}
		}
	}()
	var late <-chan time.Time
	if t.serverTime > 0 {
		late = time.After(t.serverTime)
	}
	var err error
	for range all {
		select {
		case r := <-refunds:
			if err = errors.Join(err, r.err); r.err == nil {
				a.of[r.part] = &r.after
			}
		case <-late:
			a.degraded = true
			return errors.Join(err, context.DeadlineExceeded)
		case <-ctx.Done():
			a.degraded = true
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
	after, err := t.backends[one.part.on].Settle(ctx, t.settlement(one.d, make([]int64, len(charges))))
	if err != nil && t.observer != nil {
		t.observe(ctx, observe.OpSettle, charges, start, new(Decision), err)
	}
	return after, err
}

// look peeks at the parts without an answer, of those from first on, and reports whether one of
// them refuses. A part that does not answer makes the whole Degraded.
func (t *Throttler) look(ctx context.Context, a *answers, first int) (refuses bool) {
	for i := first; i < len(a.parts); i++ {
		if a.of[i] != nil {
			continue
		}
		d, err := t.backends[a.parts[i].on].Peek(ctx, a.parts[i].Request)
		if err != nil {
			a.degraded = true
			continue
		}
		a.of[i] = &d
		refuses = refuses || !d.Allowed
	}
	return refuses
}

// peekParts peeks at all parts of r. If one fails, and another refuses, the decision is a
// Degraded refusal, as in takeParts.
func (t *Throttler) peekParts(ctx context.Context, r driver.Request, parts []part) (driver.Decision, error) {
	a, allowed := newAnswers(parts), true
	for i := range parts {
		d, err := t.backends[parts[i].on].Peek(ctx, parts[i].Request)
		if err != nil {
			refuses := t.look(ctx, a, i+1) || !allowed
			if !refuses || !errors.Is(err, ErrUnavailable) {
				return driver.Decision{}, err
			}
			a.degraded = true
			return a.whole(r, false), nil
		}
		a.of[i] = &d
		allowed = allowed && d.Allowed
	}
	return a.whole(r, allowed), nil
}

// settleParts calls settle for each of all, the last first, with its share of s.Costs. If one
// fails, the others are still settled; those of other backends only if one part was, or may be.
// driver.MayHaveCharged reports true for the error if any part is settled, or may be.
func settleParts(s driver.Settlement, all []taken, settle func(*taken, driver.Settlement) (driver.Decision, error)) (driver.Decision, error) {
	r, charged, costs := s.Charged.Request, costsOf(s.Charged.Charges()), s.Costs
	r.Now = s.Now
	a := newAnswers(make([]part, len(all)))
	allowed := true
	var failed error
	begun := false // one is settled, or may be
	for i := len(all) - 1; i >= 0; i-- {
		one := &all[i]
		if len(one.d.Charges()) == 0 { // it was allowed without counts
			continue
		}
		if failed != nil && !begun && one.part.on != all[i+1].part.on {
			break // the settlement may be made again
		}
		s.Charged, s.Costs = one.d, one.part.Costs(costs)
		if one.later {
			for k, place := range one.part.Places {
				s.Costs[k] -= charged[place]
			}
		}
		d, err := settle(one, s)
		if err != nil {
			failed = errors.Join(failed, err)
			begun = begun || driver.MayHaveCharged(err)
			continue
		}
		begun = true
		a.parts[i], a.of[i] = one.part, &d
		allowed = allowed && d.Allowed
	}
	if begun && failed != nil && !driver.MayHaveCharged(failed) { // only the parts that failed are certainly unchanged
		failed = &partlyChargedError{failed, errors.New("other parts are settled, or may be")}
	}
	if failed != nil {
		return driver.Decision{}, failed
	}
	return a.whole(r, allowed), nil
}

// later returns r's parts, and those for costs of s beyond the charges at backends that have
// decided about these charges only since they were made. It returns r.parts if there are none.
func (t *Throttler) later(s *driver.Settlement, r *receiptState) []taken {
	var more []taken
	for i, c := range s.Charged.Charges() {
		if t.router == nil || s.Costs[i] <= c.Cost {
			continue
		}
		routes := t.router.Route(c.Policy, s.Now)
		for on := range t.backends {
			has := r.parts == nil && r.on == on ||
				slices.ContainsFunc(r.parts, func(one taken) bool { return one.part.on == on && slices.Contains(one.part.Places, i) })
			if routes&(1<<on) == 0 || has {
				continue
			}
			one := taken{part: part{s.Charged.Request.Part([]int{i}), on}, later: true}
			one.d = driver.NewDecision(one.part.Request)
			one.d.Allowed = true
			one.d.SetCost(0, 0)
			more = append(more, one)
		}
	}
	if more == nil {
		return r.parts
	}
	all := r.parts
	if all == nil {
		places := make([]int, len(s.Charged.Charges()))
		for i := range places {
			places[i] = i
		}
		all = []taken{{part: part{s.Charged.Request.Part(places), r.on}, d: s.Charged}}
	}
	all = slices.Concat(all, more)
	slices.SortStableFunc(all, func(a, b taken) int { return b.part.on - a.part.on })
	return all
}

// settlePart settles one part. A backend that decides only since then may not support the limits
// that a charge was made under, and counts nothing under them.
func (t *Throttler) settlePart(ctx context.Context, one *taken, s driver.Settlement) (driver.Decision, error) {
	d, err := t.backends[one.part.on].Settle(ctx, s)
	if one.later && errors.Is(err, quota.ErrInvalid) {
		d = driver.NewDecision(driver.NewRequest(s.Now))
		d.Allowed, err = true, nil
	}
	return d, err
}

// each calls do for each part of r. If the backends differ, an error ends it.
func (t *Throttler) each(r driver.Request, do func(driver.Backend, driver.Request) error) (err error) {
	on, parts := t.parts(&r)
	if parts == nil {
		return do(t.backends[on], r)
	}
	for i := range parts {
		err = errors.Join(err, do(t.backends[parts[i].on], parts[i].Request))
		if err != nil && t.router != nil {
			break
		}
	}
	return err
}

// partlyChargedError is the error of a decision if one part failed without a charge, but another
// remains charged.
type partlyChargedError struct{ err, lost error }

func (e *partlyChargedError) Error() string {
	return fmt.Sprintf("%v; another partition remains charged: %v", e.err, e.lost)
}

// Is reports that e wraps ErrUnavailable, and hides an ErrNotSent that is about one part: see
// driver.MayHaveCharged.
func (e *partlyChargedError) Is(target error) bool {
	return target == driver.ErrUnavailable || target != driver.ErrNotSent && errors.Is(e.err, target)
}

// As searches the errors that e.err wraps.
func (e *partlyChargedError) As(target any) bool { return errors.As(e.err, target) }
