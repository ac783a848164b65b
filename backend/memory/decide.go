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
func (s *stripe) take(r *driver.Request, p *handoff.Placement, long [][]byte, at *moment) (d driver.Decision, pooled bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(r, p, long, at)
}

func (s *stripe) takeLocked(r *driver.Request, p *handoff.Placement, long [][]byte, at *moment) (d driver.Decision, pooled bool, err error) {
	if err := s.locate(r.Charges(), p, long, at); err != nil {
		return driver.Decision{}, false, err
	}
	pooled = s.admitTake(r.Charges(), at)
	if pooled {
		s.pooled++
		s.hand += uint32(s.looked) // the next new key looks elsewhere
	}
	d = algorithm.Evaluate(*r, s.statesOf())
	if !d.Allowed {
		s.keepRefused(&d, at)
		return d, pooled, nil
	}
	s.make(at)
	for i := range s.all {
		s.begin(&s.all[i])
	}
	algorithm.Charge(&d, s.statesOf())
	s.saveCharged(&d, at)
	return d, pooled, nil
}

func (s *stripe) peek(r *driver.Request, p *handoff.Placement, long [][]byte, at *moment) (driver.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peekLocked(r, p, long, at)
}

func (s *stripe) peekLocked(r *driver.Request, p *handoff.Placement, long [][]byte, at *moment) (driver.Decision, error) {
	err := s.locate(r.Charges(), p, long, at)
	if err != nil {
		return driver.Decision{}, err
	}
	s.admitTake(r.Charges(), at)
	return algorithm.Evaluate(*r, s.statesOf()), nil
}

// settle settles what was charged. What was charged too little is charged even
// if the count was lost or has expired since.
func (s *stripe) settle(st *driver.Settlement, p *handoff.Placement, long [][]byte, at *moment) (driver.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settleLocked(st, p, long, at)
}

func (s *stripe) settleLocked(st *driver.Settlement, p *handoff.Placement, long [][]byte, at *moment) (driver.Decision, error) {
	charges := st.Charged.Charges()
	err := s.locate(charges, p, long, at)
	if err != nil {
		return driver.Decision{}, err
	}
	for i := range s.all {
		c := &s.all[i]
		switch {
		case st.Charged.ResultsOf(i)[0].Mark.Note&noteShared != 0:
			s.share(c, &charges[i], i, at)
			c.isNew = c.isNew && creates(st, i)
		case c.place == nowhere:
			c.isNew = c.arrived || creates(st, i)
		}
	}
	s.admit(charges, at)
	if st.Once && s.all[len(s.all)-1].shared {
		return driver.Decision{}, errNoRoom // with others', the count would not tell
	}
	s.make(at)
	for i := range s.all {
		s.begin(&s.all[i])
	}
	d := algorithm.Settle(*st, s.statesOf())
	s.saveCharged(&d, at)
	return d, nil
}

var errNoRoom = fmt.Errorf("there is no room to remember that it is settled, and %w", driver.ErrNotSent)

// reset forgets what the counts of charges have.
func (s *stripe) reset(charges []quota.Charge, p *handoff.Placement, long [][]byte, at *moment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.locate(charges, p, long, at); err != nil {
		return err
	}
	for i := range s.all {
		c := &s.all[i]
		c.isNew = c.place == nowhere && c.arrived
	}
	s.admit(charges, at)
	s.make(at)
	for i := range s.all {
		c := &s.all[i]
		if c.shared || c.place == nowhere && !c.isNew {
			continue
		}
		s.begin(c)
		c.stored.State.Reset(at.now)
		s.entries.at(c.place).used = 0
		s.save(c, at)
	}
	s.trim(at)
	return nil
}

// creates reports whether st makes charge i have a count, if it has none.
func creates(st *driver.Settlement, i int) bool {
	c := &st.Charged.Charges()[i]
	if st.Renews {
		return c.Policy.Holds()
	}
	return st.Costs[i] > c.Cost && !c.Policy.HoldsOnly() || st.PauseUntil > st.Now
}

// admitTake does what admit does for the counts that a take would create.
func (s *stripe) admitTake(charges []quota.Charge, at *moment) (pooled bool) {
	for i := range s.all {
		c := &s.all[i]
		c.isNew = c.place == nowhere && (c.arrived || charges[i].Cost > 0 && charges[i].Mode != quota.Check)
	}
	return s.admit(charges, at)
}

// saveCharged stores counts that d has charged or settled.
func (s *stripe) saveCharged(d *driver.Decision, at *moment) {
	for i := range s.all {
		c := &s.all[i]
		results := d.ResultsOf(i)
		if c.place != nowhere {
			s.entries.at(c.place).used = partUsed(d.Charges()[i].Policy, results)
			s.save(c, at)
		}
		if c.shared {
			for j := range results {
				results[j].Mark.Note = noteShared
			}
		}
	}
	s.trim(at)
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
func (s *stripe) keepRefused(d *driver.Decision, at *moment) {
	arrived := false
	for i := range s.all {
		c := &s.all[i]
		arrived = arrived || c.arrived
		c.isNew = c.isNew && c.arrived && !c.shared
	}
	if arrived {
		s.make(at)
	}
	for i := range s.all {
		c := &s.all[i]
		results := d.ResultsOf(i)
		if c.arrived && !c.shared {
			s.begin(c)
			s.entries.at(c.place).used = partUsed(d.Charges()[i].Policy, results)
			s.save(c, at)
		}
		for j := range results {
			if c.place != nowhere && results[j].RetryAt > 0 {
				s.entries.at(c.place).used = allUsed
			}
		}
	}
	if arrived {
		s.trim(at)
	}
}
