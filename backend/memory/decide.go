package memorybackend

import (
	"fmt"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// take, peek and settle decide under p, which is nil if counts do not move. take reports
// whether new keys were pooled.
func (st *step) take(r *driver.Request, p *handoff.Placement) (d driver.Decision, pooled bool, err error) {
	if err := st.locate(p); err != nil {
		return driver.Decision{}, false, err
	}
	if pooled = st.admitTake(); pooled {
		s := st.stripes[0]
		s.pooledTakes++
		for _, s := range st.stripes {
			s.hand += uint32(s.looked) // the next new key looks elsewhere
		}
	}
	d = algorithm.Take(*r, st.statesOf())
	st.keep(&d, d.Allowed)
	return d, pooled, nil
}

func (st *step) peek(r *driver.Request, p *handoff.Placement) (driver.Decision, error) {
	if err := st.locate(p); err != nil {
		return driver.Decision{}, err
	}
	st.admitTake()
	return algorithm.Evaluate(*r, st.statesOf()), nil
}

// admitTake is admit for the counts that a take would create.
func (st *step) admitTake() (pooled bool) {
	for i := range st.counts {
		c := &st.counts[i]
		c.isNew = c.place == nowhere && (c.arrived || c.takes)
	}
	return st.admit()
}

// settle settles the charges of s. Units above the charged cost are charged even if the count
// was lost or has expired since.
func (st *step) settle(s *driver.Settlement, p *handoff.Placement) (driver.Decision, error) {
	if err := st.locate(p); err != nil {
		return driver.Decision{}, err
	}
	for i := range st.counts {
		c := &st.counts[i]
		switch {
		case s.Charged.ResultsOf(i)[0].Mark.Note&notePooled != 0:
			c.stripe.pool(c, &st.moment)
			c.isNew = c.isNew && s.Creates(i)
		case c.place == nowhere:
			c.isNew = c.arrived || s.Creates(i)
		}
	}
	st.admit()
	if s.Once && st.counts[len(st.counts)-1].pooled {
		return driver.Decision{}, errNoRoom // a pooled count can't tell whether s was made before
	}
	d := algorithm.Settle(*s, st.statesOf())
	st.keep(&d, d.Allowed || s.Renews)
	return d, nil
}

var errNoRoom = fmt.Errorf("there is no room to remember that it is settled, and %w", driver.ErrNotSent)

// keep stores the counts if the decision d has changed them, and those that arrived. It marks
// the counts that refused d as used up: a flood of keys must not free a client that is
// refused, though a cheaper charge might still fit.
func (st *step) keep(d *driver.Decision, changed bool) {
	for i := range st.counts {
		c := &st.counts[i]
		c.isNew = c.isNew && (changed || c.arrived)
	}
	st.make()
	for i := range st.counts {
		c := &st.counts[i]
		results := d.ResultsOf(i)
		used, stored := partUsed(c.policy, results), changed || c.arrived
		if stored {
			c.stripe.save(c, &st.moment)
		}
		if c.place != nowhere && (stored || used == allUsed) {
			c.stripe.entries.entry(c.place).used = used
		}
		if c.pooled {
			for j := range results {
				results[j].Mark.Note = notePooled
			}
		}
	}
	st.trim()
}

// usedPart is a part of a quota, in units of 1/allUsed.
type usedPart uint16

const allUsed = 1<<16 - 1

// partUsed returns the largest used / capacity, or allUsed if a limit is full or refused.
func partUsed(p *quota.Policy, results []driver.Result) usedPart {
	var part usedPart
	for i := range results {
		used, capacity := results[i].Used, p.Limits[i].Capacity()
		if used >= capacity || results[i].RetryAt > 0 {
			return allUsed
		}
		part = max(part, usedPart(float64(used)/float64(capacity)*allUsed))
	}
	return part
}

// reset carries out r.
func (st *step) reset(r *driver.Request, p *handoff.Placement) error {
	_, changes, err := handoff.Reset(*r, p)(st.storedOf(), st.moment.clock())
	if err != nil {
		return err
	}
	for i := range st.counts {
		if c := &st.counts[i]; c.place != nowhere {
			c.stripe.entries.entry(c.place).used = 0
		}
	}
	st.keepChanges(changes)
	return nil
}

// release carries out r.
func (st *step) release(r *handoff.ReleaseRequest) []handoff.Released {
	all, changes, _ := handoff.ReleaseAll(r, st.storedOf(), st.moment.clock())
	st.keepChanges(changes)
	return all
}

// keepChanges stores the changed counts, except new ones that find no room.
func (st *step) keepChanges(changes []handoff.Change) {
	for i, change := range changes {
		if c := &st.counts[i]; change.Changed {
			c.stored, c.isNew = change.Stored, c.place == nowhere
		}
	}
	st.admit()
	st.make()
	for i, change := range changes {
		if c := &st.counts[i]; change.Changed && !c.pooled {
			c.stripe.save(c, &st.moment)
		}
	}
	st.trim()
}

// locate adds the counts that arrive to the step. It fails if a count is in another backend.
func (st *step) locate(p *handoff.Placement) error {
	moves := p != nil
	for i := range st.counts {
		stored := st.counts[i].stored
		moves = moves || stored != nil && stored.Claim != nil
	}
	if !moves {
		return nil
	}
	counts, err := handoff.FindAll(st.storedOf(), p, st.moment.now, st.moment.clock())
	for i, count := range counts {
		c := &st.counts[i]
		switch {
		case count.Arrived:
			c.stored, c.arrived = count.Stored, true
		case count.Stored != c.stored:
			if c.place != nowhere { // its claim has expired: a new count begins
				c.stripe.remove(c.place)
			}
			c.place, c.stored, c.large = nowhere, nil, nil
		}
	}
	return err
}

// storedOf returns the stored value of each of the step's counts, or nil.
func (st *step) storedOf() []*handoff.Stored {
	states := make([]*handoff.Stored, len(st.counts))
	for i := range st.counts {
		states[i] = st.counts[i].stored
	}
	return states
}
