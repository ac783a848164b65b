package algorithm

import (
	"github.com/weir-go/weir/throttler"
)

// Stored is what a backend keeps for one count: its state and, while counts
// move between backends, in front of it a claim. The claim's stored form is
//
//	1  8 if the count is here, 9 if it has left
//	6  version
//	6  void at
//	6  place, if it has left
//	6  version by which it parted, if it has left
//
// No state begins with an 8 or a 9.
type Stored struct {
	Claim *Claim // nil if no view has placed the count
	State State
}

// Claim says which view has placed a count, and where.
//
// Claims go by a clock of the backend's own, in ms: a decision's now may step,
// and what others have learned of a move does not change by that.
type Claim struct {
	Version int64
	VoidAt  int64           // by the backend's clock
	Left    throttler.Place // where the count went; 0 if it is here

	// Parted is, if the count has left, the version by which it did so, and
	// with it the age of the state that stayed; 0 if no state did. Version may
	// be later: of views by which it was asked for again.
	Parted int64
}

const (
	claimHere = 8
	claimLeft = 9
)

// Append appends the stored form of s to b and returns it.
func (s *Stored) Append(b []byte) []byte {
	if c := s.Claim; c != nil {
		mark := byte(claimHere)
		if c.Left != 0 {
			mark = claimLeft
		}
		b = append(b, mark)
		b = AppendUint(b, 6, c.Version)
		b = AppendUint(b, 6, c.VoidAt)
		if c.Left != 0 {
			b = AppendUint(b, 6, int64(c.Left))
			b = AppendUint(b, 6, c.Parted)
		}
	}
	return s.State.Append(b)
}

// ParseStored returns what is stored as b. It fails if b is nothing of ours.
func ParseStored(b []byte) (Stored, error) {
	var s Stored
	if len(b) > 0 && (b[0] == claimHere || b[0] == claimLeft) {
		p := parser{rest: b[1:]}
		c := &Claim{Version: p.uint(6), VoidAt: p.uint(6)}
		if b[0] == claimLeft {
			c.Left, c.Parted = throttler.Place(p.uint(6)), p.uint(6)
		}
		if p.failed || c.Version == 0 || b[0] == claimLeft && c.Left == 0 {
			return Stored{}, malformed(b)
		}
		s.Claim = c
		b = p.rest
	}
	var err error
	s.State, err = Parse(b)
	return s, err
}

// Life returns for how many ms something of s counts, or its claim is needed.
func (s *Stored) Life(now, clock int64) int64 {
	life := s.State.ResetAt(now) - now
	if s.Claim != nil {
		life = max(life, s.Claim.VoidAt-clock)
	}
	return life
}

func (s *Stored) hasLeft() bool { return s.Claim != nil && s.Claim.Left != 0 }

// Find returns the count to decide about at now as charge i under home, given
// what is stored: nil if nothing is. clock is the backend's. It reports whether the count arrived,
// which is to be kept whatever is decided, and whether it is elsewhere, when
// there is nothing to decide. The stored count stays as it is; what is returned
// may be it, or nil for a count to begin.
func Find(stored *Stored, home *throttler.Home, i int, now, clock int64) (count *Stored, arrived bool, where throttler.Whereabouts, err error) {
	stored = stored.valid(clock)
	if home == nil { // counts do not move, or no more: go on from what is known
		if stored != nil && stored.hasLeft() {
			return &Stored{State: stored.State.clone()}, true, where, nil
		}
		return stored, false, where, nil
	}
	if stored != nil && !stored.hasLeft() {
		where.Missing = home.Required && home.Live && stored.State.ResetAt(now) <= now
		return stored, false, where, nil
	}
	if i >= len(home.Arrivals) || !home.Arrivals[i].Due {
		where.Missing = stored == nil && home.Required
		if stored != nil {
			where = stored.Claim.whereabouts()
		}
		return nil, false, where, nil
	}
	if stored != nil && !stored.Claim.yieldsTo(home.Version, home.Place) {
		return nil, false, stored.Claim.whereabouts(), nil
	}
	count = new(Stored)
	if arrival := &home.Arrivals[i]; stored != nil && stored.Claim.Parted > arrival.Parted {
		// It was here, and left, after what arrives was released: by a view
		// between the two, whose process did not get further.
		count.State = stored.State.clone()
	} else if count.State, err = Parse(arrival.State); err != nil {
		return nil, false, where, err
	}
	// It outlives what other backends keep of the count.
	life := max(home.Keep.Milliseconds(), count.State.ResetAt(now)-now)
	count.Claim = &Claim{Version: home.Version, VoidAt: clock + life + claimMargin}
	return count, true, where, nil
}

const claimMargin = 5000 // ms

// FindAll finds the counts of all charges of a decision, given what is stored
// for each, or nil: none of them is nil then. It fails with an ElsewhereError if
// one of them is not here.
func FindAll(stored []*Stored, home *throttler.Home, now, clock int64) ([]Found, error) {
	found := make([]Found, len(stored))
	var away *throttler.ElsewhereError
	for i := range stored {
		count, arrived, where, err := Find(stored[i], home, i, now, clock)
		if err != nil {
			return nil, err
		}
		if where != (throttler.Whereabouts{}) {
			if away == nil {
				away = &throttler.ElsewhereError{Counts: make([]throttler.Whereabouts, len(stored))}
			}
			away.Counts[i] = where
		}
		found[i] = Found{Stored: count, Arrived: arrived}
		if count == nil {
			found[i].Stored = new(Stored)
		}
	}
	if away != nil {
		return nil, away
	}
	return found, nil
}

// Found is a count to decide about.
type Found struct {
	*Stored
	Arrived bool // keep it whatever is decided
}

// Release returns what becomes of a count that is asked for by r, and what is
// to be stored in its place: nil if nothing changes. stored is nil if nothing
// is. clock is the backend's.
func Release(r *throttler.Release, stored *Stored, clock int64) (released throttler.Released, left *Stored) {
	life := r.Keep.Milliseconds()
	left = &Stored{Claim: &Claim{Version: r.Version, Left: r.To}}
	if stored = stored.valid(clock); stored != nil {
		var claim Claim
		if stored.Claim != nil {
			claim = *stored.Claim
		}
		if claim.Version > r.Version || claim.Version == r.Version && claim.Left != r.To {
			return throttler.Released{Stays: true, Place: claim.Left, Version: claim.Version}, nil
		}
		left.State = stored.State.clone()
		life = max(life, stored.Life(r.Now.UnixMilli(), clock))
		left.Claim.Parted = r.Version
		if claim.Left != 0 {
			left.Claim.Parted = claim.Parted
		}
		if left.Claim.Parted != 0 {
			released = throttler.Released{Left: claim.Left != 0, Parted: left.Claim.Parted, State: left.State.Append([]byte{})}
		}
	}
	if r.Look {
		return released, nil
	}
	left.Claim.VoidAt = clock + life
	return released, left
}

// valid takes a claim that is void off s, and returns s: nil if the count left
// so long ago that it is over.
func (s *Stored) valid(clock int64) *Stored {
	if s == nil || s.Claim == nil || s.Claim.VoidAt > clock {
		return s
	}
	if s.hasLeft() {
		return nil
	}
	s.Claim = nil
	return s
}

func (c Claim) whereabouts() throttler.Whereabouts {
	return throttler.Whereabouts{Place: c.Left, Version: c.Version}
}

// yieldsTo reports whether a count that has left may come (back) to place by a
// view of that version.
func (c Claim) yieldsTo(version int64, place throttler.Place) bool {
	return c.Version < version || c.Version == version && c.Left == place
}

func (s *State) clone() State {
	c := State{records: make([]record, len(s.records))}
	copy(c.records, s.records)
	for i := range c.records {
		c.records[i].log = append([]entry(nil), c.records[i].log...)
	}
	return c
}
