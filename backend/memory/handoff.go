package memorybackend

import (
	"github.com/weir-go/weir/handoff"
	"github.com/weir-go/weir/quota"
)

// locate finds the charges' counts, including those that arrive. It fails if one
// is in another backend.
func (s *stripe) locate(charges []quota.Charge, p *handoff.Placement, long [][]byte, at *moment) error {
	s.open(charges, long, at)
	moves := p != nil
	for i := range s.all {
		moves = moves || s.all[i].stored != nil && s.all[i].stored.Claim != nil
	}
	if !moves {
		return nil
	}
	var stored [quota.MaxCharges]*handoff.Stored
	for i := range s.all {
		stored[i] = s.all[i].stored
	}
	counts, err := handoff.FindAll(stored[:len(charges)], p, at.now, at.clock())
	for i, count := range counts {
		c := &s.all[i]
		switch {
		case count.Arrived:
			c.stored, c.arrived = count.Stored, true
		case count.Stored != c.stored:
			if c.place != nowhere { // its claim has expired: a new count begins
				s.remove(c.place)
			}
			c.place, c.stored, c.large = nowhere, nil, nil
		}
	}
	return err
}

// release carries out r.
func (s *stripe) release(r *handoff.ReleaseRequest, long [][]byte, at *moment) []handoff.Released {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open(r.Charges, long, at)
	all := make([]handoff.Released, len(r.Charges))
	changed := false
	for i := range s.all {
		c := &s.all[i]
		released, left := handoff.Release(r, c.stored, at.clock())
		all[i] = released
		if c.stored = left; left != nil {
			changed = true
			c.isNew = c.place == nowhere
		}
	}
	if !changed {
		return all
	}
	s.admit(r.Charges, at)
	s.make(at)
	for i := range s.all {
		if c := &s.all[i]; c.stored != nil && !c.shared {
			s.begin(c)
			s.save(c, at)
		}
	}
	s.trim(at)
	return all
}
