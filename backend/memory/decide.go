package memorybackend

import (
	"fmt"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/handoff"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// take makes a decision under p, nil if counts do not move, as peek and settle
// do. It reports whether new keys were pooled.
func (st *step) take(r *driver.Request, p *handoff.Placement) (d driver.Decision, pooled bool, err error) {
	if err := st.locate(p); err != nil {
		return driver.Decision{}, false, err
	}
	if pooled = st.admitTake(); pooled {
		s := st.stripes[0]
		s.pooled++
		for _, s := range st.stripes {
			s.hand += uint32(s.looked) // the next new key looks elsewhere
		}
	}
	d = algorithm.Evaluate(*r, st.statesOf())
	if !d.Allowed {
		st.keepRefused(&d)
		return d, pooled, nil
	}
	st.beginAll()
	algorithm.Charge(&d, st.statesOf())
	st.saveCharged(&d)
	return d, pooled, nil
}

func (st *step) peek(r *driver.Request, p *handoff.Placement) (driver.Decision, error) {
	if err := st.locate(p); err != nil {
		return driver.Decision{}, err
	}
	st.admitTake()
	return algorithm.Evaluate(*r, st.statesOf()), nil
}

// settle settles what was charged. What was charged too little is charged even
// if the count was lost or has expired since.
func (st *step) settle(s *driver.Settlement, p *handoff.Placement) (driver.Decision, error) {
	if err := st.locate(p); err != nil {
		return driver.Decision{}, err
	}
	for i := range st.counts {
		c := &st.counts[i]
		switch {
		case s.Charged.ResultsOf(i)[0].Mark.Note&noteShared != 0:
			c.stripe.share(c, &st.at)
			c.isNew = c.isNew && creates(s, i)
		case c.place == nowhere:
			c.isNew = c.arrived || creates(s, i)
		}
	}
	st.admit()
	if s.Once && st.counts[len(st.counts)-1].shared {
		return driver.Decision{}, errNoRoom // with others', the count would not tell
	}
	st.beginAll()
	d := algorithm.Settle(*s, st.statesOf())
	st.saveCharged(&d)
	return d, nil
}

var errNoRoom = fmt.Errorf("there is no room to remember that it is settled, and %w", driver.ErrNotSent)

// reset forgets what the counts have.
func (st *step) reset(p *handoff.Placement) error {
	if err := st.locate(p); err != nil {
		return err
	}
	for i := range st.counts {
		c := &st.counts[i]
		c.isNew = c.place == nowhere && c.arrived
	}
	st.admit()
	st.make()
	for i := range st.counts {
		c := &st.counts[i]
		if c.shared || c.place == nowhere && !c.isNew {
			continue
		}
		c.stripe.begin(c)
		c.stored.State.Reset(st.at.now)
		st.save(c, 0)
	}
	st.trim()
	return nil
}

// creates reports whether s makes charge i have a count, if it has none.
func creates(s *driver.Settlement, i int) bool {
	c := &s.Charged.Charges()[i]
	if s.Renews {
		return c.Policy.Holds()
	}
	return s.Costs[i] > c.Cost && !c.Policy.HoldsOnly() || s.PauseUntil > s.Now
}

// admitTake does what admit does for the counts that a take would create.
func (st *step) admitTake() (pooled bool) {
	for i := range st.counts {
		c := &st.counts[i]
		c.isNew = c.place == nowhere && (c.arrived || c.takes)
	}
	return st.admit()
}

// beginAll gives all charges counts.
func (st *step) beginAll() {
	st.make()
	for i := range st.counts {
		c := &st.counts[i]
		c.stripe.begin(c)
	}
}

// save stores c's count, of which so much is used.
func (st *step) save(c *count, used usedPart) {
	c.stripe.entries.at(c.place).used = used
	c.stripe.save(c, &st.at)
}

// saveCharged stores counts that d has charged or settled.
func (st *step) saveCharged(d *driver.Decision) {
	for i := range st.counts {
		c := &st.counts[i]
		results := d.ResultsOf(i)
		if c.place != nowhere {
			st.save(c, partUsed(c.policy, results))
		}
		if c.shared {
			for j := range results {
				results[j].Mark.Note = noteShared
			}
		}
	}
	st.trim()
}

// usedPart is a part of a quota, in units of 1/allUsed.
type usedPart uint16

const allUsed = 1<<16 - 1

// partUsed returns the largest used / capacity, allUsed if a limit has no more room.
func partUsed(p *quota.Policy, results []driver.Result) usedPart {
	var part usedPart
	for i := range results {
		used, capacity := results[i].Used, p.Limits[i].Capacity()
		if used >= capacity {
			return allUsed
		}
		part = max(part, usedPart(float64(used)/float64(capacity)*allUsed))
	}
	return part
}

// keepRefused notes which counts refused d, a take: a flood of keys must not free
// a client that is refused, though a cheaper charge might still fit. It stores
// counts that arrived.
func (st *step) keepRefused(d *driver.Decision) {
	arrived := false
	for i := range st.counts {
		c := &st.counts[i]
		arrived = arrived || c.arrived
		c.isNew = c.isNew && c.arrived && !c.shared
	}
	if arrived {
		st.make()
	}
	for i := range st.counts {
		c := &st.counts[i]
		results := d.ResultsOf(i)
		if c.arrived && !c.shared {
			c.stripe.begin(c)
			st.save(c, partUsed(c.policy, results))
		}
		for j := range results {
			if c.place != nowhere && results[j].RetryAt > 0 {
				c.stripe.entries.at(c.place).used = allUsed
			}
		}
	}
	if arrived {
		st.trim()
	}
}
