package handoff

import (
	"slices"

	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

// Change is a decision's change of one count.
type Change struct {
	*Stored

	// Changed reports that the count must be stored. If false, the stored value is unchanged.
	Changed bool

	// Life is for how many ms the count is needed from now on, or 0 if its key's expiry stays.
	// The expiry of a stored count changes only when its reset time moves forward: otherwise a
	// process with a stopped clock would keep a window forever.
	Life int64
}

// Decide makes a decision about the stored counts of its charges, nil for a count that is not
// stored, and returns a Change for each, or nil after a peek. It is for stores that keep bytes
// and let clients decide. clock is the store's, in ms. If a count is elsewhere, it fails with
// an *ElsewhereError. Calling it again, with the counts stored then, is a new decision.
type Decide func(stored []*Stored, clock int64) (driver.Decision, []Change, error)

// Take returns the take r under p, which is nil if counts do not move.
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
			return (d.Allowed || s.Renews) && (s.Creates(i) || c.before[i].found && !s.Renews)
		})
	})
}

// Reset returns the reset of the counts of r's charges under p. An unreadable value becomes an
// empty count. What it counted is unknown, so refunds of earlier charges do nothing for as long
// as any charge counts.
func Reset(r driver.Request, p *Placement) Decide {
	reset := decide(p, r.Now, func(c *counts) (driver.Decision, []Change) {
		found := make([]bool, len(c.states))
		for i, s := range c.states {
			found[i] = s.Reset(r.Now)
		}
		return driver.Decision{}, c.changes(func(i int) bool { return found[i] })
	})
	return func(stored []*Stored, clock int64) (driver.Decision, []Change, error) {
		readable := slices.Clone(stored)
		for i, s := range stored {
			if s != nil && s.Err != nil {
				readable[i] = new(Stored)
				for _, l := range r.Charges()[i].Policy.Limits { // a pause lives for as long
					readable[i].State.Pause(r.Now+algorithm.Lifetime(l).Milliseconds(), r.Now)
				}
			}
		}
		d, changes, err := reset(readable, clock)
		for i := range changes {
			if readable[i] != stored[i] {
				changes[i].Life = changes[i].State.Life(r.Now) // nothing is known of the value's expiry
			}
		}
		return d, changes, err
	}
}

// ReleaseAll applies r to the stored counts of its charges, nil for a count that is not
// stored. An expired count without a claim is treated as nil. It returns the outcome and the
// Change of each count. clock is the store's, in ms.
func ReleaseAll(r *ReleaseRequest, stored []*Stored, clock int64) ([]Released, []Change, error) {
	releases, changes := make([]Released, len(stored)), make([]Change, len(stored))
	for i := range stored {
		if stored[i] != nil && stored[i].Err != nil {
			return nil, nil, stored[i].Err
		}
		released, remainder := release(r, stored[i], clock)
		releases[i] = released
		if remainder != nil {
			changes[i] = Change{remainder, true, remainder.Claim.ExpiresAt - clock}
		}
	}
	return releases, changes, nil
}

// counts are the counts of a decision's charges.
type counts struct {
	now, clock int64
	found      []Found
	states     []*algorithm.State
	before     []before
}

// before describes a count before the decision.
type before struct {
	life    int64 // ms
	resetAt int64
	found   bool
}

// decide returns the Decide at now that calls count with counts that are here, or arrive under p.
func decide(p *Placement, now int64, count func(c *counts) (driver.Decision, []Change)) Decide {
	return func(stored []*Stored, clock int64) (d driver.Decision, changes []Change, err error) {
		c := &counts{now: now, clock: clock}
		if c.found, err = FindAll(stored, p, now, clock); err != nil {
			return d, nil, err
		}
		for i, f := range c.found {
			c.states = append(c.states, &f.State)
			c.before = append(c.before, before{f.Life(now, clock), f.State.ResetAt(now), stored[i] != nil})
		}
		d, changes = count(c)
		return d, changes, nil
	}
}

// changes returns the Changes of the decision. changed reports whether the decision changed
// count i; a count that arrived is stored in any case.
func (c *counts) changes(changed func(i int) bool) []Change {
	changes := make([]Change, len(c.found))
	for i := range c.found {
		f, previous := &c.found[i], c.before[i]
		changes[i] = Change{Stored: f.Stored, Changed: f.Arrived || changed(i)}
		life := f.Life(c.now, c.clock)
		// The life of a count that a skewed clock wrote is bounded: a charge does not extend it.
		if !previous.found || f.Arrived || life > previous.life || f.State.ResetAt(c.now) > previous.resetAt {
			changes[i].Life = max(life, 1)
		}
	}
	return changes
}
