package synced

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// limit is a limit in force.
type limit struct {
	span
	capacity int64
	low      float64 // units, up to which all pass
	index    int     // of its span, in a call
	recent   int64   // ms, for which the rate of the last syncs is trusted
	rate     float64 // of the quota, in units per ms
	quota    float64
}

// span is what a root knows of a limit.
type span struct {
	kind kind
	ms   float64 // of a window, or between two units of a bucket
}

type kind byte

const (
	bucket kind = 1
	window kind = 2
)

func newLimit(l *quota.Limit, low float64, sync time.Duration, index int) limit {
	in := limit{capacity: l.Capacity(), low: float64(l.Capacity()), index: index, recent: 4 * sync.Milliseconds()}
	ms := float64(l.Window.Milliseconds())
	in.quota, in.rate = float64(l.Quota), float64(l.Quota)/ms
	if l.Algorithm == quota.TokenBucket {
		in.span, in.low = span{bucket, ms / float64(l.Quota)}, low*in.low
	} else {
		in.span = span{window, ms}
	}
	return in
}

// undrained returns the most units of a charge, made at taken, that still count at now.
// A bucket drains units in the order in which they were charged: a charge's units are
// the last before its mark.
func (l *limit) undrained(taken int64, mark driver.Mark, now int64) int64 {
	switch {
	case l.kind == bucket:
		part := min(float64(mark.Fraction)/l.quota, 1) // below 1, but for a quota that has changed
		return max(int64((float64(mark.At-now)+part+tolerance)/l.ms+tolerance), 0)
	case l.windowAt(taken) == l.windowAt(now):
		return math.MaxInt64
	}
	return 0
}

func (l *limit) windowAt(now int64) float64 { return math.Floor(float64(now) / l.ms) }

// count is what this process knows of one limit of one key. The shard's lock guards it.
//
// A bucket's total is the instant, in ms since the epoch, at which it will be empty of
// use. A unit moves it by the limit's ms, beginning at the present if it has passed. A
// window's total is the units in it.
type count struct {
	window float64 // index of the window, since the epoch; 0 for a bucket
	endsAt int64   // ms, of the window

	// total is what all processes added until at, with what this one added since.
	total float64
	at    int64   // ms
	rate  float64 // of the others in the last syncs, in units per ms
	usual float64 // of the others in some twenty syncs
	own   float64 // of this process, likewise

	part  int64 // units that this process added: to the window, or to a bucket ever
	floor floor
	roots []view
}

// floor is what this process knows of a bucket by itself: it was empty of use until at,
// when this process had added part units. A reply that was on its way at that time does
// not say so.
type floor struct {
	at   float64 // ms
	part int64
}

// view is what one root last said.
type view struct {
	known bool
	acked int64   // units of this process that are in a and b
	a, b  float64 // as the root keeps them: see sync.lua
	at    int64   // ms, of the reply
}

// roll begins a new window if the last has ended.
func (c *count) roll(l *limit, now int64) {
	if l.kind != window || now < c.endsAt { // or the clock was set back: windows do not come again
		return
	}
	w := l.windowAt(now)
	start := int64(w * l.ms)
	if start-c.at > l.recent {
		c.rate = c.usual
	}
	c.window, c.total, c.part, c.at, c.endsAt = w, 0, 0, start, int64((w+1)*l.ms)
	for i := range c.roots {
		c.roots[i] = view{}
	}
}

// others returns the units that the others have probably added since the last reply. A
// reply that is late by more than a few syncs may never come. Then they do what they
// usually do or, if all together used nearly all of the quota, this process keeps its
// part of it: what the others leave is a small difference of two estimates.
func (c *count) others(l *limit, now int64) float64 {
	age := max(now-c.at, 0)
	recent := min(age, l.recent)
	usual := c.usual
	if all := c.usual + c.own; all > nearly*l.rate {
		usual = l.rate * c.usual / all
		if l.kind == bucket && age > l.recent/2 { // a window has no rate of its own while it fills
			recent = 0 // whatever their last rate was, the quota bounds what they added since
		}
	}
	return c.rate*float64(recent) + usual*float64(age-recent)
}

const (
	nearly     = 0.7 // of a quota's rate
	almostFull = 0.8 // of a window's quota
	memory     = 20  // replies that usual rates are averages of
)

// estimate returns the total at now. The others do not bring it above the capacity,
// where they are refused too.
func (c *count) estimate(l *limit, now int64) float64 {
	others := c.others(l, now)
	if l.kind == window {
		return max(c.total, min(c.total+others, float64(l.capacity)))
	}
	full := float64(now) + float64(l.capacity)*l.ms
	return max(c.total, min(c.total+others*l.ms, full), float64(now))
}

// least returns what a bucket's total is at least: what this process added since it was
// empty of use. Every root needs that with units, because it has no clock by which to
// see that the bucket was empty. It gets no more: it has the units of others from them,
// and another root's total may have units that they are still to send to this one.
func (c *count) least(l *limit) float64 {
	return c.floor.at + float64(c.part-c.floor.part)*l.ms
}

// known returns what a root is to know of a bucket that it has forgotten. Others tell it
// of their units themselves; only if no root has answered for a while is the estimate of
// them better than nothing.
func (c *count) known(l *limit, now int64) float64 {
	if now-c.at > l.recent {
		return c.estimate(l, now)
	}
	return c.total
}

// used returns the units that count at now.
func (c *count) used(l *limit, now int64) float64 {
	e := c.estimate(l, now)
	if l.kind == window {
		return e
	}
	return (e - float64(now)) / l.ms
}

// evaluate reports whether cost fits, and when it will if it does not.
func (c *count) evaluate(l *limit, cost, now int64, r *driver.Result) bool {
	after := c.used(l, now) + float64(cost)
	high := float64(l.capacity)
	switch {
	case after <= l.low+tolerance:
		return true
	case after <= high+tolerance && rand.Float64()*(high-l.low) > after-l.low:
		return true
	case cost > l.capacity:
		r.RetryAt = driver.NeverFits
	case l.kind == window:
		r.RetryAt = c.endsAt
	default:
		fits := max(l.low, float64(cost)) // a cost above low passes when nothing is used
		r.RetryAt = max(int64(math.Ceil(float64(now)+(after-fits)*l.ms-tolerance)), now+1)
	}
	return false
}

// tolerance is what rounding of instants in doubles may add up to, in units or ms.
const tolerance = 1e-3

// add adds units, or takes them away.
func (c *count) add(l *limit, units, now int64) {
	if l.kind == window {
		c.part += units
		c.total = max(c.total+float64(units), 0)
		return
	}
	c.raise(float64(now) - c.others(l, now)*l.ms) // it was empty, if it was less
	c.part += units
	c.total += float64(units) * l.ms
}

// raise makes a bucket's total instant, if it is less.
func (c *count) raise(instant float64) {
	if c.total < instant {
		c.total, c.floor = instant, floor{instant, c.part}
	}
}

// mark returns the instant at which the units that were just added will have drained.
// Of a window, it is the present.
func (c *count) mark(l *limit, now int64) driver.Mark {
	if l.kind == window {
		return driver.Mark{At: now}
	}
	at, part := math.Modf(c.estimate(l, now))
	return driver.Mark{At: int64(at), Fraction: int64(part * l.quota)}
}

// report writes what r says of the count, but when it was refused.
func (c *count) report(l *limit, now int64, r *driver.Result) {
	used := c.used(l, now)
	r.Used = int64(math.Ceil(used - tolerance))
	switch {
	case l.kind == bucket:
		r.ResetAt = int64(math.Ceil(c.estimate(l, now) - tolerance))
	case r.Used > 0 || c.part != 0:
		r.ResetAt = c.endsAt
	default:
		r.ResetAt = now
	}
}

// pending returns the units that root i has not acknowledged.
func (c *count) pending(i int) int64 { return c.part - c.roots[i].acked }

// learn takes in the reply of root i, to a call that was made in that window: its state
// with the first part units of this process. The units of others reach a root late, by
// lag ms. It reports whether others are adding units, for all that is known.
func (c *count) learn(l *limit, i int, part int64, windowSent, a, b float64, now, lag int64) (busy bool) {
	v := &c.roots[i]
	if l.kind == window && (windowSent != c.window || a > c.window) {
		return true // of a window that has ended, here or for another process
	}
	busy = !v.known || b-v.b != float64(part-v.acked)
	if v.known && now > v.at && b >= v.b/2 && (l.kind == bucket || a == v.a) { // else the root lost its memory
		rate := max(b-v.b-float64(part-v.acked), 0) / float64(now-v.at)
		// Others send once a sync: what came in less time says less, unless a window fills.
		weight := 0.5
		if l.kind == bucket {
			weight = min(float64(now-v.at)/float64(l.recent/2), weight)
		}
		// In a window that is nearly full, a lower rate is one of refusals: the others
		// would still use what is left.
		if l.kind == bucket || rate > c.rate || b < almostFull*float64(l.capacity) {
			if c.rate += (rate - c.rate) * weight; rate == 0 && c.rate*float64(l.recent) < 1 {
				c.rate = 0 // the rest of what they did a while ago
			}
		}
		c.usual += (rate - c.usual) * 2 * weight / memory
		c.own += (max(float64(part-v.acked), 0)/float64(now-v.at) - c.own) * 2 * weight / memory
	}
	*v = view{known: true, acked: part, a: a, b: b, at: now}

	total := 0.0
	if l.kind == bucket {
		total = c.least(l)
	}
	for k := range c.roots {
		v := &c.roots[k]
		if !v.known {
			continue
		}
		own := float64(c.pending(k))
		switch {
		case l.kind == bucket:
			total = max(total, v.a+own*l.ms)
		case v.a == c.window:
			total = max(total, v.b+own)
		default:
			total = max(total, own)
		}
	}
	c.total, c.at = total, now-lag
	if l.kind == window {
		c.at = max(c.at, int64(c.window*l.ms))
	}
	return busy
}
