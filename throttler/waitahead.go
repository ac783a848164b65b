package throttler

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/exact"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A call of Wait may start later, and units that drain until then make room for it. So its
// charges are taken from a bucket that is larger by these units. That is one request for each
// start; calls that waited for room would compete for it. A window makes no such promise: others
// may charge the next one. But it has room for many calls at once, so one request takes the
// charges of all waiting calls that fit.

// answer is a backend's answer to a call of Wait.
type answer struct {
	Decision
	calls  int           // calls with the same charges that it allows
	room   int           // calls that would fit, if it refuses several
	start  time.Time     // when the charges start or, if they are refused, could start
	next   time.Time     // when to ask again
	ahead  bool          // next is askAhead before a start, not when there is room
	behind time.Time     // earliest start of the charges behind these
	step   time.Duration // from one start behind these to the next
	terms  terms         // in force when it was made
}

// terms are the policies, or the block, in force for charges.
type terms struct {
	charges []Charge
	blocked time.Time // when the block ends, or zero
}

func termsOf(r *driver.Request, decided *decision.Decision) terms {
	if decided != nil {
		return terms{decided.Charges(), decided.RetryAt()}
	}
	return terms{charges: r.Charges()}
}

func (t terms) are(o terms) bool {
	return t.blocked.Equal(o.blocked) && slices.EqualFunc(t.charges, o.charges, func(a, b Charge) bool {
		return a.Key == b.Key && a.Partition == b.Partition && a.Cost == b.Cost && a.Policy.Name == b.Policy.Name && alike(a.Policy, b.Policy)
	})
}

// takeAhead takes charges that may start until ctx ends. If all their limits reset at once, it
// takes them for up to that many calls.
func (t *Throttler) takeAhead(ctx context.Context, charges []Charge, calls int) (a answer, err error) {
	var r driver.Request
	decided, links, err := t.resolve(ctx, &r, charges)
	if err != nil {
		return a, err
	}
	a.calls, a.terms = 1, termsOf(&r, decided)
	if decided != nil {
		a.Decision = Decision{*decided, tookNothing}
		a.start = later(a.RetryAt(), a.At())
		a.next, a.behind = a.start, a.start
		return a, nil
	}
	var d driver.Decision
	var parts []partTake
	backend, split := t.parts(&r)
	if split != nil {
		d, parts, err = t.takeParts(ctx, r, split)
	} else {
		a.calls = min(calls, callsThatFit(r))
		var take driver.Decision
		if take, err = t.backends[backend].Take(ctx, enlarged(r, a.calls, leftOf(ctx))); len(take.Charges()) > 0 {
			d = driver.NewDecision(r) // look changes it, and wrappers may keep the one that they returned
			copy(d.Results(), take.Results())
		}
		d.Allowed, d.Degraded = take.Allowed, take.Degraded
	}
	if err != nil {
		return a, err
	}
	a.look(&d)
	a.Decision = Decision{Decision: decision.FromDriver(d)}
	if d.Allowed {
		a.receipt = newReceipt(backend, parts)
	}
	if links != nil {
		a.link(links)
	}
	switch {
	case d.Allowed:
		ahead := a.start.Add(-askAhead)
		a.next, a.ahead = later(a.behind, ahead), ahead.After(a.behind)
		a.behind = later(a.behind, a.start.Add(a.step))
	case a.calls > 1:
		a.next = a.start
	default:
		a.next = a.RetryAt()
	}
	if again := a.At().Add(lookAgain); !d.Allowed && d.Degraded && a.next.After(again) {
		a.next = again // the outage may be over
	}
	return a, nil
}

// again returns d for another call that it allows, with a receipt for that call.
func (d Decision) again() Decision {
	d.receipt = &receiptState{links: d.receipt.links, backend: d.receipt.backend}
	return d
}

// callsThatFit returns the number of calls about r that one request may be for. It is 1 unless
// all limits reset at once, and at most the number of calls that fit an empty window.
func callsThatFit(r driver.Request) int {
	bound := int64(math.MaxInt32)
	for _, c := range r.Charges() {
		for _, l := range c.Policy.Limits {
			if !l.Algorithm.ResetsAtOnce() {
				return 1
			}
			bound = min(bound, l.Capacity()/c.Cost)
		}
	}
	return int(max(bound, 1))
}

// look sets a's times and room from d. It also sets the StartAt of TokenBuckets in d.
func (a *answer) look(d *driver.Decision) {
	now, charges := d.Request.Now, d.Charges()
	start, room, step, fit := now, now, int64(0), int64(a.calls)
	for i := range charges {
		c, results := &charges[i], d.ResultsOf(i)
		for k := range c.Policy.Limits {
			l, result := &c.Policy.Limits[k], &results[k]
			hidden := int64(0) // units that Used does not include
			if !d.Allowed {
				hidden = c.Cost
			}
			switch {
			case result.RetryAt == driver.NeverFits:
				start = maxInstant
			case l.Algorithm.Drains():
				start = max(start, drained(l, result, hidden))
			default:
				next, retry := result.Next(l), result.RetryAt
				if a.calls > 1 && result.Remaining(l) >= c.Cost { // one of the calls fits
					retry = next
				}
				start, room = max(start, retry), max(room, next)
				if next > 0 {
					fit = 0
				}
			}
			if fit = min(fit, result.Remaining(l)/c.Cost); l.Algorithm.Drains() {
				step = max(step, l.Window.Nanoseconds()/l.Quota)
			}
		}
	}
	a.start, a.behind, a.step = instant(start), instant(room), time.Duration(step)
	if !d.Allowed {
		a.behind = a.start
		if a.calls > 1 {
			a.room = int(fit)
		}
	}
}

// drained returns when l, a limit that drains, has room for hidden units besides those used. If
// hidden is 0, because Used includes the charge, the charge starts then, and drained sets StartAt.
func drained(l *quota.Limit, result *driver.Result, hidden int64) (instant int64) {
	switch {
	case l.Algorithm.Queues():
		return max(result.StartAt, min(hidden, 1)*result.ResetAt)
	case result.Used+hidden <= l.Capacity():
		return 0
	}
	instant = result.ResetAt - drainTime(l, l.Capacity()-hidden)
	if hidden == 0 {
		result.StartAt = instant
	}
	return instant
}

// enlarged returns r for that many calls, with buckets that have room for charges that start
// within ahead, in ms.
func enlarged(r driver.Request, calls int, ahead int64) driver.Request {
	drains := func(l quota.Limit) bool { return l.Algorithm.Drains() }
	charges := slices.Clone(r.Charges())
	for i := range charges {
		c := &charges[i]
		c.Cost *= int64(calls)
		if !slices.ContainsFunc(c.Policy.Limits, drains) {
			continue
		}
		policy := *c.Policy
		policy.Limits = slices.Clone(policy.Limits)
		for k := range policy.Limits {
			l := &policy.Limits[k]
			capacity := l.Capacity()
			if !l.Algorithm.Drains() || c.Cost > capacity { // it never fits
				continue
			}
			if l.Algorithm.Queues() {
				capacity, l.MaxWait = c.Cost, 0
			}
			// A policy is valid only if its burst drains within MaxWindow.
			bound, _ := exact.MulDiv(l.Quota, quota.MaxWindow.Milliseconds(), l.Window.Milliseconds())
			queued, _ := exact.MulDiv(ahead, l.Quota, l.Window.Milliseconds())
			l.Burst = min(capacity+queued, bound)
		}
		c.Policy = &policy
	}
	return r.Replace(charges...)
}

// leftOf returns how many ms ctx lasts, at most MaxWindow.
func leftOf(ctx context.Context) int64 {
	remaining := quota.MaxWindow
	if deadline, ok := ctx.Deadline(); ok {
		remaining = min(max(time.Until(deadline), 0), remaining)
	}
	return remaining.Milliseconds()
}

// drainTime returns how many ms units need to drain from l, rounded down.
func drainTime(l *quota.Limit, units int64) int64 {
	ms, _ := exact.MulDiv(units, l.Window.Milliseconds(), l.Quota)
	return ms
}

func instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
