package throttler

import "context"

// Backend keeps counts. Programs hold a [Throttler]; only a package that
// provides a backend, or wraps one, implements this. Package backendtest checks the contract.
//
// What every backend promises:
//
//  1. All or nothing. A take charges every limit of every charge or, if one
//     lacks room, none of them. A refused request drains nothing.
//  2. One round trip. One decision is one command to one server, or a share of
//     one, whatever the number of limits and whether allowed or refused.
//  3. The answer is whole: every limit is reported, none needs a second call.
//  4. Time is the application's. A decision uses Request.Now; a server's clock
//     is used only to expire stale data.
//  5. A window is live while now is before its reset-at. At that instant a new
//     one opens.
//  6. Reset-at is stored, never recomputed: the same in every answer about one
//     window, from every process, and it never goes back.
//  7. A refund names its window. It returns units to that window and to no
//     other, and never lifts remaining above the quota.
//  8. A peek writes nothing, and may be served by a replica that lags. A dead
//     window reads as no window.
//  9. No silent double charge. What may have reached the server is not sent
//     again; the error wraps [ErrUnavailable]. If nothing was sent for another
//     reason than a done context, it wraps [ErrNotSent] too.
//  10. A refusal is not an error.
//  11. Keys are opaque. Two different keys, or the same key under two policies
//     or in two partitions, never share a count.
//  12. Bad arguments fail before anything is charged.
//  13. A done context ends the call. The error wraps ctx.Err() and, if anything
//     may have been sent, [ErrUnavailable]. Without that, nothing was charged or
//     given back.
//
// Requests reach a backend validated, with every Cost and Partition filled in. A
// Backend must be safe for concurrent use and must return when ctx is done.
type Backend interface {
	// Take decides and, if all limits have room, charges.
	Take(ctx context.Context, r Request) (Decision, error)

	// Peek reports what Take would, and charges nothing.
	Peek(ctx context.Context, r Request) (Decision, error)

	// Settle replaces the costs of an allowed decision by the real ones: what
	// was charged too much returns to the window that was charged; what was
	// charged too little is charged at s.Now, room or no room. A refund is a
	// settlement at cost 0. The decision returned reports every limit
	// afterwards.
	Settle(ctx context.Context, s Settlement) (Decision, error)
}

// WindowTaker is a Backend that decides about a fixed window in less time than it
// takes to copy a Request and a Decision. A Throttler calls TakeWindow first where it
// is about one charge, whose partition is its key.
type WindowTaker interface {
	Backend

	// TakeWindow does what Take does with a charge of cost to key, if key has a
	// window under p, which is one FixedWindow, and returns what the Result says. If
	// ok is false, it has done nothing, and Take is to decide.
	//
	// It is asked before p is validated, because a window that is found under p's
	// name, and has the length that p says, shows that they are valid. The rest is.
	TakeWindow(now int64, p *Policy, key string, cost int64) (used, resetAt, retryAt int64, ok bool)

	// Itself returns the WindowTaker. A Backend that embeds it has another Take, which
	// is not to be bypassed, and is known by not being what Itself returns.
	Itself() Backend
}

// Request is one decision to make: see [NewRequest]. It is passed by value, and
// one charge needs no memory of its own.
//
// A throttler sends costs of 1 and more. A backend that wraps another may send 0:
// that asks for nothing, is allowed unless a limit is in debt, and opens no window.
type Request struct {
	Now int64 // ms since the epoch

	one  [1]Charge // the charge, if many is nil
	many []Charge
}

// NewRequest returns the request for a decision at now, in ms since the epoch,
// about charges: all with a Partition, and the same one, no two for one count. It
// keeps the slice if there are several. A backend that decides without counts
// answers about no charges.
func NewRequest(now int64, charges ...Charge) Request {
	if len(charges) == 1 {
		return Request{Now: now, one: [1]Charge{charges[0]}}
	}
	return Request{Now: now, many: charges}
}

// Charges returns the charges. They are not to be changed.
func (r *Request) Charges() []Charge {
	if r.many == nil && r.one[0].Policy != nil {
		return r.one[:]
	}
	return r.many
}

// Settlement corrects the costs of an allowed decision. A decision that was never
// taken, about charges of cost 0 as [NewDecision] returns it, can be settled upwards:
// that charges the costs at Now, room or no room.
type Settlement struct {
	Now     int64    // ms since the epoch
	Charged Decision // as the same backend returned it
	Costs   []int64  // real costs, one for each of Charged.Charges
}

// Result is a backend's answer about one limit. Users read it as a [Status].
// Instants are ms since the epoch.
type Result struct {
	Used    int64
	ResetAt int64
	RetryAt int64 // 0 if the charge fits, NeverFits if it never can
	StartAt int64 // of a LeakyBucket that was charged, else 0
	Mark    Mark
}

// NeverFits is the RetryAt of a Result whose charge exceeds the capacity.
const NeverFits = -1

// Remaining returns what is left of l, which r reports on.
func (r *Result) Remaining(l *Limit) int64 { return max(l.capacity()-r.Used, 0) }

// Mark names the window, or the point of a bucket, that a charge went to, for
// Refund and Settle.
type Mark struct {
	At       int64 // ms since the epoch
	Fraction int64 // of a ms, in units of 1/quota; for the two buckets
	Shared   bool  // the charge went to a count that several keys share
	Member   uint8 // which of several backends was charged, for a backend over them
}

// NewDecision returns the decision about r that a backend is about to make: not
// allowed, and with a zero Result for each limit.
func NewDecision(r Request) (d Decision) {
	d.Begin(&r)
	return d
}

// Begin makes d, a zero Decision, the one that [NewDecision] returns.
func (d *Decision) Begin(r *Request) {
	d.request = *r
	if r.many == nil && (r.one[0].Policy == nil || len(r.one[0].Policy.Limits) == 1) {
		return
	}
	limits, charges := 0, r.Charges()
	for i := range charges {
		limits += len(charges[i].Policy.Limits)
	}
	if limits > 1 {
		d.many = make([]Result, limits)
	}
}

// SetWindow makes d, which was begun about one charge, the decision that
// [WindowTaker.TakeWindow] has made.
func (d *Decision) SetWindow(used, resetAt, retryAt int64) {
	result := &d.one[0]
	result.Used, result.ResetAt, result.RetryAt = used, resetAt, retryAt
	if retryAt == 0 {
		d.Allowed = true
		result.Mark.At = resetAt
	}
}

// Request returns what was decided about.
func (d *Decision) Request() Request { return d.request }

// About returns d as the decision about r, a request of the same costs and limits.
// The two share their results.
func (d *Decision) About(r Request) Decision {
	return Decision{Allowed: d.Allowed, request: r, one: d.one, many: d.many}
}

// Results returns the results of the limits of all charges, in their order, for
// a backend to fill in.
func (d *Decision) Results() []Result {
	if d.many == nil && d.request.one[0].Policy != nil {
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
