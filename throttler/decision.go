package throttler

import (
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/throttler/driver"
)

// Never is the RetryAt of a charge that can never fit.
var Never = time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC)

// Decision is the whole answer to a Take, a Peek, a Refund or a Settle. The zero
// value is the one that comes with an error: nothing was decided.
type Decision struct {
	// Allowed reports whether every limit had room. A Take has charged all of them
	// then, and else none. A Peek reports it of a Take of the same charges.
	Allowed bool

	// Degraded reports that the shared counts could not be reached: what is used and
	// remains is what this process, or a replica that may lag behind, knows.
	Degraded bool

	decision driver.Decision

	// receipt is nil if the decision was not made in this process.
	receipt *receipt
}

// FromDriver returns a backend's decision as users read it. It cannot be refunded or
// settled.
func FromDriver(d driver.Decision) Decision { return decided(d, nil) }

func decided(d driver.Decision, r *receipt) Decision {
	return Decision{Allowed: d.Allowed, Degraded: d.Degraded, decision: d, receipt: r}
}

// Driver returns the decision as the backend made it, in plain numbers.
func (d *Decision) Driver() *driver.Decision { return &d.decision }

// At returns the instant of the decision, in whole milliseconds, UTC.
func (d *Decision) At() time.Time { return instant(d.decision.Request.Now) }

// String returns the decision in words, without its keys.
func (d Decision) String() string {
	var b strings.Builder
	if b.WriteString("allowed"); !d.Allowed {
		b.Reset()
		b.WriteString("refused")
	}
	for i, s := range d.Limits() {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, " %s used %d of %d until %s", s.Policy.Name, s.Used, s.Limit.Capacity(), s.ResetAt.Format(time.RFC3339Nano))
		if s.Refused {
			fmt.Fprintf(&b, ", again at %s", s.RetryAt.Format(time.RFC3339Nano))
		}
	}
	return b.String()
}

// Charges returns the charges decided about, complete, and those to one count added
// up. They are not to be changed.
func (d *Decision) Charges() []Charge { return d.decision.Charges() }

// NumLimits returns the number of limits decided about, over all charges.
func (d *Decision) NumLimits() int { return len(d.decision.Results()) }

// Limit returns what the decision says of limit i, below NumLimits, in the order of
// the charges and of their policies' limits.
func (d *Decision) Limit(i int) (s Status) {
	r := &d.decision.Results()[i]
	c, l := d.limit(i)
	// Field by field, and here: a function that sets s would move what d points to to
	// the heap, and one that returns it would copy it once more.
	s.Policy, s.Key, s.Cost, s.Limit = c.Policy, c.Key, c.Cost, *l
	s.Used, s.Remaining, s.ResetAt = r.Used, r.Remaining(l), instant(r.ResetAt)
	switch r.RetryAt {
	case 0:
	case driver.NeverFits:
		s.Refused, s.RetryAt = true, Never
	default:
		s.Refused, s.RetryAt = true, instant(r.RetryAt)
	}
	if r.StartAt != 0 {
		s.StartAt = instant(r.StartAt)
	}
	return s
}

// limit returns limit i, and the charge whose policy has it.
func (d *Decision) limit(i int) (*Charge, *Limit) {
	charges := d.Charges()
	for c := range charges {
		limits := charges[c].Policy.Limits
		if i < len(limits) {
			return &charges[c], &limits[i]
		}
		i -= len(limits)
	}
	panic("throttler: a decision has more results than limits")
}

// Limits ranges over what the decision says of each limit.
func (d *Decision) Limits() iter.Seq2[int, Status] {
	return func(yield func(int, Status) bool) {
		for i := range d.NumLimits() {
			if !yield(i, d.Limit(i)) {
				return
			}
		}
	}
}

// Binding returns the status to report where there is room for one: of the limits
// that refused, the one that frees last; else the one that this charge, repeated,
// would exhaust first.
func (d *Decision) Binding() Status {
	if d.NumLimits() == 0 {
		return Status{}
	}
	return d.Limit(d.binding())
}

// binding returns the index of the limit that Binding reports.
func (d *Decision) binding() int {
	n := d.NumLimits()
	if n <= 1 {
		return 0
	}
	binding, status := 0, d.Limit(0)
	for i := 1; i < n; i++ {
		if s := d.Limit(i); s.BindsBefore(&status) {
			binding, status = i, s
		}
	}
	return binding
}

// RetryAt returns the earliest instant at which the same charges would fit, if
// nothing else is charged: the latest RetryAt of the limits that refused. It is zero
// if the decision is Allowed, and [Never] if the charges can never fit.
func (d *Decision) RetryAt() time.Time {
	latest, results := int64(0), d.decision.Results()
	for i := range results {
		if results[i].RetryAt == driver.NeverFits {
			return Never
		}
		latest = max(latest, results[i].RetryAt)
	}
	if latest == 0 {
		return time.Time{}
	}
	return instant(latest)
}

// StartAt returns the instant at which an allowed request may start: the
// latest StartAt of its leaky buckets, or At if there is none.
func (d *Decision) StartAt() time.Time {
	latest, results := d.decision.Request.Now, d.decision.Results()
	for i := range results {
		latest = max(latest, results[i].StartAt)
	}
	return instant(latest)
}

// receipt lets a charge be given back or settled once. Copies of a Decision
// share it.
type receipt struct{ done atomic.Bool }

// tookNothing is the receipt of every peek: there is nothing to give back.
var tookNothing = func() *receipt {
	r := new(receipt)
	r.done.Store(true)
	return r
}()
