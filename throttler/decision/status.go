package decision

import (
	"time"

	"github.com/weir-go/weir/throttler/quota"
)

// Never is the RetryAt of a charge that can never fit.
var Never = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)

// Status is the part of a decision about one limit.
type Status struct {
	Policy *quota.Policy // as charged
	Key    string        // as charged
	Cost   int64         // units this charge asked for: 1 for an InFlight
	Index  int           // of the limit, in Policy.Limits
	Limit  quota.Limit   // the limit reported on

	// Used is the number of units that count against the quota after this decision. It
	// exceeds the quota after a Settle beyond it, or when the quota was lowered.
	Used int64

	Remaining int64 // capacity - Used, never negative: of 60 per hour with 6 used, 54

	// ResetAt is when the whole quota is free, if nothing more is charged. It is stored,
	// and the same in every answer about one window. If nothing counts, it is the
	// decision's instant, except that an open FixedWindow keeps its own.
	ResetAt time.Time

	Refused bool // this limit had no room

	// RetryAt is, if Refused, the earliest instant at which this limit would
	// have room for the same charge, or [Never]. Zero if not refused. For an InFlight it is
	// when to ask again, within a second, and so is NextAt.
	RetryAt time.Time

	// NextAt is the earliest instant at which this limit would have room for one unit, if
	// nothing more is charged: of a refused charge of one, it is RetryAt. Zero if there is
	// room now. In a FixedWindow, which gets all its room back at once, it is ResetAt.
	NextAt time.Time

	// StartAt is when a charge to a LeakyBucket reaches the head of the queue. A
	// start that was returned is returned to no other charge, unless its own was
	// refunded before it came. Zero for other algorithms, except for a TokenBucket that
	// Throttler.Wait has charged ahead.
	StartAt time.Time

	hidden int64 // see driver.Result
}

// BindsBefore reports whether s, rather than o, should be reported if only one can be:
// see [Decision.Binding].
func (s *Status) BindsBefore(o *Status) bool {
	if s.Refused != o.Refused {
		return s.Refused
	}
	if s.Refused {
		return s.RetryAt.After(o.RetryAt)
	}
	if held := s.Limit.Algorithm.Holds(); held != o.Limit.Algorithm.Holds() { // a held unit comes back by itself
		return !held
	}
	takes, otherLeft := (s.Remaining+s.hidden)/max(s.Cost, 1), (o.Remaining+o.hidden)/max(o.Cost, 1)
	return takes < otherLeft || takes == otherLeft && s.Reset().After(o.Reset())
}

// Reset returns the instant at which a client that stops when nothing remains should come
// back, as in X-RateLimit-Reset: NextAt if nothing remains, else ResetAt.
func (s *Status) Reset() time.Time {
	if s.Remaining == 0 {
		return s.NextAt
	}
	return s.ResetAt
}
