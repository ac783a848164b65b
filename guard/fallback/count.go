package fallback

import (
	"slices"
	"time"

	"github.com/weir-go/weir/internal/keyed"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// count is this process's view of the count of one (policy, key).
type count struct {
	keyed.Entry

	// The backend's last answer, its time, and its limits.
	limits   []quota.Limit
	readings []reading
	saidAt   int64
	paused   int64 // until then the backend refuses everything

	// state counts under the shares: the backend's answer, and units allowed here since. It
	// is nil until a local decision needs it, and again when the backend has answered.
	state *algorithm.State

	// spent counts, under the shares, units allowed here that the backend may never learn
	// of. It may be nil. Without it, a backend that answers now and then would give out a
	// share with each of its answers.
	spent *algorithm.State

	// The units to charge to the backend, and their charge; outage is nil if the count isn't held.
	outage    *outage
	charge    quota.Charge
	pending   units
	replaying chan struct{} // closed when the replay in progress ends, or nil
	refunds   []refund      // of units that the replay in progress may hand over

	// For the table: the part of the quota that is used, and until when.
	used   float32
	until  int64
	busy   bool // a decision is being made about it
	pooled bool // new keys are counted here together
}

// reading is the backend's answer about one limit.
type reading struct{ used, resetAt int64 }

// units were allowed here, and must be charged to the backend, all as if at the time at. The
// zero value is none.
type units struct {
	from    int64 // when the first of them were allowed
	instant int64
	cost    int64 // the sum, or less if some no longer count
	until   int64 // from then on they count in no window
}

// refund is a refund of cost, which was charged at takenAt.
type refund struct{ cost, takenAt int64 }

// say notes the backend's answer about limits at now. A lease reports all units except its own
// as used, and a pause reports all; both report how many more may remain.
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
			c.note(1, 1, next) // it must not be forgotten
		}
	}
}

// reset forgets the backend's answer and the units allowed here. It keeps the state, which
// recognizes the refund of an earlier charge.
func (c *count) reset(now int64) {
	c.limits, c.readings, c.spent, c.pending, c.used, c.paused = nil, nil, nil, units{}, 0, 0
	if c.state != nil {
		c.state.Reset(now)
	}
}

// about makes c about limits. If they are other limits, it forgets the readings.
func (c *count) about(limits []quota.Limit) {
	if slices.Equal(c.limits, limits) {
		return
	}
	c.limits = limits
	c.readings = make([]reading, len(limits))
}

// note notes the used part of a quota for the table.
func (c *count) note(used, capacity, resetAt int64) {
	c.used = max(c.used, float32(used)/float32(capacity))
	c.until = max(c.until, resetAt)
}

// stateAt returns the state for a decision at now.
func (c *count) stateAt(limits []quota.Limit, processes, now int64) *algorithm.State {
	if c.state != nil {
		return c.state
	}
	if c.limits == nil {
		c.about(limits)
	}
	// Under the limits of the answer; the state's algorithms convert them to others.
	limits = c.limits
	shares, results, instant := sharesOf(limits, processes), make([]driver.Result, len(limits)), c.saidAt
	if c.spent != nil {
		c.spent.Evaluate(shares, 0, now, results)
		instant = now // otherwise a bucket would have drained units spent since
	}
	for i := range results {
		if r, result := &c.readings[i], &results[i]; now < r.resetAt {
			result.Used += usedOfShare(r.used, limits[i].Capacity(), shares[i].Capacity(), processes)
			result.ResetAt = max(result.ResetAt, r.resetAt)
		}
	}
	s := algorithm.Resume(shares, instant, results)
	s.Pause(c.paused, now)
	c.state = &s
	return c.state
}

// share returns the share of l that one of n processes may allow.
func share(l *quota.Limit, n int64) quota.Limit {
	s := *l
	s.Quota = ceilDiv(l.Quota, n)
	if l.Algorithm.Drains() {
		s.Burst = ceilDiv(l.Capacity(), n)
	}
	return s
}

// usedOfShare returns how much of a share is used if used is the use of the whole. The share
// has its part of the remaining units.
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

// maxLog bounds the entries of a sliding log.
const maxLog = 64

// journal notes that cost was allowed at now under limits and must be charged to the backend
// later. results are the results under the shares. No more than the used units can count.
func (c *count) journal(limits []quota.Limit, cost, now int64, results []driver.Result) {
	until, opened, used, atOnce := now, int64(0), int64(0), true
	for i := range results {
		until, used = max(until, results[i].ResetAt), max(used, results[i].Used)
		opened = max(opened, results[i].ResetAt-int64(limits[i].Length()/time.Millisecond))
		atOnce = atOnce && limits[i].Algorithm.ResetsAtOnce()
	}
	p := &c.pending
	if p.until <= now {
		*p = units{from: now, instant: now}
	}
	if !atOnce || p.instant < opened { // otherwise the windows must open when they did here
		p.instant = max(p.instant, now)
	}
	p.from, p.until, p.cost = min(p.from, now), max(p.until, until), min(p.cost+cost, used)
}

// forgive subtracts r from the units to hand over, unless it was handed over. If a replay may
// do that now, forgive notes r for its end.
func (c *count) forgive(r refund) {
	if !r.subtract(&c.pending) && c.replaying != nil {
		c.refunds = append(c.refunds, r)
	}
}

// subtract subtracts r from the units if they include it, and reports whether they do.
func (r refund) subtract(p *units) bool {
	if p.until == 0 || r.takenAt < p.from {
		return false
	}
	p.cost = max(p.cost-r.cost, 0)
	return true
}
