package algorithm

import (
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// inFlight is a sliding log of the decisions in flight, with a unit for each. Settling a
// decision removes its unit, and renewing it moves the unit to the end of the log. Otherwise
// the unit lapses a lease after it was taken, as a charge leaves a log.
type inFlight struct{ slidingLog }

// askAgain is when to ask again if all units are held, in ms: nothing says when a unit will be free.
const askAgain = 1000

func (inFlight) retryAt(_ *record, l limit, _, now int64) int64 { return askAgainAt(l, now) }

func askAgainAt(l limit, now int64) int64 { return addInstant(now, min(askAgain, l.window)) }

// release releases the units held under marks. It reports whether each unit was there, or has
// room to be taken again.
func (s *State) release(limits []quota.Limit, marks []driver.Mark, now int64) (held bool) {
	held = true
	for i := range s.records {
		r := &s.records[i]
		if !kinds[r.kind].holds {
			continue
		}
		mark, own := heldUnder(r, limits, marks)
		found := s.last.precedes(&mark) && r.kind.counter().giveBack(r, limit{}, settled{mark: mark, charged: 1}, now)
		held = held && (found || own < 0 || r.kind.counter().used(r, limit{}, now) < limits[own].Quota)
	}
	return held
}

// renew takes the released units again, and writes a result for each of limits. If held is
// false, it takes no units.
func (s *State) renew(limits []quota.Limit, held bool, now int64, results []driver.Result) {
	if held {
		s.arrange(limits, now)
		for i := range s.records {
			if r := &s.records[i]; kinds[r.kind].holds {
				r.kind.counter().charge(r, limit{}, 1, now)
			}
		}
		// A charge of 0 gives a bucket its quota and window. Two kinds need it: a new bucket, if
		// the state was lost, because one without a quota can't be stored; and a bucket adopted
		// from another window, which the next renewal would not find, and adopt again.
		for i := range limits {
			if r, l := &s.records[i], limitOf(&limits[i]); (r.quota == 0 || r.window != l.window) && limits[i].Algorithm.Drains() {
				l.kind.counter().charge(r, l, 0, now)
			}
		}
	}
	s.Evaluate(limits, 1, now, results)
	for i := range limits {
		switch l := limitOf(&limits[i]); {
		case !kinds[l.kind].holds:
			results[i].RetryAt = 0
		case held:
			results[i].RetryAt, results[i].Mark = 0, l.kind.counter().lastCharge(&s.records[i], 1).mark
			results[i].Mark.Generation = s.last.generation
		}
	}
}

// heldUnder returns the mark of the unit that r, a record of held units, may contain, and the
// index of r's limit in limits. The index is -1 if r is another policy's, which has the unit
// at the same instant.
func heldUnder(r *record, limits []quota.Limit, marks []driver.Mark) (mark driver.Mark, own int) {
	own = -1
	for i := range limits {
		l := limitOf(&limits[i])
		if !kinds[l.kind].holds {
			continue
		}
		if r.window == l.window {
			return marks[i], i
		}
		mark = marks[i]
	}
	return mark, own
}
