package algorithm

import (
	"github.com/weir-go/weir/throttler/driver"
)

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

func (k bucket) used(r *record, l limit, now int64) int64 {
	if k.resetAt(r, now) <= now {
		return 0
	}
	return ceilLevel(r.at-now, l.quota, r.fraction, l.window)
}

func (bucket) resetAt(r *record, now int64) int64 { return max(r.drainedAt(), now) }

// drainedAt is the instant, rounded up.
func (r *record) drainedAt() int64 {
	if r.fraction > 0 {
		return r.at + 1
	}
	return r.at
}

// It fits when the level has sunk to (capacity - cost) * window.
func (bucket) retryAt(r *record, l limit, cost, _ int64) int64 {
	ahead, rest := mulDiv(l.capacity-cost, l.window, l.quota)
	if rest < r.fraction {
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
	r.quota, r.chargedAt = l.quota, max(r.chargedAt, now)
	r.forward(l, cost)
	c.mark = driver.Mark{At: r.at, Fraction: r.fraction}
	return c
}

// Where the charge began is where cost less ends.
func (k bucket) lastCharge(r *record, cost int64) charged {
	c := charged{mark: driver.Mark{At: r.at, Fraction: r.fraction}}
	if k.queue {
		began := *r
		began.back(mulDiv(cost, r.window, r.quota))
		c.startAt = began.drainedAt()
	}
	return c
}

// forward moves the instant by the time that cost takes to drain.
func (r *record) forward(l limit, cost int64) {
	ahead, rest := mulDiv(cost, l.window, l.quota)
	r.at = addInstant(r.at, ahead)
	r.fraction += rest
	if r.fraction >= l.quota {
		r.at, r.fraction = addInstant(r.at, 1), r.fraction-l.quota
	}
}

// back moves the instant back by ms and a fraction.
func (r *record) back(ms, fraction int64) {
	r.at, r.fraction = r.at-ms, r.fraction-fraction
	if r.fraction < 0 {
		r.at, r.fraction = r.at-1, r.fraction+r.quota
	}
}

func (k bucket) giveBack(r *record, l limit, c settled, now int64) bool {
	switch {
	case k.resetAt(r, now) <= now || c.mark.At < now:
		return false
	case k.queue:
		return r.leave(l, c, now)
	case r.quota != l.quota:
		k.giveBackJoined(r, c, now)
	default:
		r.refill(c, now)
	}
	return true
}

// refill is giveBack of a token bucket. Units drain in the order in which they were
// charged, so the units of a charge are the last before its mark. What is still to
// drain between now and the mark comes back.
func (r *record) refill(c settled, now int64) {
	back, rest := mulDiv(c.charged-c.cost, r.window, r.quota)
	if left := c.mark.At - now; left < back || left == back && c.mark.Fraction < rest {
		back, rest = left, c.mark.Fraction
	}
	r.back(back, rest)
	if r.at < now {
		r.at, r.fraction = now, 0
	}
}

// leave is giveBack of a leaky bucket. Only the last of a queue can give its place
// back: the charges behind it have been given their starts, and the place between is
// too late to give. A charge whose start has come keeps the place of its first unit,
// or the next one would start right behind it.
func (r *record) leave(l limit, c settled, now int64) bool {
	if c.mark.At != r.at || c.mark.Fraction != r.fraction || r.quota != l.quota {
		return false
	}
	r.back(mulDiv(c.charged, l.window, l.quota))
	if r.drainedAt() <= now { // its start has come
		c.cost = max(c.cost, 1)
	}
	r.forward(l, c.cost)
	return true
}

// A token bucket that drains faster under l has drained faster since the last
// charge; a slower one ends when it was to end. A queue stays as long as it is:
// starts up to its end were returned.
func (k bucket) adopt(r *record, l limit) {
	was, units := *r, int64(0)
	r.fraction, units = mulDiv(r.fraction, l.quota, max(r.quota, 1))
	if k.queue && units > 0 {
		r.fraction++
		if r.fraction == l.quota {
			r.at, r.fraction = r.at+1, 0
		}
	}
	r.quota = l.quota
	if k.queue || was.quota == 0 || was.at < was.chargedAt {
		return
	}
	units, part := mulDiv(was.at-was.chargedAt, was.quota, was.window)
	part += was.fraction
	units, part = addCount(units, part/was.window), part%was.window
	ahead, rest := mulDiv(units, l.window, l.quota)
	part, _ = mulDiv(part, l.window, was.window)
	more, part := mulDiv(part, 1, l.quota)
	ahead, rest = ahead+more, rest+part
	if rest >= l.quota {
		ahead, rest = ahead+1, rest-l.quota
	}
	if at := addInstant(was.chargedAt, ahead); at < r.at || at == r.at && rest < r.fraction {
		r.at, r.fraction = at, rest
	}
}

// A queue is lengthened to where the longest of the other policy's ends, so that no
// start is given twice. Else what joins fills a bucket by one window at most: the
// other policy may allow far more than this one.
func (k bucket) join(r *record, own []record, cost, now int64) {
	queues := false
	for i := range own {
		if k.queue && own[i].kind == r.kind {
			queues = true
			if at := own[i].drainedAt(); at > r.at {
				r.at, r.fraction = at, 0
			}
		}
	}
	if queues {
		return
	}
	was := *r
	k.charge(r, limit{window: r.window, quota: r.quota}, cost, now)
	if full := addInstant(now, r.window); r.at >= full {
		r.at, r.fraction = full, 0
		if was.at >= full {
			r.at, r.fraction = was.at, was.fraction
		}
	}
}

// What c was charged has drained for certain when it would have, had it found the
// bucket empty. A place in a queue is lost.
func (k bucket) giveBackJoined(r *record, c settled, now int64) {
	ahead, rest := mulDiv(c.charged, r.window, r.quota)
	c.mark = driver.Mark{At: addInstant(c.takenAt, ahead), Fraction: rest}
	if !k.queue && k.resetAt(r, now) > now && c.mark.At >= now {
		r.refill(c, now)
	}
}

func (bucket) append(b []byte, r *record) []byte {
	b = appendCount(appendInstant(b, r.at), r.fraction)
	return appendInstant(appendCount(b, r.quota), r.chargedAt)
}

func (bucket) size(*record) int { return 2*instantBytes + 2*countBytes }

func (bucket) parse(p parser, r *record) parser {
	r.at, r.fraction, r.quota, r.chargedAt = p.instant(), p.count(), p.count(), p.instant()
	p.failed = p.failed || r.fraction >= r.quota
	return p
}

// lifetime is the time that a full bucket needs to drain.
func (bucket) lifetime(l limit) float64 {
	return float64(l.window) / float64(l.quota) * float64(l.capacity)
}
