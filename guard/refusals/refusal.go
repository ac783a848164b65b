package refusals

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// MaxBytes is the most memory that one refusal takes, in bytes. A refusal that would
// take more, with keys of some kB or more than a dozen limits, is not remembered.
const MaxBytes = 4096

// refusal is a remembered decision. Only used changes, so that the rest is read
// without a lock.
type refusal struct {
	id     uint64 // the hash of its charges
	began  time.Duration
	until  int64 // the first time that it names, in ms
	idle   bool  // a limit of it had nothing to count: its ResetAt is the time of the take
	d      driver.Decision
	counts []version // of each charge

	used atomic.Bool // it has answered a take
}

// newRefusal returns the refusal to remember for d, which the backend made after the time
// began, and after before was read. It returns nil if d takes too much memory.
func newRefusal(id uint64, d *driver.Decision, began time.Duration, before []version) *refusal {
	if bytesOf(d) > MaxBytes {
		return nil
	}
	charges, r := keyed.Clone(d.Charges()), d.Request
	f := &refusal{id: id, began: began, until: math.MaxInt64, d: driver.NewDecision(driver.NewRequest(r.Now, charges...))}
	copy(f.d.Results(), d.Results())
	f.counts = slices.Clone(before)
	for _, result := range f.d.Results() {
		f.note(&result, r.Now)
	}
	return f
}

// note notes the times in result, of a decision at now.
func (f *refusal) note(result *driver.Result, now int64) {
	if result.RetryAt > 0 {
		f.until = min(f.until, result.RetryAt)
	}
	if result.NextAt > 0 {
		f.until = min(f.until, result.NextAt)
	}
	if result.ResetAt <= now {
		f.idle = true
	} else {
		f.until = min(f.until, result.ResetAt)
	}
}

// bytesOf returns how much memory a refusal with decision d takes, with the memory
// that it keeps alive.
func bytesOf(d *driver.Decision) int {
	n := int(unsafe.Sizeof(refusal{}))
	charges := d.Charges()
	for i := range charges {
		c := &charges[i]
		n += int(unsafe.Sizeof(*c)+unsafe.Sizeof(version{})+unsafe.Sizeof(*c.Policy)) + len(c.Policy.Name) + len(c.Key)
		if c.Partition != c.Key {
			n += len(c.Partition)
		}
	}
	return n + len(d.Results())*int(unsafe.Sizeof(driver.Result{})+unsafe.Sizeof(quota.Limit{}))
}

// isOf reports whether f is a refusal of exactly these charges.
func (f *refusal) isOf(charges []quota.Charge) bool {
	return slices.EqualFunc(f.d.Charges(), charges, func(a, b quota.Charge) bool {
		return a.Key == b.Key && a.Cost == b.Cost && a.Mode == b.Mode && a.Partition == b.Partition && samePolicy(a.Policy, b.Policy)
	})
}

// samePolicy reports whether a and b have the same name and limits: programs may make
// a Policy for each request.
func samePolicy(a, b *quota.Policy) bool {
	return a == b || a.Name == b.Name && slices.Equal(a.Limits, b.Limits)
}

// holds reports whether f is younger than maxAge and, as far as b knows, the backend
// would refuse r, which has the same charges.
func (f *refusal) holds(r *driver.Request, b *Backend, maxAge time.Duration) bool {
	return r.Now >= f.madeAt() && r.Now < f.until && b.elapsed()-f.began < maxAge &&
		!slices.ContainsFunc(f.counts, func(s version) bool { return s.changed() })
}

func (f *refusal) madeAt() int64 {
	r := f.d.Request
	return r.Now
}

// answer makes d the decision about r, a refusal by f. Several results are shared, as
// between copies of a decision.
func (f *refusal) answer(r *driver.Request, d *driver.Decision) {
	madeAt := f.madeAt()
	if !f.idle || r.Now == madeAt {
		*d = f.d.About(*r)
		return
	}
	*d = driver.NewDecision(*r)
	results := d.Results()
	copy(results, f.d.Results())
	for i := range results {
		if results[i].ResetAt <= madeAt {
			results[i].ResetAt = r.Now
		}
	}
}
