package throttler

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/exact"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// A charge that is waited for may start later, so what drains until then makes room for it:
// it is taken of a bucket that is larger by that. That is one call for each start, where
// calls that wait for room would compete for it. Counts of windows have no such promise: a
// window that is to come may be charged by others. But one has room for many calls at once,
// so what it has is taken for all that wait.

// answer is what a backend answers a call of Wait.
type answer struct {
	Decision
	calls  int           // of the same charges, that it allows
	room   int           // if it refuses so many calls, how many fit
	start  time.Time     // when the charges start or, if they are refused, can at the earliest
	next   time.Time     // when to ask again
	ahead  bool          // then is askAhead before a start, and not when there is room
	behind time.Time     // when charges behind these can start, at the earliest
	step   time.Duration // by how much those behind start later, each
	under  terms         // by which it was made
}

// terms are what is in force for charges.
type terms struct {
	charges []Charge
	blocked time.Time // until when they are, or zero
}

func termsOf(r *driver.Request, made *decision.Decision) terms {
	if made != nil {
		return terms{made.Charges(), made.RetryAt()}
	}
	return terms{charges: r.Charges()}
}

func (t terms) are(o terms) bool {
	return t.blocked.Equal(o.blocked) && slices.EqualFunc(t.charges, o.charges, func(a, b Charge) bool {
		return a.Key == b.Key && a.Partition == b.Partition && a.Cost == b.Cost && a.Policy.Name == b.Policy.Name && alike(a.Policy, b.Policy)
	})
}

// takeAhead takes charges that may start until ctx ends, for so many calls if they count in
// windows alone.
func (t *Throttler) takeAhead(ctx context.Context, charges []Charge, calls int) (a answer, err error) {
	var r driver.Request
	made, links, err := t.resolve(ctx, &r, charges)
	if err != nil {
		return a, err
	}
	a.calls, a.under = 1, termsOf(&r, made)
	if made != nil {
		a.Decision = Decision{*made, tookNothing}
		a.start = later(a.RetryAt(), a.At())
		a.next, a.behind = a.start, a.start
		return a, nil
	}
	var d driver.Decision
	var parts []taken
	if !driver.Joins(t.backend, &r) {
		d, parts, err = t.takeParts(ctx, r)
	} else {
		a.calls = min(calls, callsThatFit(r))
		if d, err = t.backend.Take(ctx, enlarged(r, a.calls, leftOf(ctx))); len(d.Charges()) > 0 {
			d = d.About(r)
		}
	}
	if err != nil {
		return a, err
	}
	a.look(&d)
	a.Decision = Decision{Decision: decision.FromDriver(d)}
	if d.Allowed {
		a.receipt = &receipt{parts: parts}
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

// again returns d for another call that it allows, too.
func (d Decision) again() Decision {
	d.receipt = &receipt{links: d.receipt.links}
	return d
}

// callsThatFit returns how many calls about r one request may be for: more than one if all
// limits have room for them at once, or for none.
func callsThatFit(r driver.Request) int {
	most := int64(math.MaxInt32)
	for _, c := range r.Charges() {
		for _, l := range c.Policy.Limits {
			if !l.Algorithm.ResetsAtOnce() {
				return 1
			}
			most = min(most, l.Capacity()/c.Cost)
		}
	}
	return int(max(most, 1))
}

// look reads d, and has drained add to it when a TokenBucket has what was taken of it.
func (a *answer) look(d *driver.Decision) {
	now, charges := d.Request.Now, d.Charges()
	start, room, step, fit := now, now, int64(0), int64(a.calls)
	for i := range charges {
		c, results := &charges[i], d.ResultsOf(i)
		for k := range c.Policy.Limits {
			l, result := &c.Policy.Limits[k], &results[k]
			more := int64(0) // that is not in what is used
			if !d.Allowed {
				more = c.Cost
			}
			switch {
			case result.RetryAt == driver.NeverFits:
				start = maxInstant
			case l.Algorithm.Drains():
				start = max(start, drained(l, result, more))
			default:
				next, at := result.Next(l), result.RetryAt
				if a.calls > 1 && result.Remaining(l) >= c.Cost { // one of the calls fits
					at = next
				}
				start, room = max(start, at), max(room, next)
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

// drained returns when l, which drains, has what is used of it and so many units more. If
// nothing is more, because the charge is used already, that is the result's StartAt.
func drained(l *quota.Limit, result *driver.Result, more int64) (at int64) {
	switch {
	case l.Algorithm.Queues():
		return max(result.StartAt, min(more, 1)*result.ResetAt)
	case result.Used+more <= l.Capacity():
		return 0
	}
	at = result.ResetAt - drainTime(l, l.Capacity()-more)
	if more == 0 {
		result.StartAt = at
	}
	return at
}

// enlarged returns r for so many calls, with buckets that have room for what starts within
// ahead, in ms.
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
			if !l.Algorithm.Drains() || c.Cost > capacity { // which never fits
				continue
			}
			if l.Algorithm.Queues() {
				capacity, l.MaxWait = c.Cost, 0
			}
			// What a limit may say is bounded, also by the time that a burst needs to drain.
			most, _ := exact.MulDiv(l.Quota, quota.MaxWindow.Milliseconds(), l.Window.Milliseconds())
			more, _ := exact.MulDiv(ahead, l.Quota, l.Window.Milliseconds())
			l.Burst = min(capacity+more, most)
		}
		c.Policy = &policy
	}
	return driver.NewRequest(r.Now, charges...)
}

// leftOf returns for how many ms ctx lasts, at most MaxWindow.
func leftOf(ctx context.Context) int64 {
	left := quota.MaxWindow
	if deadline, ok := ctx.Deadline(); ok {
		left = min(max(time.Until(deadline), 0), left)
	}
	return left.Milliseconds()
}

// drainTime returns how many ms of l so many units drain in, rounded down.
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
