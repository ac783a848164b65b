package memorybackend

import (
	"fmt"

	"github.com/weir-go/weir/throttler"
)

const (
	sweepNext  = 4 // keys looked at in passing for each new one: more than one, so that the dead lose
	sweepBound = 16
)

// makeRoom sweeps in passing and sees that the new keys among charges, those
// that have no entry and will be charged and those that arrive, fit under the
// bound.
func (s *shard) makeRoom(charges []throttler.Charge, found *entries, charged bool, now int64) error {
	missing := 0
	for i := range charges {
		if found[i] == nil && charged && charges[i].Cost > 0 || found[i] != nil && found[i].arrived {
			missing++
		}
	}
	if missing == 0 {
		return nil
	}
	s.sweep(sweepNext, margin, found, now)
	for len(s.keys)+missing > s.bound {
		least, ok := s.sweep(sweepBound, 0, found, now)
		if len(s.keys)+missing <= s.bound {
			break
		}
		if !ok {
			return fmt.Errorf("memorybackend: %d keys are kept, the most that MaxKeys allows to this part of them, and those looked at have used up their quotas: %w", len(s.keys), throttler.ErrUnavailable)
		}
		delete(s.keys, least)
	}
	return nil
}

// sweep looks at n keys, at random places of the map, and removes those whose
// windows are over and were opened at least age ms ago. Of the others it names
// the one that has used the least, if it has not used up a quota and is not
// one of keep.
func (s *shard) sweep(n int, age int64, keep *entries, now int64) (least string, ok bool) {
	usedPart, youngest := 1.0, monotonic()-age
	for name, e := range s.keys {
		if n--; n < 0 {
			break
		}
		over := e.life(now) <= 0
		switch {
		case kept(keep, e):
		case over && e.movedAt <= youngest:
			delete(s.keys, name)
		case over:
			least, usedPart, ok = name, 0, true
		case e.usedPart < usedPart:
			least, usedPart, ok = name, e.usedPart, true
		}
	}
	return least, ok
}

func kept(keep *entries, e *entry) bool {
	for _, k := range keep {
		if k == e {
			return true
		}
	}
	return false
}
