package memcachedbackend

import (
	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler/driver"
)

// counts are the counts of a decision's charges, in their order.
type counts struct {
	names  []name
	found  []handoff.Found
	states []*algorithm.State
	was    []before
}

// before is what a count was before the decision.
type before struct {
	life    int64 // ms
	resetAt int64
	found   bool
}

// locate returns the counts of charges under p, nil if counts do not move.
func (it *item) locate(names []name, p *handoff.Placement, now int64) (counts, error) {
	stored, err := it.stored(names)
	if err != nil {
		return counts{}, err
	}
	found, err := handoff.FindAll(stored, p, now, it.now)
	if err != nil {
		return counts{}, err
	}
	c := counts{names, found, make([]*algorithm.State, len(names)), make([]before, len(names))}
	for i := range names {
		c.states[i] = &found[i].State
		c.was[i] = before{found[i].Life(now, it.now), found[i].State.ResetAt(now), stored[i] != nil}
	}
	return c, nil
}

func (it *item) stored(names []name) ([]*handoff.Stored, error) {
	all := make([]*handoff.Stored, len(names))
	for i := range names {
		c, err := it.find(names[i])
		if err != nil {
			return nil, err
		}
		if c != nil {
			all[i] = c.stored
		}
	}
	return all, nil
}

// keep puts count i of c, as the decision left it, into the item.
func (it *item) keep(c counts, i int, now int64) {
	expiry, was, f := int64(0), c.was[i], &c.found[i] // it stays
	life := f.Life(now, it.now)
	// Of a count that a stray clock wrote, life is bounded and does not grow by a charge.
	if !was.found || f.Arrived || life > was.life || f.State.ResetAt(now) > was.resetAt {
		expiry = it.now + life + it.margin
	}
	it.put(c.names[i].inPartition, c.found[i].Stored, expiry)
}

func (it *item) take(r driver.Request, names []name, p *handoff.Placement) (d driver.Decision, changed bool, err error) {
	counts, err := it.locate(names, p, r.Now)
	if err != nil {
		return d, false, err
	}
	d = algorithm.Take(r, counts.states)
	for i := range r.Charges() {
		if d.Allowed && r.Charges()[i].Cost > 0 || counts.found[i].Arrived {
			it.keep(counts, i, r.Now)
			changed = true
		}
	}
	return d, changed, nil
}

func (it *item) peek(r driver.Request, names []name, p *handoff.Placement) (driver.Decision, error) {
	counts, err := it.locate(names, p, r.Now)
	if err != nil {
		return driver.Decision{}, err
	}
	return algorithm.Evaluate(r, counts.states), nil
}

func (it *item) settle(s driver.Settlement, names []name, p *handoff.Placement) (d driver.Decision, changed bool, err error) {
	charges := s.Charged.Charges()
	counts, err := it.locate(names, p, s.Now)
	if err != nil {
		return d, false, err
	}
	d = algorithm.Settle(s, counts.states)
	for i := range charges {
		if counts.was[i].found || counts.found[i].Arrived || s.Costs[i] > charges[i].Cost {
			it.keep(counts, i, s.Now)
			changed = true
		}
	}
	return d, changed, nil
}

func (it *item) release(r handoff.ReleaseRequest, names []name) (all []handoff.Released, changed bool, err error) {
	stored, err := it.stored(names)
	if err != nil {
		return nil, false, err
	}
	all = make([]handoff.Released, len(names))
	for i := range names {
		released, left := handoff.Release(&r, stored[i], it.now)
		all[i] = released
		if left != nil {
			it.put(names[i].inPartition, left, left.Claim.ExpiresAt+it.margin)
			changed = true
		}
	}
	return all, changed, nil
}
