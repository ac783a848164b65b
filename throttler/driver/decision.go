package driver

import (
	"slices"

	"github.com/weir-go/weir/throttler/quota"
)

// Decision is a backend's whole answer to a request or a settlement. Programs read it as
// a decision.Decision.
type Decision struct {
	// Allowed reports whether every limit had room.
	Allowed bool

	// Degraded reports that the shared counts could not be reached.
	Degraded bool

	// Request is the request that was decided about.
	Request Request

	// The results of the limits of all charges, in their order: single has the only one, list
	// has several. Most decisions are about one limit, and need no
	// memory beyond the caller's.
	single [1]Result
	list   []Result

	// Padding to a multiple of 16 bytes: a copy of another size writes its last words twice,
	// and a copy of that copy waits for them.
	_ int64
}

// NewDecision returns a decision about r for a backend to fill in. It is not
// allowed, and has a zero Result for each limit.
func NewDecision(r Request) (d Decision) {
	d.Request = r
	if r.list == nil && (r.single[0].Policy == nil || len(r.single[0].Policy.Limits) == 1) {
		return d
	}
	limits, charges := 0, r.Charges()
	for i := range charges {
		limits += len(charges[i].Policy.Limits)
	}
	if limits > 1 {
		d.list = make([]Result, limits)
	}
	return d
}

// Unread returns a decision about r for counts that were not read: no limit has a window.
func Unread(r Request) Decision {
	d := NewDecision(r)
	for i := range d.Results() {
		d.Results()[i].ResetAt = r.Now
	}
	return d
}

// SetWindow makes d, whose Request is a take under one FixedWindow, allowed if retryAt is
// 0, and fills in its Result. The arguments are fields of the Result.
func (d *Decision) SetWindow(used, resetAt, retryAt int64) {
	result := &d.single[0]
	result.Used, result.ResetAt, result.RetryAt = used, resetAt, retryAt
	if retryAt == 0 {
		d.Allowed = true
		result.Mark.At = resetAt
	}
}

// Charges returns the charges decided about. The caller must not change them.
func (d *Decision) Charges() []quota.Charge { return d.Request.Charges() }

// SetCost sets the cost of charge i, the units that it was charged or would be.
func (d *Decision) SetCost(i int, cost int64) {
	charges := d.Charges()
	if charges[i].Cost == cost {
		return
	}
	if d.Request.list != nil { // the caller of Take has the slice, too
		list := slices.Clone(charges)
		d.Request.list = &list
	}
	d.Charges()[i].Cost = cost
}

// Grant decides d by its results, which say whether each limit has room for the units that
// the mode of its charge asks for: see [quota.Mode.Asks]. If d is allowed, its costs become
// the units that a take charges.
func (d *Decision) Grant() {
	charges, results := d.Charges(), d.Results()
	d.Allowed = true
	for i := range charges {
		n := len(charges[i].Policy.Limits)
		for k := range results[:n] {
			if charges[i].Mode == quota.Record {
				results[k].RetryAt = 0
			}
			d.Allowed = d.Allowed && results[k].RetryAt == 0
		}
		results = results[n:]
	}
	for i := range charges {
		switch c := &charges[i]; {
		case !d.Allowed || c.Mode == quota.Enforce:
		case c.Mode == quota.Check:
			d.SetCost(i, 0)
		case c.Mode == quota.AtMost:
			cost := c.Cost
			for k, r := range d.ResultsOf(i) {
				if l := &c.Policy.Limits[k]; !l.Algorithm.Holds() { // a limit that holds has room for any cost
					cost = min(cost, r.Remaining(l))
				}
			}
			d.SetCost(i, cost)
		}
	}
}

// About returns d as the decision about r, a request with the same costs and limits.
// The two share their results.
func (d *Decision) About(r Request) Decision {
	return Decision{Allowed: d.Allowed, Degraded: d.Degraded, Request: r, single: d.single, list: d.list}
}

// copyTo returns a decision about r with copies of d's results. The charges of r are d's,
// with some added or removed at the end.
func (d *Decision) copyTo(r Request) Decision {
	part := NewDecision(r)
	part.Allowed, part.Degraded = d.Allowed, d.Degraded
	copy(part.Results(), d.Results())
	return part
}

// Results returns the results of the limits of all charges, in their order, for
// a backend to fill in.
func (d *Decision) Results() []Result {
	if d.list == nil && d.Request.single[0].Policy != nil {
		return d.single[:]
	}
	return d.list
}

// ResultsOf returns the results of charge i's limits.
func (d *Decision) ResultsOf(i int) []Result {
	first, charges := 0, d.Charges()
	for c := range charges[:i] {
		first += len(charges[c].Policy.Limits)
	}
	return d.Results()[first : first+len(charges[i].Policy.Limits)]
}

// Renewed returns d with the marks of its InFlight limits replaced by those in after, the
// answer to a settlement that renewed d: zero if nothing is held any more. Notes stay.
func (d *Decision) Renewed(after *Decision) Decision {
	clone := d.copyTo(d.Request) // d may share its results
	for i, c := range after.Charges() {
		for k, result := range after.ResultsOf(i) {
			if mark := &clone.ResultsOf(i)[k].Mark; c.Policy.Limits[k].Algorithm.Holds() {
				mark.At, mark.Fraction, mark.Generation = result.Mark.At, result.Mark.Fraction, result.Mark.Generation
			}
		}
	}
	return clone
}

// Result is a backend's answer about one limit. Programs read it as a decision.Status.
// Instants are in ms since the epoch.
type Result struct {
	Used    int64
	ResetAt int64
	RetryAt int64 // 0 if the charge fits, NeverFits if it never can
	NextAt  int64 // when one unit fits; 0 if it fits now or, as in a FixedWindow, at ResetAt
	StartAt int64 // when the charge may start, if it charged a LeakyBucket; else 0
	Mark    Mark

	// More is the number of units that may remain besides those that Used leaves: for a lease
	// by the store's last answer, for a pause at its end, NextAt. The client is not promised them.
	More int64
}

// NeverFits is the RetryAt of a Result if the charge exceeds the capacity.
const NeverFits = -1

// Remaining returns the units left of l, the limit that r reports on.
func (r *Result) Remaining(l *quota.Limit) int64 { return max(l.Capacity()-r.Used, 0) }

// Next returns when a charge of one unit to l, the limit that r reports on, fits if nothing
// else is charged, or 0 if it fits now.
func (r *Result) Next(l *quota.Limit) int64 {
	if r.NextAt == 0 && r.Used >= l.Capacity() {
		return r.ResetAt
	}
	return r.NextAt
}

// Reset returns the Reset of a decision.Status of l, the limit that r reports on.
func (r *Result) Reset(l *quota.Limit) int64 {
	if r.Used >= l.Capacity() {
		return r.Next(l)
	}
	return r.ResetAt
}

// Mark names the window, or the point of a bucket, that a charge went to. It is for the
// Settle of the backend that made it.
type Mark struct {
	At       int64 // ms since the epoch
	Fraction int64 // of a ms, in units of 1/quota; for the two buckets
	Note     uint8 // bits for the backend

	// Generation is the generation of the count. Each reset that finds charges changes it. It
	// is 0 before the first.
	Generation uint32
}
