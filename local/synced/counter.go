package synced

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// limit is a limit in force.
type limit struct {
	span
	capacity int64
	length   int64   // ms, of the limit's Window: with its kind, it identifies the count
	low      float64 // units: up to here, all requests pass
	recent   int64   // ms: how long the rate of the last syncs is trusted
	unit     float64 // added to a total by one unit
	rate     float64 // of the quota, in units per ms
	quota    float64
	slack    float64 // units: a bound on rounding errors
}

// span describes a limit to a root, in each call.
type span struct {
	kind kind
	ms   float64 // of a window, or between two units of a bucket
}

type kind byte

const (
	bucket kind = 1
	window kind = 2
)

func newLimit(l *quota.Limit, low float64, sync time.Duration) limit {
	inForce := limit{capacity: l.Capacity(), length: l.Window.Milliseconds(), low: float64(l.Capacity()), recent: 4 * sync.Milliseconds()}
	ms := float64(inForce.length)
	inForce.quota, inForce.rate = float64(l.Quota), float64(l.Quota)/ms
	if l.Algorithm.Drains() {
		inForce.span, inForce.low = span{bucket, ms / float64(l.Quota)}, low*inForce.low
		inForce.unit = inForce.ms
		// Levels differ by quota/ms units: at 1 per second, 0.001 would be one ms.
		inForce.slack = tolerance / max(inForce.ms, 1)
	} else {
		inForce.span, inForce.unit, inForce.slack = span{window, ms}, 1, tolerance
	}
	return inForce
}

func (l *limit) windowAt(now int64) float64 { return math.Floor(float64(now) / l.ms) }

// count contains this process's state of one limit of one key. The stripe's lock guards it.
//
// A bucket's total is the instant, in ms since the epoch, at which it will have drained. A
// unit moves the instant by the limit's ms, beginning at the present if the instant has
// passed. A window's total is the units in it.
type count struct {
	window float64 // index of the window, since the epoch; 0 for a bucket
	endsAt int64   // ms, of the window

	// total includes the units of all processes until time, and of this process since.
	total tally
	time  int64   // ms
	rate  float64 // asked for at the others in the last syncs, in units per ms
	usual float64 // admitted by the others in about 20 syncs
	local float64 // admitted by this process in about 20 syncs

	// floor is a lower bound of total that needs no reply: zero in a new window, the
	// instant until which a bucket was empty, or the total of a count of another length
	// that this one continues. A reply that was on its way at that time may be below it.
	floor tally

	part  int64 // units that this process added to the window, or ever to the bucket
	alone bool  // no root answers
	views []view
}

// tally is a total as of when this process had added part units. Later units are
// counted as integers: instants lack the digits to add up units that take less than a
// microsecond.
type tally struct {
	total float64
	part  int64
}

// view contains the last reply of one root.
type view struct {
	epoch uint32  // of the root, when it replied; 0 if it did not
	acked int64   // units of this process that are in a and b
	a, b  float64 // as the root keeps them: see sync.lua
	time  int64   // ms, of the reply
}

func (v *view) answered() bool { return v.epoch != 0 }

// tally returns the root's tally of the count, or false if it is unknown or of another window.
func (v *view) tally(l *limit, window float64) (t tally, ok bool) {
	if l.kind == bucket {
		return tally{v.a, v.acked}, v.answered()
	}
	return tally{v.b, v.acked}, v.answered() && v.a == window
}

// roll begins a new window if the last has ended.
func (c *count) roll(l *limit, now int64) {
	if l.kind != window || now < c.endsAt { // or the clock was set back: windows do not come again
		return
	}
	w := l.windowAt(now)
	start := int64(w * l.ms)
	if start-c.time > l.recent {
		c.rate = c.usual
	}
	c.window, c.time, c.endsAt = w, start, int64((w+1)*l.ms)
	c.total, c.floor, c.part = tally{}, tally{}, 0
	for i := range c.views {
		c.views[i] = view{}
	}
}

// goOn makes c, which was counted under former, continue under a limit of another quota. A
// bucket will have drained at the same instant, so that all processes agree on it, including
// processes with the old quota.
func (c *count) goOn(former *limit) {
	if former.kind == bucket { // later units move the instant by another number of ms
		c.total, c.floor = tally{c.value(former, c.total), c.part}, tally{c.value(former, c.floor), c.part}
	}
}

// begin makes c, a new count, continue from the count of a limit of the same kind and
// another length: from the instant of a bucket, or the units of a window that has not
// ended.
func (c *count) begin(l *limit, from *count, former *limit, now int64) {
	c.roll(l, now)
	if former.kind == window && from.window < former.windowAt(now) {
		return
	}
	c.total, c.time = tally{max(from.value(former, from.total), 0), 0}, now
	c.floor = c.total
	c.rate, c.usual, c.local = from.rate, from.usual, from.local
}

// admits returns the chance that a unit is admitted when a bucket will have drained at instant.
func (l *limit) admits(instant, now float64) float64 {
	high := float64(l.capacity)
	if l.kind == window || l.low == high {
		return 1 // how often it was full is unknown
	}
	return min(max((high-(instant-now)/l.ms)/(high-l.low), 0), 1)
}

// admitted returns how many of units are admitted from used on: above low, each lowers the chance of
// the next.
func (l *limit) admitted(used, units float64) float64 {
	high, above := float64(l.capacity), units-max(l.low-used, 0)
	if above <= 0 || l.low == high || used >= high {
		return units
	}
	return units - above + above*(high-max(used, l.low))/(high-l.low+above)
}

// otherUnits estimates the units that the others have added since the last reply; used counts without
// them. A reply that is late by more than a few syncs may never come, so their usual rate is taken
// then. If all together used nearly all of the quota, the others have only their part of what was free
// or has drained since: the rest of it would be a small difference of two estimates.
func (c *count) otherUnits(l *limit, used float64, now int64) float64 {
	age := max(now-c.time, 0)
	recent := min(age, l.recent)
	usual, bound, added := c.usual, math.Inf(1), float64(c.part-c.total.part)
	if total := c.usual + c.local; total > nearly*l.rate {
		part := c.usual / total
		usual = l.rate * part
		switch {
		case l.kind == window: // it has no rate while it fills
		case age > l.recent/2:
			recent = 0 // whatever their last rate was, the quota bounds their units since
		case l.low == float64(l.capacity):
			bound = max(float64(l.capacity)-(used-added), 0) * part // otherwise all would refuse until the next sync
		}
	}
	others := min(l.admitted(used, c.rate*float64(recent))+usual*float64(age-recent), bound)
	if l.kind == window && (c.alone || age > l.recent) && c.local > 0 {
		others = max(others, added*c.usual/c.local) // in a window, all fill their parts of it at once
	}
	return others
}

// isolate prepares c for a time without replies. If all together used nearly all of the quota,
// the others fill the room that is free now, too: this process has only its part of it.
func (c *count) isolate(l *limit, now int64) {
	total := c.usual + c.local
	if l.kind == window || total <= nearly*l.rate {
		return
	}
	part, used := c.usual/total, c.used(l, now)
	used += part * max(float64(l.capacity)-used, 0)
	c.total, c.time, c.rate = tally{float64(now) + used*l.ms, c.part}, now, part*l.rate
}

const (
	nearly     = 0.7 // of a quota's rate
	almostFull = 0.8 // of a window's quota
	memory     = 20  // replies averaged in usual rates
)

// value returns t with the units that this process added since.
func (c *count) value(l *limit, t tally) float64 { return t.total + float64(c.part-t.part)*l.unit }

// used returns the units that count at now. The estimate of the others' units doesn't
// bring it above the capacity, where the others are refused, too.
func (c *count) used(l *limit, now int64) float64 {
	used := c.total.total
	if l.kind == bucket {
		used = (used - float64(now)) / l.ms
	}
	used += float64(c.part - c.total.part)
	return max(used, min(used+c.otherUnits(l, used, now), float64(l.capacity)), 0)
}

// empty returns the instant at which a bucket will have drained.
func (c *count) empty(l *limit, now int64) float64 { return float64(now) + c.used(l, now)*l.ms }

// base returns a lower bound of a bucket's total: the units that this process added since
// the bucket was empty. Every root needs it along with units, because a root has no clock
// to see that the bucket was empty. It gets no more: the others send it their own units, and
// another root's total may contain units that they have yet to send to this root. After a single
// charge of more than the capacity, it is all that this process knows: a root would bound the debt.
func (c *count) base(l *limit) float64 { return c.value(l, c.floor) }

// level returns x and the bound of an entry for root i that has a bucket's level instead of late
// units. The level is an estimate if no root has answered for a while. Late units fill the bucket up
// to goal, unless this process alone added more: a debt that was recorded, and not one of errors.
func (c *count) level(l *limit, i int, now int64) (x, bound float64) {
	instant, capacity := c.value(l, c.elsewhere(l, i)), float64(l.capacity)*l.ms
	if now-c.time > l.recent {
		instant = c.empty(l, now)
	}
	if x = c.base(l); x <= float64(now)+capacity+tolerance {
		x = 0
	}
	return x, -min(instant, float64(now)+goal*capacity)
}

// elsewhere returns a bucket's largest total of the roots that have units of this process that root
// i lacks, or of all if there are none. These units may be in root i's total already, with another
// process's level.
func (c *count) elsewhere(l *limit, i int) tally {
	largest := tally{math.Inf(-1), c.part}
	for k := range c.views {
		if t, ok := c.views[k].tally(l, 0); ok && t.part > c.views[i].acked && c.value(l, t) > c.value(l, largest) {
			largest = t
		}
	}
	if math.IsInf(largest.total, -1) {
		return c.total
	}
	return largest
}

// rootTotal returns root i's last total of the count, which the root begins at if it has evicted
// the count, or 0 if that total no longer counts. raise reports that the root's total must reach
// it in any case: the root has lost its memory since, or it has not replied, and the count
// continues another, from a floor.
func (c *count) rootTotal(l *limit, i int, epoch uint32, now int64) (total float64, raise bool) {
	t, ok := c.views[i].tally(l, c.window)
	switch {
	case !ok:
		return c.floor.total, c.floor.total > 0
	case l.kind == bucket && t.total <= float64(now):
		return 0, false
	}
	return t.total, t.total > 0 && c.views[i].epoch != epoch
}

// boundOf returns the bound of an entry with a total of the root: negative if the root's total
// must reach it. See sync.lua.
func boundOf(total float64, raise bool) float64 {
	if raise {
		return -total
	}
	return total
}

var chance = rand.Float64 // the simulations seed it

// evaluate sets r.RetryAt if cost doesn't fit now.
func (c *count) evaluate(l *limit, cost, now int64, r *driver.Result) {
	after := c.used(l, now) + float64(cost)
	high := float64(l.capacity)
	switch {
	case after <= l.low+l.slack:
	case after <= high+l.slack && chance()*(high-l.low) > after-l.low:
	case cost > l.capacity:
		r.RetryAt = driver.NeverFits
	default:
		r.RetryAt = c.fitsAt(l, cost, now)
	}
}

// fitsAt returns the instant from which cost, which may not fit now, is certain to fit.
func (c *count) fitsAt(l *limit, cost, now int64) int64 {
	if l.kind == window {
		return c.endsAt
	}
	fits := max(l.low, float64(cost)) // a cost above low passes when nothing is used
	after := c.used(l, now) + float64(cost)
	return max(roundUp(float64(now)+(after-fits)*l.ms-tolerance, lastInstant), now+1)
}

// lastInstant is the last second of the year 9999 in ms, as in stores: a debt may take longer.
const lastInstant = 253402300799000

// roundUp returns f, at most bound, rounded up. Greater numbers do not fit into an int64.
func roundUp(f, bound float64) int64 { return int64(math.Ceil(min(f, bound))) }

// tolerance bounds the rounding errors of instants in doubles, in ms.
const tolerance = 1e-3

// mostUnits bounds the units that are counted as integers. More units of a window than these
// are not counted: it has been full for long. A root's totals are sane up to twice as many.
const mostUnits = 1 << 59

// add adds units, or removes them if negative.
func (c *count) add(l *limit, units, now int64) {
	if l.kind == bucket {
		c.raise(l, float64(now)-c.otherUnits(l, 0, now)*l.ms) // if its total was less, it was empty
	}
	switch {
	case l.kind == window:
		units = min(units, mostUnits-c.part)
	case c.part-c.total.part > mostUnits: // a bucket in use for long
		c.total, c.floor = tally{c.value(l, c.total), c.part}, tally{c.value(l, c.floor), c.part}
	}
	c.part += units
	if l.kind == bucket && units > l.capacity { // a debt, and not an error of the processes together: see base
		c.floor = tally{c.value(l, c.total), c.part}
	}
	if l.kind == window && c.value(l, c.total) < 0 { // a refund of units of a counter that was removed
		c.total = tally{0, c.part}
	}
}

// reset begins c again at now, with the units of this process after the first part.
func (c *count) reset(l *limit, part, now int64) {
	c.part, c.total, c.time = c.part-part, tally{}, now
	c.rate, c.usual, c.local = 0, 0, 0
	if l.kind == bucket {
		c.total.total = float64(now)
	}
	c.floor = c.total
	clear(c.views)
}

// raise raises a bucket's total to instant, if it is less.
func (c *count) raise(l *limit, instant float64) {
	if c.value(l, c.total) < instant {
		c.total = tally{instant, c.part}
		c.floor = c.total
	}
}

// undrained returns the maximum number of units of a charge of that mark that still count at
// now. A bucket drains units in the order of the charges: a charge's units are the last before
// its mark.
func (c *count) undrained(l *limit, mark driver.Mark, now int64) int64 {
	switch {
	case l.kind == bucket:
		part := min(float64(mark.Fraction)/l.quota, 1) // below 1 unless the quota has changed
		units := (float64(mark.At-now)+part+tolerance)/l.ms + l.slack
		return max(int64(min(units, quota.MaxQuota)), 0) // no charge has more
	case mark.At == c.endsAt:
		return math.MaxInt64
	}
	return 0
}

// mark returns the instant at which the units that were just added will have drained, or at
// which their window ends.
func (c *count) mark(l *limit, now int64) driver.Mark {
	if l.kind == window {
		return driver.Mark{At: c.endsAt}
	}
	instant, part := math.Modf(min(c.empty(l, now), lastInstant))
	return driver.Mark{At: int64(instant), Fraction: int64(part * l.quota)}
}

// report sets Used and ResetAt of r and, if its RetryAt says so or nothing is left, NextAt.
func (c *count) report(l *limit, now int64, r *driver.Result) {
	used := c.used(l, now)
	r.Used = roundUp(used-l.slack, quota.MaxQuota)
	switch {
	case l.kind == bucket:
		r.ResetAt = roundUp(c.empty(l, now)-tolerance, lastInstant)
	case r.Used > 0 || c.part != 0:
		r.ResetAt = c.endsAt
	default:
		r.ResetAt = now
	}
	if (r.RetryAt != 0 || r.Used >= l.capacity) && used+1 > l.low+l.slack {
		r.NextAt = c.fitsAt(l, 1, now)
	}
}

// pending returns the units that root i has not acknowledged.
func (c *count) pending(i int) int64 { return c.part - c.views[i].acked }

// learn processes the reply of root i to an entry: its state, a and b, which includes the units
// of the entry. The units of others reach a root lag ms late. learn reports whether others may be
// adding units.
func (c *count) learn(l *limit, i int, epoch uint32, e *entry, a, b float64, now, lag int64) (busy bool) {
	v, part, units := &c.views[i], e.part, float64(e.units)
	if l.kind == window && (e.window != c.window || a > c.window) {
		return true // the window has ended, here or for another process
	}
	busy = !v.answered() || b-v.b != units
	if v.epoch == epoch && now > v.time && b >= v.b/2 && (l.kind == bucket || a == v.a) { // otherwise the root evicted it
		admits := (l.admits(v.a, float64(v.time)) + l.admits(a, float64(now))) / 2
		c.learnRates(l, units, b-v.b, b, float64(now-v.time), admits)
	}
	if l.kind == window && a == c.window {
		part = min(part, int64(b)) // the root evicted the counter, and another process knew less of it
	}
	*v = view{epoch, part, a, b, now}
	c.merge(l, now-lag)
	return busy
}

// merge sets the total to the largest of the roots' totals and the floor, as of time.
func (c *count) merge(l *limit, time int64) {
	largest := c.floor
	for k := range c.views {
		if t, ok := c.views[k].tally(l, c.window); ok && c.value(l, t) > c.value(l, largest) {
			largest = t
		}
	}
	c.total, c.time = largest, time
	if l.kind == window {
		c.time = max(c.time, int64(c.window*l.ms))
	}
}

// learnRates updates the rates by the units that were added within ms, local by this process
// and sum by all, to a total that is b now. A unit was admitted with a chance of admits, so some more
// were asked for.
func (c *count) learnRates(l *limit, local, sum, b, ms, admits float64) {
	rate, weight := max(sum-local, 0)/ms, 0.5
	// Others send once a sync: a shorter time says less, unless a window fills.
	if l.kind == bucket {
		weight = min(ms/float64(l.recent/2), weight)
	}
	// In a window that is nearly full, a lower rate is due to refusals: the others would
	// still use the rest.
	if l.kind == bucket || rate > c.rate || b < almostFull*float64(l.capacity) {
		if c.rate += (rate - admits*c.rate) * weight; rate == 0 && c.rate*float64(l.recent) < 1 {
			c.rate = 0 // a remainder of an old rate
		}
	}
	if weight *= 2.0 / memory; c.usual+c.local == 0 {
		weight = 1 // the first is the mean
	}
	c.usual += (rate - c.usual) * weight
	c.local += (max(local, 0)/ms - c.local) * weight
}
