package memcachedbackend

import (
	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/handoff"
	"github.com/weir-go/weir/throttler/driver"
)

func (it *item) take(r driver.Request, names []name, p *handoff.Placement) (d driver.Decision, changed bool, err error) {
	stored, err := it.stored(names)
	if err != nil {
		return d, false, err
	}
	d, changes, err := handoff.Take(r, stored, p, it.now)
	return d, it.keep(names, changes), err
}

func (it *item) peek(r driver.Request, names []name, p *handoff.Placement) (driver.Decision, error) {
	stored, err := it.stored(names)
	if err != nil {
		return driver.Decision{}, err
	}
	found, err := handoff.FindAll(stored, p, r.Now, it.now)
	if err != nil {
		return driver.Decision{}, err
	}
	states := make([]*algorithm.State, len(found))
	for i := range found {
		states[i] = &found[i].State
	}
	return algorithm.Evaluate(r, states), nil
}

func (it *item) settle(s driver.Settlement, names []name, p *handoff.Placement) (d driver.Decision, changed bool, err error) {
	stored, err := it.stored(names)
	if err != nil {
		return d, false, err
	}
	d, changes, err := handoff.Settle(s, stored, p, it.now)
	return d, it.keep(names, changes), err
}

func (it *item) release(r handoff.ReleaseRequest, names []name) (all []handoff.Released, changed bool, err error) {
	stored, err := it.stored(names)
	if err != nil {
		return nil, false, err
	}
	all, changes := handoff.ReleaseAll(&r, stored, it.now)
	return all, it.keep(names, changes), nil
}

// stored returns the counts of those names, nil where there is none.
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

// keep puts the counts that a decision changed into the item, and reports whether there
// are any.
func (it *item) keep(names []name, changes []handoff.Change) (changed bool) {
	for i, c := range changes {
		if !c.Changed {
			continue
		}
		expiry := int64(0) // it stays
		if c.Life > 0 {
			expiry = it.now + c.Life + it.margin
		}
		it.put(names[i].inPartition, c.Stored, expiry)
		changed = true
	}
	return changed
}
