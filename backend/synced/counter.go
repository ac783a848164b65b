package synced

import (
	"math"
	"math/rand/v2"

	"github.com/weir-go/weir/throttler"
)

// limit is a limit in force.
type limit struct {
	span
	capacity int64
	low      float64 // units, up to which all pass
	index    int     // of its span, in a call
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

func newLimit(l *throttler.Limit, low float64, index int) limit {
	in := limit{capacity: l.Capacity(), low: float64(l.Capacity()), index: index}
	ms := float64(l.Window.Milliseconds())
	if l.Algorithm == throttler.TokenBucket {
		in.span, in.low = span{bucket, ms / float64(l.Quota)}, low*in.low
	} else {
		in.span = span{window, ms}
	}
	return in
}

// counts reports whether a charge made at taken can still count at now.
func (l *limit) counts(taken, now int64) bool {
	return l.kind == bucket || l.windowAt(taken) == l.windowAt(now)
}

func (l *limit) windowAt(now int64) float64 { return math.Floor(float64(now) / l.ms) }

// count is what this process knows of one limit of one key. The shard's lock guards it.
//
// A bucket's total is the instant, in ms since the epoch, at which it will be empty of
// use. A unit moves it by the limit's ms, beginning at the present if it has passed. A
// window's total is the units in it.
type count struct {
	window float64 // index of the window, since the epoch; 0 for a bucket

	// total is what all processes added until at, with what this one added since.
	total float64
	at    int64   // ms
	rate  float64 // of the others, in units per ms

	part  int64 // units that this process added: to the window, or to a bucket ever
	roots []view
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
	if l.kind != window {
		return
	}
	w := l.windowAt(now)
	if w <= c.window { // or the clock was set back: windows do not come again
		return
	}
	c.window, c.total, c.part, c.at = w, 0, 0, int64(w*l.ms)
	for i := range c.roots {
		c.roots[i] = view{}
	}
}

// estimate returns the total at now.
func (c *count) estimate(l *limit, now int64) float64 {
	others := c.rate * float64(max(now-c.at, 0))
	if l.kind == window {
		return c.total + others
	}
	return max(c.total+others*l.ms, float64(now))
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
func (c *count) evaluate(l *limit, cost, now int64, r *throttler.Result) bool {
	c.roll(l, now)
	after := c.used(l, now) + float64(cost)
	high := float64(l.capacity)
	switch {
	case after <= l.low+tolerance:
		return true
	case after <= high+tolerance && rand.Float64()*(high-l.low) > after-l.low:
		return true
	case cost > l.capacity:
		r.RetryAt = throttler.NeverFits
	case l.kind == window:
		r.RetryAt = c.end(l)
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
	c.roll(l, now)
	c.part += units
	others := c.rate * float64(max(now-c.at, 0))
	if l.kind == window {
		c.total = max(c.total+others+float64(units), 0) - others
		return
	}
	c.total = max(c.estimate(l, now)+float64(units)*l.ms, float64(now)) - others*l.ms
}

// report writes what r says of the count, but when it was refused.
func (c *count) report(l *limit, now int64, r *throttler.Result) {
	c.roll(l, now)
	used := c.used(l, now)
	r.Used = int64(math.Ceil(used - tolerance))
	switch {
	case l.kind == bucket:
		r.ResetAt = int64(math.Ceil(c.estimate(l, now) - tolerance))
	case r.Used > 0 || c.part != 0:
		r.ResetAt = c.end(l)
	default:
		r.ResetAt = now
	}
}

// end returns the end of the window.
func (c *count) end(l *limit) int64 { return int64((c.window + 1) * l.ms) }

// pending returns the units that root i has not acknowledged.
func (c *count) pending(i int) int64 { return c.part - c.roots[i].acked }

// learn takes in the reply of root i: its state after it had the first part units of
// this process. It was asked at sent, and others' units reach it half a sync late.
func (c *count) learn(l *limit, i int, part int64, windowSent, a, b float64, now int64, lag int64) {
	v := &c.roots[i]
	if l.kind == window && (windowSent != c.window || a > c.window) {
		return // of a window that has ended, here or for another process
	}
	if v.known && now > v.at && b >= v.b && (l.kind == bucket || a == v.a) {
		rate := max(b-v.b-float64(part-v.acked), 0) / float64(now-v.at)
		c.rate = (c.rate + rate) / 2
	}
	*v = view{known: true, acked: part, a: a, b: b, at: now}

	total := 0.0
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
}
