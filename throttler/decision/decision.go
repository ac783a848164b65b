package decision

import (
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Decision is the whole answer to a Take, a Peek, a Refund or a Settle. The zero value
// comes with an error: it is about no charges, and not Allowed.
type Decision struct {
	// Allowed reports whether every limit had room. If so, a Take has charged them all;
	// otherwise it has charged nothing. A Peek reports whether a Take would be allowed.
	Allowed bool

	// Degraded reports that the shared counts could not be reached: Used and Remaining
	// are as known to this process, or to a replica that may lag behind.
	Degraded bool

	// Blocked reports that the table of policies blocks a key, so that no backend was
	// asked. The decision is about the charges of blocked keys alone, and reports their
	// limits as used up until the block ends.
	Blocked bool

	// Added is how many charges, the last ones of Charges, Take or Peek added for parents
	// of the policies charged. They are settled with the charges that they are added for.
	Added uint8

	driver driver.Decision
}

// FromDriver returns a backend's decision as programs read it.
func FromDriver(d driver.Decision) Decision {
	return Decision{Allowed: d.Allowed, Degraded: d.Degraded, driver: d}
}

// Driver returns the backend's decision, in plain numbers. All methods read it, and
// Allowed and Degraded are copied from it. It is for a throttler, which has it filled in
// place and settles it, and for packages that write headers.
func (d *Decision) Driver() *driver.Decision { return &d.driver }

// At returns the instant of the decision, in whole milliseconds, UTC.
func (d *Decision) At() time.Time { return instant(d.driver.Request.Now) }

// Charges returns the charges decided about, complete, with charges to one count added
// up. It is empty if the decision was made without counts, as in an outage, or if the keys
// are unlimited. The caller must not change it.
func (d *Decision) Charges() []quota.Charge { return d.driver.Charges() }

// NumLimits returns the number of limits decided about, over all charges.
func (d *Decision) NumLimits() int { return len(d.driver.Results()) }

// Limit returns the status of limit i, below NumLimits, in the order of the charges and
// of their policies' limits.
func (d *Decision) Limit(i int) (s Status) {
	r := &d.driver.Results()[i]
	c, index := d.find(i)
	l := &c.Policy.Limits[index]
	// Field by field, and here: a function that sets s would make *d escape to the heap, and a
	// function that returns s would copy it once more.
	s.Policy, s.Key, s.Cost, s.Index, s.Limit = c.Policy, c.Key, l.Units(c.Cost), index, *l
	s.Used, s.Remaining, s.ResetAt, s.hidden = r.Used, r.Remaining(l), instant(r.ResetAt), r.More
	switch r.RetryAt {
	case 0:
	case driver.NeverFits:
		s.Refused, s.RetryAt = true, Never
	default:
		s.Refused, s.RetryAt = true, instant(r.RetryAt)
	}
	if next := r.Next(l); next != 0 {
		s.NextAt = instant(next)
	}
	if r.StartAt != 0 {
		s.StartAt = instant(r.StartAt)
	}
	return s
}

// find returns the charge that limit i belongs to, and its index in the charge's
// policy.
func (d *Decision) find(i int) (c *quota.Charge, index int) {
	charges := d.Charges()
	for c := range charges {
		n := len(charges[c].Policy.Limits)
		if i < n {
			return &charges[c], i
		}
		i -= n
	}
	panic("decision: more results than limits")
}

// Limits ranges over the status of each limit.
func (d *Decision) Limits() iter.Seq2[int, Status] {
	return func(yield func(int, Status) bool) {
		for i := range d.NumLimits() {
			if !yield(i, d.Limit(i)) {
				return
			}
		}
	}
}

// Binding returns the status to report if only one can be. Of the limits that refused, it
// is the last to have room again. If no limit refused, it is the limit that this charge,
// repeated, would exhaust first; of several, the one with the latest Reset. It is the zero
// Status if nothing was decided.
func (d *Decision) Binding() (s Status) {
	if d.NumLimits() == 0 {
		return s
	}
	s = d.Limit(0)
	for i := 1; i < d.NumLimits(); i++ {
		if o := d.Limit(i); o.BindsBefore(&s) {
			s = o
		}
	}
	return s
}

// Reported is Binding among the policies that clients may see. It returns false if all are Hidden,
// or nothing was decided.
func (d *Decision) Reported() (s Status, ok bool) {
	for i := range d.NumLimits() {
		if c, _ := d.find(i); c.Policy.Hidden {
			continue
		}
		if !ok {
			s, ok = d.Limit(i), true // most decisions: without a copy
		} else if o := d.Limit(i); o.BindsBefore(&s) {
			s = o
		}
	}
	return s, ok
}

// RetryAt returns the earliest instant at which the same charges would fit, if
// nothing else is charged: the latest RetryAt of the limits that refused. It is zero
// if the decision is Allowed, and [Never] if the charges can never fit.
func (d *Decision) RetryAt() time.Time {
	latest, results := int64(0), d.driver.Results()
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
// latest StartAt of its buckets, or At if no bucket has one.
func (d *Decision) StartAt() time.Time {
	latest, results := d.driver.Request.Now, d.driver.Results()
	for i := range results {
		latest = max(latest, results[i].StartAt)
	}
	return instant(latest)
}

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

func instant(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
