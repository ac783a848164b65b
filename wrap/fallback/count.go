package fallback

import (
	"slices"
	"time"

	"github.com/weir-go/weir/algorithm"
	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// count is what this process knows of the count of one (policy, key).
type count struct {
	keyed.Entry

	// What the backend last said, when, and of which limits.
	limits   []quota.Limit
	readings []reading
	saidAt   int64
	paused   int64 // until then the backend refuses all, whatever is left

	// state counts under the shares, from what was said: what was allowed here since.
	// It is nil until a local decision needs it, and again when the backend has
	// spoken.
	state *algorithm.State

	// spent counts, under the shares, what was allowed here and the backend may never
	// learn of. It is nil if nothing was. Without it, a backend that answers now and
	// then would give out a share with each of its answers.
	spent *algorithm.State

	// What is to be charged to the backend, and as what; outage is nil if nothing is.
	outage    *outage
	charge    quota.Charge
	pending   []units
	replaying chan struct{} // closed when the replay in progress ends; nil if there is none

	// For the table: the part of the quota that is used, and until when.
	used   float32
	until  int64
	busy   bool // a decision is being made about it
	pooled bool // new keys are counted here together
}

// reading is what the backend said of one limit.
type reading struct{ used, resetAt int64 }

// units were allowed here, and are to be charged to the backend as if at that time.
type units struct {
	from  int64 // when the first of them were allowed
	at    int64
	cost  int64
	until int64 // they count in no window any more from then on
}

// say notes what the backend said of limits at now. A lease says that all but its own units is
// used, and a pause that all is; both say how many more of them there are.
func (c *count) say(limits []quota.Limit, now int64, results []driver.Result) {
	c.about(limits)
	c.saidAt, c.state, c.paused = now, nil, 0
	c.used, c.until = 0, now
	for i := range results {
		used := max(results[i].Used-results[i].More, 0)
		c.readings[i].used, c.readings[i].resetAt = used, results[i].ResetAt
		c.note(used, limits[i].Capacity(), results[i].ResetAt)
		if next := results[i].NextAt; results[i].More > 0 && next > now {
			c.paused = max(c.paused, next)
			c.note(1, 1, next) // it is not to be forgotten
		}
	}
}

// reset forgets what is known and what was allowed here. The state remains: by it, the refund
// of an earlier charge is known.
func (c *count) reset(now int64) {
	c.limits, c.readings, c.spent, c.pending, c.used, c.paused = nil, nil, nil, nil, 0, 0
	if c.state != nil {
		c.state.Reset(now)
	}
}

// about makes c about limits. Of others it forgets what was said.
func (c *count) about(limits []quota.Limit) {
	if slices.Equal(c.limits, limits) {
		return
	}
	c.limits = limits
	c.readings = make([]reading, len(limits))
}

// note makes the part of a quota that is used known to the table.
func (c *count) note(used, capacity, resetAt int64) {
	c.used = max(c.used, float32(used)/float32(capacity))
	c.until = max(c.until, resetAt)
}

// stateAt returns the state to decide about at now.
func (c *count) stateAt(limits []quota.Limit, processes, now int64) *algorithm.State {
	if c.state != nil {
		return c.state
	}
	if c.limits == nil {
		c.about(limits)
	}
	// Under the limits of then; the state's algorithms know what that is under others.
	limits = c.limits
	shares, results, at := sharesOf(limits, processes), make([]driver.Result, len(limits)), c.saidAt
	if c.spent != nil {
		c.spent.Evaluate(shares, 0, now, results)
		at = now // or a bucket would have drained what was spent since
	}
	for i := range results {
		if r, result := &c.readings[i], &results[i]; now < r.resetAt {
			result.Used += usedOfShare(r.used, limits[i].Capacity(), shares[i].Capacity(), processes)
			result.ResetAt = max(result.ResetAt, r.resetAt)
		}
	}
	s := algorithm.Resume(shares, at, results)
	s.Pause(c.paused, now)
	c.state = &s
	return c.state
}

// share returns what one of n processes may allow of l.
func share(l *quota.Limit, n int64) quota.Limit {
	s := *l
	s.Quota = ceilDiv(l.Quota, n)
	if l.Algorithm.Drains() {
		s.Burst = ceilDiv(l.Capacity(), n)
	}
	return s
}

// usedOfShare returns how much of a share is used if used is of the whole: what
// remains of the share is the share of what remains.
func usedOfShare(used, capacity, ofShare, processes int64) int64 {
	if used > capacity { // a debt: each process waits out its part
		return ofShare + (used-capacity)/processes
	}
	return max(ofShare-ceilDiv(capacity-used, processes), 0)
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

// spend notes units that were allowed here and that the backend may never learn of.
func (c *count) spend(limits []quota.Limit, cost, processes, now int64) {
	if c.spent == nil {
		c.spent = new(algorithm.State)
	}
	c.spent.Charge(sharesOf(limits, processes), cost, now, make([]driver.Result, len(limits)))
	c.spent.Coarsen(maxLog)
}

// Bounds of what is kept of one count.
const (
	maxPending = 16 // charges at different times
	maxLog     = 64 // entries of a sliding log
)

// journal notes that cost was allowed at now under limits and is to be charged to the
// backend later. results are what the shares say of it.
func (c *count) journal(limits []quota.Limit, cost, now int64, results []driver.Result) {
	u := units{from: now, at: now, cost: cost, until: now}
	opened, grain, atOnce := int64(0), int64(quota.MaxWindow/time.Millisecond), true
	for i := range results {
		window := int64(limits[i].Length() / time.Millisecond)
		u.until = max(u.until, results[i].ResetAt)
		opened = max(opened, results[i].ResetAt-window)
		grain = min(grain, window/maxPending)
		atOnce = atOnce && limits[i].Algorithm.ResetsAtOnce()
	}
	c.pending = slices.DeleteFunc(c.pending, func(p units) bool { return p.until <= now })
	last := len(c.pending) - 1
	switch {
	case last < 0:
	case atOnce && opened <= c.pending[last].at && c.pending[last].at <= now:
		// The same windows, which are to open when they did here.
		c.pending[last].cost += cost
		return
	case !atOnce && now-c.pending[last].at < grain:
		// Counted a little longer, never shorter.
		p := &c.pending[last]
		p.from, p.at = min(p.from, now), max(p.at, now)
		p.cost, p.until = p.cost+cost, max(p.until, u.until)
		return
	case len(c.pending) == maxPending:
		first, second := &c.pending[0], &c.pending[1]
		second.from, second.cost = min(first.from, second.from), second.cost+first.cost
		if atOnce && first.until == second.until {
			second.at = first.at // the long window, which is all that counts of them
		}
		c.pending = slices.Delete(c.pending, 0, 1)
	}
	c.pending = append(c.pending, u)
}

// forgive takes cost that was charged at takenAt off what is to be handed over, unless
// that was handed over.
func (c *count) forgive(cost, takenAt int64) {
	for i := len(c.pending) - 1; i >= 0; i-- {
		if p := &c.pending[i]; p.from <= takenAt {
			p.cost = max(p.cost-cost, 0)
			return
		}
	}
}
