package algorithm

import "github.com/weir-go/weir/throttler"

// bucket is both buckets: the generic cell rate algorithm. It keeps one instant,
// at which the bucket is drained. A charge of cost moves it cost * window / quota
// further. The instant is a whole millisecond and a fraction in units of 1/quota
// of a millisecond, so that no rounding ever adds up.
//
// The level, in units of 1/window of a quota unit, is
//
//	(at - now) * quota + fraction
//
// A token bucket reads the level as what is missing from a full bucket, a
// leaky bucket as the queue that a charge has to wait for.
//
// https://brandur.org/rate-limiting
type bucket struct{ queue bool }

// fractionOf returns the fraction under a quota that may have been lowered.
func fractionOf(r *record, l limit) int64 { return min(r.fraction, l.quota-1) }

func (k bucket) used(r *record, l limit, now int64) int64 {
	if k.resetAt(r, now) <= now {
		return 0
	}
	return ceilLevel(r.at-now, l.quota, fractionOf(r, l), l.window)
}

func (bucket) resetAt(r *record, now int64) int64 {
	at := r.at
	if r.fraction > 0 {
		at++
	}
	return max(at, now)
}

// It fits when the level has sunk to (capacity - cost) * window.
func (bucket) retryAt(r *record, l limit, cost, _ int64) int64 {
	ahead, rest := mulDiv(l.capacity-cost, l.window, l.quota)
	if rest < fractionOf(r, l) {
		ahead--
	}
	return r.at - ahead
}

func (k bucket) charge(r *record, l limit, cost, now int64) charged {
	var c charged
	if k.queue {
		c.startAt = k.resetAt(r, now)
	}
	if r.at < now {
		r.at, r.fraction = now, 0
	}
	r.fraction = fractionOf(r, l)
	r.move(l, cost)
	c.mark = throttler.Mark{At: r.at, Fraction: r.fraction}
	return c
}

// move moves the instant by the time that cost takes to drain.
func (r *record) move(l limit, cost int64) {
	ahead, rest := mulDiv(cost, l.window, l.quota)
	r.at = addInstant(r.at, ahead)
	r.fraction += rest
	if r.fraction >= l.quota {
		r.at, r.fraction = addInstant(r.at, 1), r.fraction-l.quota
	}
}

// giveBack of a token bucket: units drain in the order in which they were charged,
// those of the charge that moved the instant to its mark last before it. What is
// still to drain between now and the mark comes back.
func (k bucket) giveBack(r *record, l limit, c settled, now int64) {
	if k.resetAt(r, now) <= now || c.mark.At < now {
		return
	}
	if k.queue {
		leave(r, l, c, now)
		return
	}
	back, backRest := mulDiv(c.charged-c.cost, l.window, l.quota)
	if left := c.mark.At - now; left < back || left == back && c.mark.Fraction < backRest {
		back, backRest = left, c.mark.Fraction
	}
	r.at, r.fraction = r.at-back, fractionOf(r, l)-backRest
	if r.fraction < 0 {
		r.at, r.fraction = r.at-1, r.fraction+l.quota
	}
	if r.at < now {
		r.at, r.fraction = now, 0
	}
}

// leave is giveBack of a leaky bucket. Only the last of a queue can give its place
// back: those behind it have been given their starts, and the place between is too
// late to give. A charge whose start has come keeps the place of its first unit, or
// the next one would start right behind it.
func leave(r *record, l limit, c settled, now int64) {
	if c.mark != (throttler.Mark{At: r.at, Fraction: r.fraction}) {
		return
	}
	back, rest := mulDiv(c.charged, l.window, l.quota)
	r.at, r.fraction = r.at-back, r.fraction-rest
	if r.fraction < 0 {
		r.at, r.fraction = r.at-1, r.fraction+l.quota
	}
	start := r.at
	if r.fraction > 0 {
		start++
	}
	if start <= now {
		c.cost = max(c.cost, 1)
	}
	r.move(l, c.cost)
}

func (bucket) adopt(r *record, _ limit, _ int64) {}

func (bucket) append(b []byte, r *record) []byte {
	return appendCount(appendInstant(b, r.at), r.fraction)
}

func (bucket) parse(b []byte, r *record) ([]byte, bool) {
	p := parser{rest: b}
	r.at, r.fraction = p.instant(), p.count()
	return p.rest, !p.failed
}

// lifetime is the time that a full bucket needs to drain.
func (bucket) lifetime(l limit) float64 {
	return float64(l.window) / float64(l.quota) * float64(l.capacity)
}
