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
	backend int // index of the backend in Throttler.backends
}

// parts returns the parts of r in the order in which a take asks them. If r is one decision of
// one backend, parts returns none, and the index of that backend.
func (t *Throttler) parts(r *driver.Request) (backend int, parts []part) {
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
	if backend = bits.TrailingZeros8(together); together == 1<<backend && driver.Joins(t.backends[backend], r) {
		return backend, nil
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
func partsOf(b driver.Backend, backend int, p driver.Part) (parts []part) {
	if driver.Joins(b, &p.Request) {
		return []part{{p, backend}}
	}
	for _, request := range p.Request.Parts() {
		for k, place := range request.Places {
			request.Places[k] = p.Places[place]
		}
		parts = append(parts, part{request, backend})
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

// partTake is a part that was taken.
type partTake struct {
	part  part
	d     driver.Decision // as the backend returned it
	later bool            // its backend decides about it only since then: see Throttler.later
}

// answers contains the decisions about the parts of a request.
type answers struct {
	parts     []part
	decisions []*driver.Decision // nil: no answer
	degraded  bool
}

func newAnswers(parts []part) *answers {
	return &answers{parts: parts, decisions: make([]*driver.Decision, len(parts))}
}

// merge returns the decision about r, which is allowed as all parts are. The results of a limit
// that several backends count are the stricter values. An allowed charge has the lowest cost of
// its parts.
func (a *answers) merge(r driver.Request, allowed bool) driver.Decision {
	merged := driver.Unread(r)
	merged.Allowed, merged.Degraded = allowed, a.degraded
	var read [quota.MaxCharges]bool
	for i, d := range a.decisions {
		if d == nil {
			continue
		}
		merged.Degraded = merged.Degraded || d.Degraded
		for k, c := range d.Charges() {
			place := a.parts[i].Places[k]
			results := merged.ResultsOf(place)
			for l, result := range d.ResultsOf(k) {
				if read[place] {
					result = stricter(&results[l], &result)
				}
				results[l] = result
			}
			if allowed && (!read[place] || c.Cost < merged.Charges()[place].Cost) {
				merged.SetCost(place, c.Cost)
			}
			read[place] = true
		}
	}
	return merged
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

// takeParts takes the parts of r. If the decision is allowed, takes are the parts to settle.
func (t *Throttler) takeParts(ctx context.Context, r driver.Request, parts []part) (merged driver.Decision, takes []partTake, err error) {
	a, open := newAnswers(parts), false
	if t.isKnown(ctx, a) {
		return a.merge(r, false), nil, nil
	}
	for i := range parts {
		p := &parts[i]
		p.Request = atMost(p, takes)
		d, err := t.backends[p.backend].Take(ctx, p.Request)
		if err != nil {
			lost := t.giveBack(ctx, takes, a)
			if errors.Is(err, ErrUnavailable) && t.look(ctx, a, i+1) {
				a.degraded = true
				return a.merge(r, false), nil, nil // after an error, a caller might serve a key that is used up
			}
			if lost != nil && !driver.MayHaveCharged(err) {
				err = &partlyChargedError{err, lost}
			}
			return driver.Decision{}, nil, err
		}
		a.decisions[i] = &d
		if !d.Allowed {
			_ = t.giveBack(ctx, takes, a) // the observer receives it; a refusal is not an error
			t.look(ctx, a, i+1)
			return a.merge(r, false), nil, nil
		}
		takes = append(takes, partTake{part: *p, d: d})
		open = open || len(d.Charges()) == 0
	}
	if open { // one part was allowed without counts, so the whole decision has none
		for i := range takes {
			t.letGo(ctx, r.Now, takes[i].d) // a settlement of this decision does not end its units in flight
		}
		merged = driver.NewDecision(driver.NewRequest(r.Now))
		merged.Allowed, merged.Degraded = true, true
		return merged, takes, nil
	}
	merged = a.merge(r, true)
	if t.router != nil {
		t.even(ctx, &merged, takes)
	}
	return merged, takes, nil
}

// atMost returns p's request. Charges in mode AtMost ask for no more than takes, which were
// made before, have charged for them.
func atMost(p *part, takes []partTake) driver.Request {
	d := driver.NewDecision(p.Request)
	for k, place := range p.Places {
		for i := range takes {
			if j := slices.Index(takes[i].part.Places, place); j >= 0 && d.Charges()[k].Mode == quota.AtMost && len(takes[i].d.Charges()) > 0 {
				d.SetCost(k, min(d.Charges()[k].Cost, takes[i].d.Charges()[j].Cost))
			}
		}
	}
	return d.Request
}

// even makes the backends of a charge that several have charged alike: it gives back what a
// part was charged beyond the cost in merged, and tells the router.
func (t *Throttler) even(ctx context.Context, merged *driver.Decision, takes []partTake) {
	results := make([][][]driver.Result, len(merged.Charges()))
	for i := range takes {
		take := &takes[i]
		costs := take.part.Costs(costsOf(merged.Charges()))
		if !costsAs(take.d.Charges(), costs) {
			after, err := t.backends[take.part.backend].Settle(context.WithoutCancel(ctx), t.settlement(take.d, costs))
			if err != nil {
				continue // its settlement corrects it
			}
			for k, cost := range costs {
				take.d.SetCost(k, cost)
			}
			for k, result := range after.Results() {
				result.Mark = take.d.Results()[k].Mark
				take.d.Results()[k] = result
			}
		}
		for k, place := range take.part.Places {
			if results[place] == nil {
				results[place] = make([][]driver.Result, len(t.backends))
			}
			results[place][take.part.backend] = take.d.ResultsOf(k)
		}
	}
	for i, c := range merged.Charges() {
		several := slices.IndexFunc(results[i], func(r []driver.Result) bool { return r != nil })
		if !merged.Degraded && slices.ContainsFunc(results[i][several+1:], func(r []driver.Result) bool { return r != nil }) {
			t.router.Taken(ctx, merged.Request.Replace(c), results[i])
		}
	}
}

// isKnown reports whether a backend remembers that it refuses one of the parts. If so, it looks
// at the others, charging nothing.
func (t *Throttler) isKnown(ctx context.Context, a *answers) bool {
	refused := false
	for i := range a.parts {
		if d, ok := driver.Refused(ctx, t.backends[a.parts[i].backend], &a.parts[i].Request); ok {
			a.decisions[i], refused = &d, true
		}
	}
	if refused {
		t.look(ctx, a, 0)
	}
	return refused
}

// giveBack refunds all, the first parts of a, and replaces their answers. It returns early if ctx
// is done, or after the server's time: the refunds then continue, until settleTime has passed.
func (t *Throttler) giveBack(ctx context.Context, takes []partTake, a *answers) error {
	if len(takes) == 0 {
		return nil
	}
	type refund struct {
		part  int
		after driver.Decision
		err   error
	}
	refunds := make(chan refund, len(takes))
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	go func() {
		defer cancel()
		for i := len(takes) - 1; i >= 0; i-- {
			after, err := t.refundPart(detached, &takes[i])
			refunds <- refund{i, after, err}
		}
	}()
	var late <-chan time.Time
	if t.serverTime > 0 {
		late = time.After(t.serverTime)
	}
	var err error
	for range takes {
		select {
		case r := <-refunds:
			if err = errors.Join(err, r.err); r.err == nil {
				a.decisions[r.part] = &r.after
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
func (t *Throttler) refundPart(ctx context.Context, take *partTake) (driver.Decision, error) {
	charges := take.d.Charges()
	if len(charges) == 0 { // it was allowed without counts
		return take.d, nil
	}
	start := time.Now()
	after, err := t.backends[take.part.backend].Settle(ctx, t.settlement(take.d, make([]int64, len(charges))))
	if err != nil && t.observer != nil {
		t.observe(ctx, observe.OpSettle, charges, start, new(Decision), err)
	}
	return after, err
}

// look peeks at the parts without an answer, of those from first on, and reports whether one of
// them refuses. A part that does not answer makes the whole Degraded.
func (t *Throttler) look(ctx context.Context, a *answers, first int) (refuses bool) {
	for i := first; i < len(a.parts); i++ {
		if a.decisions[i] != nil {
			continue
		}
		d, err := t.backends[a.parts[i].backend].Peek(ctx, a.parts[i].Request)
		if err != nil {
			a.degraded = true
			continue
		}
		a.decisions[i] = &d
		refuses = refuses || !d.Allowed
	}
	return refuses
}

// peekParts peeks at all parts of r. If one fails, and another refuses, the decision is a
// Degraded refusal, as in takeParts.
func (t *Throttler) peekParts(ctx context.Context, r driver.Request, parts []part) (driver.Decision, error) {
	a, allowed := newAnswers(parts), true
	for i := range parts {
		d, err := t.backends[parts[i].backend].Peek(ctx, parts[i].Request)
		if err != nil {
			refuses := t.look(ctx, a, i+1) || !allowed
			if !refuses || !errors.Is(err, ErrUnavailable) {
				return driver.Decision{}, err
			}
			a.degraded = true
			return a.merge(r, false), nil
		}
		a.decisions[i] = &d
		allowed = allowed && d.Allowed
	}
	return a.merge(r, allowed), nil
}

// settleParts calls settle for each of takes, the last first, with its share of s.Costs. If one
// fails, the others are still settled; parts of other backends only if one part was, or may be.
// driver.MayHaveCharged reports true for the error if any part is settled, or may be.
func settleParts(s driver.Settlement, takes []partTake, settle func(*partTake, driver.Settlement) (driver.Decision, error)) (driver.Decision, error) {
	r, charged, costs := s.Charged.Request, costsOf(s.Charged.Charges()), s.Costs
	r.Now = s.Now
	a := newAnswers(make([]part, len(takes)))
	allowed := true
	var failed error
	begun := false // one is settled, or may be
	for i := len(takes) - 1; i >= 0; i-- {
		take := &takes[i]
		if len(take.d.Charges()) == 0 { // it was allowed without counts
			continue
		}
		if failed != nil && !begun && take.part.backend != takes[i+1].part.backend {
			break // the settlement may be made again
		}
		s.Charged, s.Costs = take.d, take.part.Costs(costs)
		if take.later {
			for k, place := range take.part.Places {
				s.Costs[k] -= charged[place]
			}
		}
		d, err := settle(take, s)
		if err != nil {
			failed = errors.Join(failed, err)
			begun = begun || driver.MayHaveCharged(err)
			continue
		}
		begun = true
		a.parts[i], a.decisions[i] = take.part, &d
		allowed = allowed && d.Allowed
	}
	if begun && failed != nil && !driver.MayHaveCharged(failed) { // only the parts that failed are certainly unchanged
		failed = &partlyChargedError{failed, errors.New("other parts are settled, or may be")}
	}
	if failed != nil {
		return driver.Decision{}, failed
	}
	return a.merge(r, allowed), nil
}

// later returns r's parts, and those for costs of s beyond the charges at backends that have
// decided about these charges only since they were made. It returns the parts if there are none.
func (t *Throttler) later(s *driver.Settlement, r *receiptState) []partTake {
	var added []partTake
	parts := r.extras().parts
	for i, c := range s.Charged.Charges() {
		if t.router == nil || s.Costs[i] <= c.Cost {
			continue
		}
		routes := t.router.Route(c.Policy, s.Now)
		for index := range t.backends {
			charged := parts == nil && int(r.backend) == index ||
				slices.ContainsFunc(parts, func(take partTake) bool { return take.part.backend == index && slices.Contains(take.part.Places, i) })
			if routes&(1<<index) == 0 || charged {
				continue
			}
			take := partTake{part: part{s.Charged.Request.Part([]int{i}), index}, later: true}
			take.d = driver.NewDecision(take.part.Request)
			take.d.Allowed = true
			take.d.SetCost(0, 0)
			added = append(added, take)
		}
	}
	if added == nil {
		return parts
	}
	takes := parts
	if takes == nil {
		places := make([]int, len(s.Charged.Charges()))
		for i := range places {
			places[i] = i
		}
		takes = []partTake{{part: part{s.Charged.Request.Part(places), int(r.backend)}, d: s.Charged}}
	}
	takes = slices.Concat(takes, added)
	slices.SortStableFunc(takes, func(a, b partTake) int { return b.part.backend - a.part.backend })
	return takes
}

// settlePart settles one part. A backend that decides only since then may not support the limits
// that a charge was made under, and counts nothing under them.
func (t *Throttler) settlePart(ctx context.Context, take *partTake, s driver.Settlement) (driver.Decision, error) {
	d, err := t.backends[take.part.backend].Settle(ctx, s)
	if take.later && errors.Is(err, quota.ErrInvalid) {
		d = driver.NewDecision(driver.NewRequest(s.Now))
		d.Allowed, err = true, nil
	}
	return d, err
}

// forEach calls do for each part of r. If the backends differ, an error ends it.
func (t *Throttler) forEach(r driver.Request, do func(driver.Backend, driver.Request) error) (err error) {
	backend, parts := t.parts(&r)
	if parts == nil {
		return do(t.backends[backend], r)
	}
	for i := range parts {
		err = errors.Join(err, do(t.backends[parts[i].backend], parts[i].Request))
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
