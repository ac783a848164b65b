package driver

import (
	"slices"

	"github.com/weir-go/weir/quota"
)

// Decision is a backend's whole answer to a request or a settlement. Users read it as
// a decision.Decision.
type Decision struct {
	// Allowed reports whether every limit had room.
	Allowed bool

	// Degraded reports that the shared counts could not be reached.
	Degraded bool

	// Request is what was decided about.
	Request Request

	// What is said of the limits of all charges, in their order: of one limit in
	// one, of several in many. Most decisions are about one, and need no memory
	// but the caller's.
	one  [1]Result
	many []Result

	// To a multiple of 16 bytes: a copy of another size writes its last words twice, and a
	// copy of that copy waits for them.
	_ int64
}

// NewDecision returns the decision about r that a backend is about to make: not
// allowed, and with a zero Result for each limit.
func NewDecision(r Request) (d Decision) {
	d.Request = r
	if r.many == nil && (r.one[0].Policy == nil || len(r.one[0].Policy.Limits) == 1) {
		return d
	}
	limits, charges := 0, r.Charges()
	for i := range charges {
		limits += len(charges[i].Policy.Limits)
	}
	if limits > 1 {
		d.many = make([]Result, limits)
	}
	return d
}

// SetWindow makes d, whose Request is a take under one FixedWindow, allowed if retryAt is
// 0, and fills in its Result. The arguments are the Result's.
func (d *Decision) SetWindow(used, resetAt, retryAt int64) {
	result := &d.one[0]
	result.Used, result.ResetAt, result.RetryAt = used, resetAt, retryAt
	if retryAt == 0 {
		d.Allowed = true
		result.Mark.At = resetAt
	}
}

// Charges returns the charges decided about. They are not to be changed.
func (d *Decision) Charges() []quota.Charge { return d.Request.Charges() }

// SetCost makes cost what charge i was charged, or would be.
func (d *Decision) SetCost(i int, cost int64) {
	charges := d.Charges()
	if charges[i].Cost == cost {
		return
	}
	if d.Request.many != nil { // which the caller of Take has, too
		d.Request.many = slices.Clone(charges)
	}
	d.Charges()[i].Cost = cost
}

// Grant decides d, whose results say which limits have room for what the modes of the
// charges ask: see [quota.Mode.Asks]. If it is allowed, its costs become what a take
// charges.
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
				if l := &c.Policy.Limits[k]; !l.Algorithm.Holds() { // which has room for it, whatever it costs
					cost = min(cost, r.Remaining(l))
				}
			}
			d.SetCost(i, cost)
		}
	}
}

// About returns d as the decision about r, a request of the same costs and limits.
// The two share their results.
func (d *Decision) About(r Request) Decision {
	return Decision{Allowed: d.Allowed, Degraded: d.Degraded, Request: r, one: d.one, many: d.many}
}

// copyTo returns a decision about r, which has more of d's charges or fewer at its end, with
// copies of d's results.
func (d *Decision) copyTo(r Request) Decision {
	own := NewDecision(r)
	own.Allowed, own.Degraded = d.Allowed, d.Degraded
	copy(own.Results(), d.Results())
	return own
}

// Results returns the results of the limits of all charges, in their order, for
// a backend to fill in.
func (d *Decision) Results() []Result {
	if d.many == nil && d.Request.one[0].Policy != nil {
		return d.one[:]
	}
	return d.many
}

// ResultsOf returns the results of charge i's limits.
func (d *Decision) ResultsOf(i int) []Result {
	first, charges := 0, d.Charges()
	for c := range charges[:i] {
		first += len(charges[c].Policy.Limits)
	}
	return d.Results()[first : first+len(charges[i].Policy.Limits)]
}

// Renewed returns d with other marks of what it has in flight, from after, the answer to
// a settlement that renewed d. They are none if nothing is held any more. Notes stay.
func (d *Decision) Renewed(after *Decision) Decision {
	own := d.copyTo(d.Request) // d's results may be others' too
	for i, c := range after.Charges() {
		for k, result := range after.ResultsOf(i) {
			if mark := &own.ResultsOf(i)[k].Mark; c.Policy.Limits[k].Algorithm.Holds() {
				mark.At, mark.Fraction, mark.Generation = result.Mark.At, result.Mark.Fraction, result.Mark.Generation
			}
		}
	}
	return own
}

// Result is a backend's answer about one limit. Users read it as a decision.Status.
// Instants are ms since the epoch.
type Result struct {
	Used    int64
	ResetAt int64
	RetryAt int64 // 0 if the charge fits, NeverFits if it never can
	NextAt  int64 // when one unit fits, where none does now; 0 if that is at ResetAt, as in a FixedWindow
	StartAt int64 // of a LeakyBucket that was charged, else 0
	Mark    Mark

	// More is the units that may remain beyond what Used leaves: of a lease by the store's last
	// answer, and of a pause when it ends, at NextAt. They are not promised to the client.
	More int64
}

// NeverFits is the RetryAt of a Result whose charge exceeds the capacity.
const NeverFits = -1

// Remaining returns what is left of l, which r reports on.
func (r *Result) Remaining(l *quota.Limit) int64 { return max(l.Capacity()-r.Used, 0) }

// Next returns when a charge of one unit to l, which r reports on, fits if nothing else
// is charged; 0 if it fits now.
func (r *Result) Next(l *quota.Limit) int64 {
	if r.NextAt == 0 && r.Used >= l.Capacity() {
		return r.ResetAt
	}
	return r.NextAt
}

// Mark names the window, or the point of a bucket, that a charge went to. It is for the
// Settle of the backend that made it.
type Mark struct {
	At       int64 // ms since the epoch
	Fraction int64 // of a ms, in units of 1/quota; for the two buckets
	Note     uint8 // bits of the backend's own: see NoteShift

	// Generation is that of the count: another one since each reset that found charges, 0
	// before the first.
	Generation uint32
}

// NoteShift is where the bits of a Note begin that belong to a backend which divides
// charges among several others. Those below belong to the one that keeps the count. Each
// leaves the other's alone.
const NoteShift = 4
