package algorithm

import (
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// inFlight is a sliding log of what is being served: a unit for each decision. It is taken
// out when the decision is settled, and moved to the end of the log when it is renewed. What
// is neither lapses, as a charge leaves a log, a lease after it was taken.
type inFlight struct{ slidingLog }

// askAgain is when to ask again if all units are held, in ms: no instant is known at which one is free.
const askAgain = 1000

func (inFlight) retryAt(_ *record, l limit, _, now int64) int64 { return askAgainAt(l, now) }

func askAgainAt(l limit, now int64) int64 { return addInstant(now, min(askAgain, l.window)) }

// release gives back the units that are held under marks. It reports whether each of them
// was there, or has room if it is taken again.
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

// renew takes the units that release has given back, and writes a result for each of
// limits. If they are not held any more, it takes none.
func (s *State) renew(limits []quota.Limit, held bool, now int64, results []driver.Result) {
	if held {
		s.arrange(limits, now)
		for i := range s.records {
			if r := &s.records[i]; kinds[r.kind].holds {
				r.kind.counter().charge(r, limit{}, 1, now)
			}
		}
		for i := range limits { // a bucket without a quota cannot be stored: the state was lost
			if r, l := &s.records[i], limitOf(&limits[i]); r.quota == 0 && limits[i].Algorithm.Drains() {
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

// heldUnder returns the mark of the unit that r, a record of units that are held, may have,
// and which of limits it is the record of: -1 if it is another policy's, which has the unit
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
