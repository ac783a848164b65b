package memorybackend

import "github.com/weir-go/weir/handoff"

// locate adds the counts that arrive to the step's. It fails if one is in
// another backend.
func (st *step) locate(p *handoff.Placement) error {
	moves := p != nil
	for i := range st.counts {
		stored := st.counts[i].stored
		moves = moves || stored != nil && stored.Claim != nil
	}
	if !moves {
		return nil
	}
	stored := make([]*handoff.Stored, len(st.counts))
	for i := range st.counts {
		stored[i] = st.counts[i].stored
	}
	counts, err := handoff.FindAll(stored, p, st.at.now, st.at.clock())
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

// release carries out r.
func (st *step) release(r *handoff.ReleaseRequest) []handoff.Released {
	all := make([]handoff.Released, len(st.counts))
	changed := false
	for i := range st.counts {
		c := &st.counts[i]
		all[i], c.stored = handoff.Release(r, c.stored, st.at.clock())
		if c.stored != nil {
			changed = true
			c.isNew = c.place == nowhere
		}
	}
	if !changed {
		return all
	}
	st.admit()
	st.make()
	for i := range st.counts {
		if c := &st.counts[i]; c.stored != nil && !c.shared {
			c.stripe.begin(c)
			c.stripe.save(c, &st.at)
		}
	}
	st.trim()
	return all
}
