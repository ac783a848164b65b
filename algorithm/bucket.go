package algorithm

import "github.com/weir-go/weir/throttler"

// Both buckets are the generic cell rate algorithm: one instant, at which the
// bucket is drained. A charge of cost moves it cost * window / quota further.
// The instant is a whole millisecond and a fraction in units of 1/quota of a
// millisecond, so that no rounding ever adds up.
//
// The level, in units of 1/window of a quota unit, is
//
//	(at - now) * quota + fraction
//
// A token bucket reads the level as what is missing from a full bucket, a
// leaky bucket as the queue that a charge has to wait for.
//
// https://brandur.org/rate-limiting

// fractionOf returns the fraction under a quota that may have been lowered.
func (r *record) fractionOf(l limit) int64 { return min(r.fraction, l.quota-1) }

func (r *record) bucketUsed(l limit, now int64) int64 {
	if r.bucketResetAt(now) <= now {
		return 0
	}
	return ceilLevel(r.at-now, l.quota, r.fractionOf(l), l.window)
}

func (r *record) bucketResetAt(now int64) int64 {
	at := r.at
	if r.fraction > 0 {
		at++
	}
	return max(at, now)
}

// It fits when the level has sunk to (capacity - cost) * window.
func (r *record) bucketRetryAt(l limit, cost int64) int64 {
	ahead, rest := mulDiv(l.capacity-cost, l.window, l.quota)
	if rest < r.fractionOf(l) {
		ahead--
	}
	return r.at - ahead
}

func (r *record) bucketCharge(l limit, cost, now int64) throttler.Mark {
	if r.at < now {
		r.at, r.fraction = now, 0
	}
	r.fraction = r.fractionOf(l)
	ahead, rest := mulDiv(cost, l.window, l.quota)
	r.at = addInstant(r.at, ahead)
	r.fraction += rest
	if r.fraction >= l.quota {
		r.fraction -= l.quota
		r.at = addInstant(r.at, 1)
	}
	return throttler.Mark{At: r.at, Fraction: r.fraction}
}

// Units drain in the order in which they were charged: those of the charge
// that moved the instant to mark drain last before it. What is still to drain
// between now and mark comes back, at most amount.
func (r *record) bucketGiveBack(l limit, mark throttler.Mark, amount, now int64) {
	if r.bucketResetAt(now) <= now || mark.At < now {
		return
	}
	back, backRest := mulDiv(amount, l.window, l.quota)
	if left := mark.At - now; left < back || left == back && mark.Fraction < backRest {
		back, backRest = left, mark.Fraction
	}
	r.at -= back
	r.fraction = r.fractionOf(l) - backRest
	if r.fraction < 0 {
		r.fraction += l.quota
		r.at--
	}
	if r.at < now {
		r.at, r.fraction = now, 0
	}
}

// startAt returns the instant at which a charge made now reaches the head of
// the queue. Ask before charging.
func (r *record) startAt(now int64) int64 { return r.bucketResetAt(now) }
