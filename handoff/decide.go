package handoff

import (
	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

// Change is what a decision makes of one count.
type Change struct {
	*Stored

	// Changed reports that the count is to be stored. If false, the decision has
	// left what was stored as it is.
	Changed bool

	// Life is for how many ms it is needed from now on; 0 if its key's expiry stays, as
	// it does unless a reset time moved forward: renewed by a process whose clock has
	// stopped, it would keep a window forever.
	Life int64
}

// Decide makes a decision about the counts that are stored of its charges, nil where there
// is none, and returns what it makes of each: what a store does that keeps bytes, and
// leaves decisions to its clients. clock is the store's, in ms. A count that is elsewhere
// is an *ElsewhereError. To make it again, with what is stored then, is a new decision.
type Decide func(stored []*Stored, clock int64) (driver.Decision, []Change, error)

// Take returns the take r under p, nil if counts do not move.
func Take(r driver.Request, p *Placement) Decide {
	return decide(p, r.Now, func(c *counts) (driver.Decision, []Change) {
		d := algorithm.Take(r, c.states)
		charges := d.Charges()
		return d, c.changes(func(i int) bool { return d.Allowed && charges[i].Cost > 0 })
	})
}

// Peek returns the peek r under p, which changes nothing.
func Peek(r driver.Request, p *Placement) Decide {
	return decide(p, r.Now, func(c *counts) (driver.Decision, []Change) { return algorithm.Evaluate(r, c.states), nil })
}

// Settle returns the settlement s under p.
func Settle(s driver.Settlement, p *Placement) Decide {
	return decide(p, s.Now, func(c *counts) (driver.Decision, []Change) {
		d := algorithm.Settle(s, c.states)
		return d, c.changes(func(i int) bool {
			return (d.Allowed || s.Renews) && (s.Creates(i) || c.was[i].found && !s.Renews)
		})
	})
}

// Reset returns the reset of the counts of r's charges under p.
func Reset(r driver.Request, p *Placement) Decide {
	return decide(p, r.Now, func(c *counts) (driver.Decision, []Change) {
		found := make([]bool, len(c.states))
		for i, s := range c.states {
			found[i] = s.Reset(r.Now)
		}
		return driver.Decision{}, c.changes(func(i int) bool { return found[i] })
	})
}

// ReleaseAll applies r to what is stored of the counts of its charges, nil where there is
// none: an expired count without a claim is none. It returns the outcomes, and what becomes of
// each count. clock is the store's, in ms.
func ReleaseAll(r *ReleaseRequest, stored []*Stored, clock int64) ([]Released, []Change) {
	all, changes := make([]Released, len(stored)), make([]Change, len(stored))
	for i := range stored {
		released, left := release(r, stored[i], clock)
		all[i] = released
		if left != nil {
			changes[i] = Change{left, true, left.Claim.ExpiresAt - clock}
		}
	}
	return all, changes
}

// counts are the counts of a decision's charges.
type counts struct {
	now, clock int64
	found      []Found
	states     []*algorithm.State
	was        []before
}

// before is what a count was before the decision.
type before struct {
	life    int64 // ms
	resetAt int64
	found   bool
}

// decide returns the Decide at now that has what of says about counts that are here, or arrive
// under p.
func decide(p *Placement, now int64, of func(c *counts) (driver.Decision, []Change)) Decide {
	return func(stored []*Stored, clock int64) (d driver.Decision, changes []Change, err error) {
		c := &counts{now: now, clock: clock}
		if c.found, err = FindAll(stored, p, now, clock); err != nil {
			return d, nil, err
		}
		for i, f := range c.found {
			c.states = append(c.states, &f.State)
			c.was = append(c.was, before{f.Life(now, clock), f.State.ResetAt(now), stored[i] != nil})
		}
		d, changes = of(c)
		return d, changes, nil
	}
}

// changes returns the counts after the decision; changed reports whether it changed one
// that has not arrived.
func (c *counts) changes(changed func(i int) bool) []Change {
	all := make([]Change, len(c.found))
	for i := range c.found {
		f, was := &c.found[i], c.was[i]
		all[i] = Change{Stored: f.Stored, Changed: f.Arrived || changed(i)}
		life := f.Life(c.now, c.clock)
		// Of a count that a skewed clock wrote, life is bounded and does not grow by a charge.
		if !was.found || f.Arrived || life > was.life || f.State.ResetAt(c.now) > was.resetAt {
			all[i].Life = max(life, 1)
		}
	}
	return all
}
