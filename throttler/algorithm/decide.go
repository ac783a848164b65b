package algorithm

import (
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// The executor makes decisions about several charges from the states of their counts.
// states[i] belongs to charge i. The caller holds any locks that guard the states.

// Evaluate returns the decision about r, and charges nothing. A nil state is the state of a
// count that was never charged.
func Evaluate(r driver.Request, states []*State) driver.Decision {
	d := driver.NewDecision(r)
	var empty State
	charges, results := r.Charges(), d.Results()
	for i := range charges {
		c, s := &charges[i], states[i]
		if s == nil {
			s = &empty
		}
		n := len(c.Policy.Limits)
		s.Evaluate(c.Policy.Limits, c.Mode.Asks(c.Cost), r.Now, results[:n])
		results = results[n:]
	}
	d.Grant()
	return d
}

// Take returns the decision about r and, if it is allowed, charges the states, which must not
// be nil.
func Take(r driver.Request, states []*State) driver.Decision {
	d := Evaluate(r, states)
	if !d.Allowed {
		return d
	}
	charges, results := d.Charges(), d.Results()
	for i := range charges {
		c := &charges[i]
		n := len(c.Policy.Limits)
		states[i].Charge(c.Policy.Limits, c.Cost, d.Request.Now, results[:n])
		if c.Mode == quota.Record {
			for k := range results[:n] {
				results[k].StartAt = 0 // the caller does not wait
			}
		}
		results = results[n:]
	}
	return d
}

// Settle carries out s on the states, which must not be nil.
func Settle(s driver.Settlement, states []*State) driver.Decision {
	if s.Once {
		return settleOnce(s, states)
	}
	r := s.Charged.Request
	takenAt := r.Now
	r.Now = s.Now
	d := driver.NewDecision(r)
	d.Allowed = true
	charges, results := r.Charges(), d.Results()
	for i := range charges {
		c := &charges[i]
		var marks [quota.MaxLimits]driver.Mark
		for j, result := range s.Charged.ResultsOf(i) {
			marks[j] = result.Mark
		}
		n := len(c.Policy.Limits)
		states[i].Pause(s.PauseUntil, s.Now)
		if s.Renews && c.Cost > 0 {
			d.Allowed = states[i].release(c.Policy.Limits, marks[:n], r.Now) && d.Allowed
		} else {
			states[i].Settle(c.Policy.Limits, Settlement{takenAt, marks[:n], c.Cost, s.Costs[i]}, r.Now, results[:n])
		}
		results = results[n:]
	}
	for i := range charges {
		if c := &charges[i]; s.Renews && c.Cost > 0 { // now that it is known whether all are held
			states[i].renew(c.Policy.Limits, d.Allowed && c.Policy.Holds(), r.Now, d.ResultsOf(i))
		}
	}
	return d
}

// settleOnce carries out s if the last of states, the record of its settlement, is not live. Its
// reset time says so: a later settlement names a shorter window.
func settleOnce(s driver.Settlement, states []*State) driver.Decision {
	charges := s.Charged.Charges()
	r := s.Charged.Request
	r.Now = s.Now
	d := driver.NewDecision(r)
	for i := range charges {
		results := d.ResultsOf(i)
		states[i].Evaluate(charges[i].Policy.Limits, 0, r.Now, results)
		for k := range results {
			results[k].RetryAt = 0
		}
	}
	if states[len(states)-1].ResetAt(s.Now) > s.Now {
		return d
	}
	s.Once = false
	return Settle(s, states)
}
