package throttler

import (
	"sync/atomic"
	"time"
)

// Never is the RetryAt of a charge that can never fit.
var Never = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)

// Decision is the whole answer to a Take, a Peek, a Refund or a Settle.
type Decision struct {
	// Allowed says whether every limit had room. A Take that was allowed has
	// charged them all, one that was not has charged none. A Peek says whether
	// a Take of the same charges would have been allowed.
	Allowed bool

	// At is the instant of the decision, in whole milliseconds, UTC.
	At time.Time

	// Charges are the charges decided about, with every Cost and Partition filled
	// in, and charges to one count added up.
	Charges []Charge

	// Limits reports on every limit of every charge, in their order.
	Limits []Status

	// receipt is nil if the decision was not made in this process.
	receipt *receipt
}

// Status is what a decision says of one limit.
type Status struct {
	Policy *Policy // as charged
	Key    string  // as charged
	Cost   int64   // units this charge asked for
	Limit  Limit   // the limit reported on

	// Used is what counts against the quota after this decision. It exceeds
	// the quota after a Settle beyond it, or when the quota was lowered.
	Used int64

	// Remaining is what is left, never negative: capacity - Used. For example,
	// if 60 per hour are allowed and 6 were charged in this hour, 54.
	Remaining int64

	// ResetAt is the instant from which, with no further charge, the whole
	// quota is free. It is stored, and the same in every answer about one
	// window. Where nothing counts, it is the decision's instant, but for a
	// FixedWindow that is open: one whose charges were all refunded stays open.
	ResetAt time.Time

	// Refused says that this limit had no room.
	Refused bool

	// RetryAt is, if Refused, the earliest instant at which this limit would
	// have room for the same charge, or [Never]. Zero if not refused.
	RetryAt time.Time

	// StartAt is, for a LeakyBucket that was charged, the instant at which the
	// charge has reached the head of the queue. Zero for other algorithms. A
	// start that was returned is returned to no other charge, unless its own
	// was refunded before it came.
	StartAt time.Time

	// Mark names what was charged, for Refund and Settle. Only backends look
	// inside.
	Mark Mark
}

// Mark names the window, or the point of a bucket, that a charge went to.
type Mark struct {
	At       int64 // ms since the epoch
	Fraction int64 // of a ms, in units of 1/quota; for the two buckets
	Shared   bool  // the charge went to a count that several keys share
}

// Binding returns the status that a client should be told of where there is
// room for one only: of the limits that refused, the one that frees last; if
// none did, the one that this same charge, repeated, would exhaust first.
func (d Decision) Binding() Status {
	if len(d.Limits) == 0 {
		return Status{}
	}
	binding := &d.Limits[0]
	for i := range d.Limits[1:] {
		if s := &d.Limits[i+1]; s.bindsBefore(binding) {
			binding = s
		}
	}
	return *binding
}

func (s *Status) bindsBefore(o *Status) bool {
	if s.Refused != o.Refused {
		return s.Refused
	}
	if s.Refused {
		return s.RetryAt.After(o.RetryAt)
	}
	left, otherLeft := s.Remaining/max(s.Cost, 1), o.Remaining/max(o.Cost, 1)
	return left < otherLeft || left == otherLeft && s.ResetAt.After(o.ResetAt)
}

// RetryAt returns the earliest instant at which the same charges would fit,
// provided that nobody charges the same keys before: the latest RetryAt of the
// limits that refused. It is zero if the decision is Allowed, and [Never] if
// the charges can never fit.
func (d Decision) RetryAt() time.Time {
	var at time.Time
	for i := range d.Limits {
		if s := &d.Limits[i]; s.Refused && s.RetryAt.After(at) {
			at = s.RetryAt
		}
	}
	return at
}

// StartAt returns the instant at which an allowed request may start: the
// latest StartAt of its leaky buckets, or At if there is none.
func (d Decision) StartAt() time.Time {
	at := d.At
	for i := range d.Limits {
		if s := &d.Limits[i]; s.StartAt.After(at) {
			at = s.StartAt
		}
	}
	return at
}

// receipt lets a charge be given back or settled once. Copies of a Decision
// share it.
type receipt struct {
	by   *Throttler // that took
	done atomic.Bool
}

// tookNothing is the receipt of every peek: there is nothing to give back.
var tookNothing = func() *receipt {
	r := new(receipt)
	r.done.Store(true)
	return r
}()
