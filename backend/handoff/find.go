package handoff

import "github.com/weir-go/weir/throttler/algorithm"

// Found is a count to decide about.
type Found struct {
	*Stored
	Arrived bool // store it whatever the decision
}

// FindAll finds the counts of all charges of a decision. stored contains the stored value of
// each count, or nil. Each Found has a Stored, which is empty if the count is created. If a
// count is not here, FindAll fails with an [ElsewhereError] that reports arrivals as missing,
// because they are not stored. now is the decision's, clock the backend's, both in ms. If p is
// nil, counts do not move: they continue from whatever is stored.
func FindAll(stored []*Stored, p *Placement, now, clock int64) ([]Found, error) {
	found, locations, local := make([]Found, len(stored)), make([]Location, len(stored)), true
	for i := range stored {
		if stored[i] != nil && stored[i].Err != nil {
			return nil, stored[i].Err
		}
		var err error
		if found[i], locations[i], err = find(stored[i], p, i, now, clock); err != nil {
			return nil, err
		}
		local = local && locations[i] == (Location{})
		if found[i].Stored == nil {
			found[i].Stored = new(Stored)
		}
	}
	if local {
		return found, nil
	}
	for i := range found {
		if found[i].Arrived { // and will not be stored
			locations[i].Missing = true
		}
	}
	return nil, &ElsewhereError{Counts: locations}
}

// find finds the count of charge i. An expired claim is removed from stored. If location is
// not zero, the count is in another backend, or may be.
func find(stored *Stored, p *Placement, i int, now, clock int64) (found Found, location Location, err error) {
	if p == nil {
		if stored = stored.valid(clock); stored == nil || !stored.hasLeft() {
			return Found{Stored: stored}, location, nil
		}
		return Found{&Stored{State: stored.State.Clone()}, true}, location, nil
	}
	stored = stored.present(now, clock)
	if stored != nil && !stored.hasLeft() {
		return Found{Stored: stored}, location, nil
	}
	arrives := i < len(p.Arrivals) && p.Arrivals[i].Due
	switch {
	case stored != nil && (!arrives || !stored.Claim.mayMoveTo(p.Version, p.Backend)):
		return found, stored.Claim.location(), nil
	case !arrives:
		return found, Location{Missing: true}, nil
	}
	count := new(Stored)
	if arrival := &p.Arrivals[i]; stored != nil && stored.Claim.ReleaseVersion > arrival.ReleaseVersion {
		// A move between these two versions brought the count here and released
		// it again but never finished, so the copy kept here is newer than the
		// arrival.
		count.State = stored.State.Clone()
	} else if count.State, err = algorithm.Parse(arrival.State); err != nil {
		return found, location, err
	}
	// The claim outlives the copies that other backends keep of the count.
	life := max(p.Keep.Milliseconds(), count.Life(now, clock))
	count.Claim = &Claim{Version: p.Version, ExpiresAt: clock + life + algorithm.Margin.Milliseconds()}
	return Found{count, true}, location, nil
}
