package handoff

import "github.com/weir-go/weir/algorithm"

// Found is a count to decide about.
type Found struct {
	*Stored
	Arrived bool // store it whatever the decision
}

// FindAll finds the counts of all charges of a decision, given what is stored
// for each, or nil. Each Found has a Stored, an empty one if the count is to be
// created. It fails with an [ElsewhereError] if one of the counts is not here; an
// arrival, which is then not stored, is missing.
func FindAll(stored []*Stored, p *Placement, now, clock int64) ([]Found, error) {
	found := make([]Found, len(stored))
	var elsewhere *ElsewhereError
	for i := range stored {
		count, arrived, where, err := Find(stored[i], p, i, now, clock)
		if err != nil {
			return nil, err
		}
		if where != (Location{}) {
			if elsewhere == nil {
				elsewhere = &ElsewhereError{Counts: make([]Location, len(stored))}
			}
			elsewhere.Counts[i] = where
		}
		found[i] = Found{Stored: count, Arrived: arrived}
		if count == nil {
			found[i].Stored = new(Stored)
		}
	}
	if elsewhere != nil {
		for i := range found {
			if found[i].Arrived { // and is not stored
				elsewhere.Counts[i].Missing = true
			}
		}
		return nil, elsewhere
	}
	return found, nil
}

// Find returns the count that charge i of a decision under p applies to. stored
// is the stored count, or nil; an expired claim is removed from it. now is the
// decision's, clock the backend's, both in ms. If p is nil, counts do not move:
// the count continues from whatever is stored, and Find returns nil to create
// one.
//
// If arrived is true, the caller must store the count whatever the decision. If
// where is not zero, the count is in another backend, or may be, and the
// decision must fail.
func Find(stored *Stored, p *Placement, i int, now, clock int64) (count *Stored, arrived bool, where Location, err error) {
	if p == nil {
		stored = stored.valid(clock)
		if stored != nil && stored.hasLeft() {
			return &Stored{State: stored.State.Clone()}, true, where, nil
		}
		return stored, false, where, nil
	}
	stored = stored.present(now, clock)
	if stored != nil && !stored.hasLeft() {
		return stored, false, where, nil
	}
	due := i < len(p.Arrivals) && p.Arrivals[i].Due
	switch {
	case stored != nil && (!due || !stored.Claim.mayMoveTo(p.Version, p.Backend)):
		return nil, false, stored.Claim.location(), nil
	case !due:
		return nil, false, Location{Missing: true}, nil
	}
	count = new(Stored)
	if arrival := &p.Arrivals[i]; stored != nil && stored.Claim.ReleaseVersion > arrival.ReleaseVersion {
		// A move between these two versions brought the count here and released
		// it again but never finished, so the copy kept here is newer than the
		// arrival.
		count.State = stored.State.Clone()
	} else if count.State, err = algorithm.Parse(arrival.State); err != nil {
		return nil, false, where, err
	}
	// The claim outlives what other backends keep of the count.
	life := max(p.Keep.Milliseconds(), count.Life(now, clock))
	count.Claim = &Claim{Version: p.Version, ExpiresAt: clock + life + algorithm.Margin.Milliseconds()}
	return count, true, where, nil
}
