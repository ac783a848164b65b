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
	ahead, rest := mulDiv(cost, l.window, l.quota)
	r.at = addInstant(r.at, ahead)
	r.fraction += rest
	if r.fraction >= l.quota {
		r.fraction -= l.quota
		r.at = addInstant(r.at, 1)
	}
	c.mark = throttler.Mark{At: r.at, Fraction: r.fraction}
	return c
}

// Units drain in the order in which they were charged: those of the charge
// that moved the instant to mark drain last before it. What is still to drain
// between now and mark comes back, at most amount.
func (k bucket) giveBack(r *record, l limit, mark throttler.Mark, amount, now int64) {
	if k.resetAt(r, now) <= now || mark.At < now {
		return
	}
	back, backRest := mulDiv(amount, l.window, l.quota)
	if left := mark.At - now; left < back || left == back && mark.Fraction < backRest {
		back, backRest = left, mark.Fraction
	}
	r.at -= back
	r.fraction = fractionOf(r, l) - backRest
	if r.fraction < 0 {
		r.fraction += l.quota
		r.at--
	}
	if r.at < now {
		r.at, r.fraction = now, 0
	}
}

func (bucket) adopt(r *record, _ limit, _ int64) {}

func (bucket) append(b []byte, r *record) []byte {
	return appendCount(appendInstant(b, r.at), r.fraction)
}

func (bucket) size(*record) int { return instantBytes + countBytes }

func (bucket) parse(b []byte, r *record) ([]byte, bool) {
	p := parser{rest: b}
	r.at, r.fraction = p.instant(), p.count()
	return p.rest, !p.failed
}

// lifetime is the time that a full bucket needs to drain.
func (bucket) lifetime(l limit) float64 {
	return float64(l.window) / float64(l.quota) * float64(l.capacity)
}
