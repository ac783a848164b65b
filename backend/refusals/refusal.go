package refusals

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/throttler"
)

// MaxBytes is the most memory that one refusal takes, in bytes. What would take
// more, for keys of some kB or more than a dozen limits, is not remembered.
const MaxBytes = 4096

// refusal is a remembered decision. All but used is as it was made, so that it is
// read without a lock.
type refusal struct {
	id     uint64 // the hash of its charges
	asked  time.Duration
	until  time.Time // the first time that it names
	idle   bool      // a limit of it had nothing to count: its ResetAt is the time of the take
	d      throttler.Decision
	counts []count // of each charge

	used atomic.Bool // it has answered a take
}

// count is what a refusal knows of the count of a charge.
type count struct {
	at      *version
	as      versionAt // what it was before the backend was asked
	refused bool
}

// newRefusal returns what is remembered of d, which the backend made from before
// and asked on. It is nil if d takes too much memory.
func newRefusal(id uint64, d *throttler.Decision, asked time.Duration, before *snapshot) *refusal {
	if bytesOf(d) > MaxBytes {
		return nil
	}
	f := &refusal{id: id, asked: asked, until: throttler.Never, d: *d}
	// Copies, in which keys are alone: the caller's may be parts of long strings.
	f.d.Charges = slices.Clip(slices.Clone(d.Charges))
	f.d.Limits = slices.Clip(slices.Clone(d.Limits))
	f.counts = make([]count, len(d.Charges))
	for i := range f.d.Charges {
		c := &f.d.Charges[i]
		samePartition := c.Partition == c.Key
		c.Key = strings.Clone(c.Key)
		if c.Partition = c.Key; !samePartition {
			c.Partition = strings.Clone(d.Charges[i].Partition)
		}
		f.counts[i] = count{at: before[i].at, as: before[i].as}
		statuses := algorithm.StatusesOf(&f.d, i)
		for j := range statuses {
			s := &statuses[j]
			s.Key = c.Key
			f.counts[i].refused = f.counts[i].refused || s.Refused
			f.note(s)
		}
	}
	return f
}

// note notes the times that s names.
func (f *refusal) note(s *throttler.Status) {
	if s.Refused && s.RetryAt.Before(f.until) {
		f.until = s.RetryAt
	}
	switch {
	case !s.ResetAt.After(f.d.At):
		f.idle = true
	case s.ResetAt.Before(f.until):
		f.until = s.ResetAt
	}
}

// bytesOf returns how much memory a refusal with decision d takes, and what it
// keeps alive.
func bytesOf(d *throttler.Decision) int {
	n := int(unsafe.Sizeof(refusal{}))
	for i := range d.Charges {
		c := &d.Charges[i]
		n += int(unsafe.Sizeof(*c)+unsafe.Sizeof(count{})+unsafe.Sizeof(*c.Policy)) + len(c.Policy.Name) + len(c.Key)
		if c.Partition != c.Key {
			n += len(c.Partition)
		}
	}
	return n + len(d.Limits)*int(unsafe.Sizeof(throttler.Status{})+unsafe.Sizeof(throttler.Limit{}))
}

// isOf reports whether f is a refusal of exactly these charges.
func (f *refusal) isOf(charges []throttler.Charge) bool {
	return slices.EqualFunc(f.d.Charges, charges, func(a, b throttler.Charge) bool {
		return a.Key == b.Key && a.Cost == b.Cost && a.Partition == b.Partition && samePolicy(a.Policy, b.Policy)
	})
}

// samePolicy reports whether a and b ask the same: programs may make a Policy
// for each request.
func samePolicy(a, b *throttler.Policy) bool {
	return a == b || a.Name == b.Name && slices.Equal(a.Limits, b.Limits)
}

// holds reports whether the backend would refuse r, of the same charges, for all
// that b knows.
func (f *refusal) holds(r *throttler.Request, b *Backend) bool {
	return !r.Now.Before(f.d.At) && r.Now.Before(f.until) && b.elapsed()-f.asked < b.maxAge && !f.overtaken()
}

// overtaken reports whether a count has changed in a way that ends f. Not every
// charge to a count that had room does: else a busy organization would end the
// refusals of all its users.
func (f *refusal) overtaken() bool {
	for i := range f.counts {
		c := &f.counts[i]
		if c.at.changed.Load() != c.as.changed || c.refused && c.at.taken.Load() != c.as.taken {
			return true
		}
	}
	return false
}

// answer returns f as the decision about r. Its Limits are shared, as those of
// all copies of a decision are.
func (f *refusal) answer(r *throttler.Request) throttler.Decision {
	d := f.d
	d.At, d.Charges = r.Now, r.Charges
	moved := f.idle && !r.Now.Equal(f.d.At)
	for i := range r.Charges {
		moved = moved || r.Charges[i].Policy != f.d.Charges[i].Policy
	}
	if !moved {
		return d
	}
	d.Limits = slices.Clip(slices.Clone(f.d.Limits))
	for i := range d.Charges {
		statuses := algorithm.StatusesOf(&d, i)
		for j := range statuses {
			s := &statuses[j]
			s.Policy = d.Charges[i].Policy
			if !s.ResetAt.After(f.d.At) {
				s.ResetAt = r.Now
			}
		}
	}
	return d
}
