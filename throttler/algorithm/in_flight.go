package algorithm

import (
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// inFlight is a sliding log of the decisions in flight, with a unit for each. Settling a
// decision removes its unit, and renewing it moves the unit to the end of the log. Otherwise
// the unit lapses a lease after it was taken, as a charge leaves a log.
//
// A state has one such record, whatever the lease, so that two versions of a policy count the
// same units. Its window is the longest lease of its units. A unit with a shorter lease is
// logged as if it was taken earlier, but no earlier than the newest: it lapses no sooner.
type inFlight struct{ slidingLog }

func (f inFlight) charge(r *record, l limit, cost, now int64) charged {
	r.log, r.count = f.live(r, now)
	if f.resetAt(r, now) <= now+l.window {
		r.setLease(l.window)
	}
	c := f.slidingLog.charge(r, l, cost, now-(r.window-l.window))
	c.mark.At += r.window - l.window // as if it was taken under l
	return c
}

// A shorter lease begins when no unit lapses later: see charge.
func (inFlight) adopt(r *record, l limit) {
	if r.window < l.window {
		r.setLease(l.window)
	}
}

// setLease makes lease the window of r. Its units lapse when they would have.
func (r *record) setLease(lease int64) {
	for i := range r.log {
		r.log[i].ms = min(max(r.log[i].ms+r.window-lease, 0), maxInstant)
	}
	r.window = lease
}

// askAgain is when to ask again if all units are held, in ms: nothing says when a unit will be free.
const askAgain = 1000

func (inFlight) retryAt(_ *record, l limit, _, now int64) int64 { return askAgainAt(l, now) }

func askAgainAt(l limit, now int64) int64 { return addInstant(now, min(askAgain, l.window)) }

// release releases the unit held under its mark, if limits have one. It reports whether the
// unit was there, or has room to be taken again. As the scripts do, it also drops the entries of
// sliding logs that no longer count.
func (s *State) release(limits []quota.Limit, marks []driver.Mark, now int64) (held bool) {
	for i := range limits {
		l, mark := limitOf(&limits[i]), marks[i]
		if r := s.recordOf(l); r != nil && kinds[l.kind].holds {
			for k := range s.records {
				if r := &s.records[k]; kinds[r.kind].log {
					r.log, r.count = slidingLog{}.live(r, now)
				}
			}
			mark.At -= r.window - l.window
			found := s.last.precedes(&mark) && l.kind.counter().giveBack(r, l, settled{mark: mark, charged: 1}, now)
			return found || l.kind.counter().used(r, l, now) < l.quota
		}
	}
	return true
}

// renew takes the released unit again, and writes a result for each of limits. If held is
// false, it takes no unit.
func (s *State) renew(limits []quota.Limit, held bool, now int64, results []driver.Result) {
	var mark driver.Mark
	if held {
		s.arrange(limits, now)
		for i := range limits {
			if r, l := &s.records[i], limitOf(&limits[i]); kinds[l.kind].holds {
				mark = l.kind.counter().charge(r, l, 1, now).mark
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
			results[i].RetryAt, results[i].Mark = 0, mark
			results[i].Mark.Generation = s.last.generation
		}
	}
}
