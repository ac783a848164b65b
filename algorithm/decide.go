package algorithm

import (
	"time"

	"github.com/weir-go/weir/throttler"
)

// The executor: decisions about several charges, by the states of their counts.
// states[i] belongs to charge i. Whoever holds the states holds their lock.

// Look returns the decision about r, and charges nothing. A nil state is a count
// that was never charged.
func Look(r throttler.Request, states []*State) throttler.Decision {
	d := newDecision(r.Now, r.Charges)
	d.Allowed = true
	now := r.Now.UnixMilli()
	var none State
	for i := range r.Charges {
		c, s := &r.Charges[i], states[i]
		if s == nil {
			s = &none
		}
		var buf [throttler.MaxLimits]Result
		results := buf[:len(c.Policy.Limits)]
		d.Allowed = s.Look(c.Policy.Limits, c.Cost, now, results) && d.Allowed
		d.Limits = Statuses(d.Limits, c, results)
	}
	return d
}

// Charge carries out d, an allowed decision that Look returned: it charges the
// states, none of which may be nil, and makes d report them as they are then. It
// is apart from Look so that a store can make room between the two.
func Charge(d *throttler.Decision, states []*State) {
	now := d.At.UnixMilli()
	for i := range d.Charges {
		c := &d.Charges[i]
		var buf [throttler.MaxLimits]Result
		results := buf[:len(c.Policy.Limits)]
		states[i].Charge(c.Policy.Limits, c.Cost, now, results)
		for j, s := 0, StatusesOf(d, i); j < len(s); j++ {
			report(&s[j], &results[j])
		}
	}
}

// Take returns the decision about r and, if it is allowed, charges the states,
// none of which may be nil.
func Take(r throttler.Request, states []*State) throttler.Decision {
	d := Look(r, states)
	if d.Allowed {
		Charge(&d, states)
	}
	return d
}

// Settle carries out s on the states, none of which may be nil.
func Settle(s throttler.Settlement, states []*State) throttler.Decision {
	d := newDecision(s.Now, s.Charged.Charges)
	d.Allowed = true
	now := s.Now.UnixMilli()
	for i := range d.Charges {
		c := &d.Charges[i]
		var marks [throttler.MaxLimits]throttler.Mark
		for j, status := range StatusesOf(&s.Charged, i) {
			marks[j] = status.Mark
		}
		var buf [throttler.MaxLimits]Result
		n := len(c.Policy.Limits)
		results := buf[:n]
		states[i].Settle(c.Policy.Limits, Settlement{s.Charged.At.UnixMilli(), marks[:n], c.Cost, s.Costs[i]}, now, results)
		d.Limits = Statuses(d.Limits, c, results)
	}
	return d
}

// StatusesOf returns what d says of the limits of charge i.
func StatusesOf(d *throttler.Decision, i int) []throttler.Status {
	first := 0
	for _, c := range d.Charges[:i] {
		first += len(c.Policy.Limits)
	}
	return d.Limits[first : first+len(d.Charges[i].Policy.Limits)]
}

func newDecision(now time.Time, charges []throttler.Charge) throttler.Decision {
	limits := 0
	for i := range charges {
		limits += len(charges[i].Policy.Limits)
	}
	return throttler.Decision{At: now, Charges: charges, Limits: make([]throttler.Status, 0, limits)}
}

// Statuses appends what results say of c's limits to statuses. A status is
// refused if its result has a RetryAt.
func Statuses(statuses []throttler.Status, c *throttler.Charge, results []Result) []throttler.Status {
	for i := range results {
		statuses = append(statuses, throttler.Status{Policy: c.Policy, Key: c.Key, Cost: c.Cost, Limit: c.Policy.Limits[i]})
		report(&statuses[len(statuses)-1], &results[i])
	}
	return statuses
}

// report writes to s, a status of a limit, what r says of it.
func report(s *throttler.Status, r *Result) {
	s.Used, s.Remaining, s.ResetAt, s.Mark = r.Used, max(s.Limit.Capacity()-r.Used, 0), instant(r.ResetAt), r.Mark
	switch r.RetryAt {
	case 0:
	case never:
		s.Refused, s.RetryAt = true, throttler.Never
	default:
		s.Refused, s.RetryAt = true, instant(r.RetryAt)
	}
	if r.StartAt != 0 {
		s.StartAt = instant(r.StartAt)
	}
}

func instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
