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

func (k bucket) used(r *record, _ limit, now int64) int64 {
	if k.resetAt(r, now) <= now {
		return 0
	}
	return ceilLevel(r.at-now, r.quota, r.fraction, r.window)
}

func (bucket) resetAt(r *record, now int64) int64 { return max(r.drainedAt(), now) }

// drainedAt is the instant, rounded up.
func (r *record) drainedAt() int64 {
	if r.fraction > 0 {
		return addInstant(r.at, 1)
	}
	return r.at
}

// It fits when the level has sunk to (capacity - cost) * window.
func (bucket) retryAt(r *record, l limit, cost, _ int64) int64 {
	ahead, rest := mulDiv(l.capacity-cost, r.window, r.quota)
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
		r.at, r.fraction, r.gapsAt, r.gaps = now, 0, instant{}, 0
	}
	if r.quota != 0 && (r.quota != l.quota || r.window != l.window) {
		r.convert(l, now)
	}
	r.quota, r.capacity, r.chargedAt = l.quota, l.capacity, max(r.chargedAt, now)
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

// leave is giveBack of a leaky bucket. The last of a queue gives its place back; a place
// in front of others is a gap, for they have been given their starts. Once there is
// nothing but gaps from the first one to the end, that is where the queue ends. A charge
// whose start has come keeps the place of its first unit, or the next one would start
// right behind it.
func (r *record) leave(l limit, c settled, now int64) bool {
	end, left := instant{r.at, r.fraction}, instant{c.mark.At, c.mark.Fraction}
	if r.quota != l.quota || left.fraction >= r.quota || end.before(left) {
		return false
	}
	began := record{at: left.at, fraction: left.fraction, quota: r.quota}
	began.back(mulDiv(c.charged, l.window, l.quota))
	if began.drainedAt() <= now { // its start has come
		c.cost = max(c.cost, 1)
	}
	began.forward(l, c.cost)
	r.forgetGaps(now)
	gap := instant{began.at, began.fraction}
	switch {
	case left == end:
		r.at, r.fraction = gap.at, gap.fraction
	case c.cost < c.charged:
		if r.gaps == 0 || gap.before(r.gapsAt) {
			r.gapsAt = gap
		}
		r.gaps = addCount(r.gaps, c.charged-c.cost)
	}
	if r.gaps > 0 && r.gapsEnd() == (instant{r.at, r.fraction}) {
		r.at, r.fraction, r.gapsAt, r.gaps = r.gapsAt.at, r.gapsAt.fraction, instant{}, 0
	}
	return true
}

// forgetGaps forgets the gaps once as much time has passed since the first as they are
// long: charges that stay are among them, and later gaps count without them.
func (r *record) forgetGaps(now int64) {
	if r.gaps > 0 && !(instant{now, 0}).before(r.gapsEnd()) {
		r.gapsAt, r.gaps = instant{}, 0
	}
}

// gapsEnd is where the queue would end if the gaps followed each other.
func (r *record) gapsEnd() instant {
	end := record{at: r.gapsAt.at, fraction: r.gapsAt.fraction}
	end.forward(limit{window: r.window, quota: r.quota}, r.gaps)
	return instant{end.at, end.fraction}
}

// instant is a whole millisecond and a fraction, as a record's.
type instant struct{ at, fraction int64 }

func (i instant) before(j instant) bool {
	return i.at < j.at || i.at == j.at && i.fraction < j.fraction
}

// A token bucket keeps its units. Until the next charge they drain at the rate under
// which the last one was made or, if that is faster, at l's. A queue stays as long as it
// is: starts up to its end were returned.
func (k bucket) adopt(r *record, l limit) {
	if k.queue {
		part := int64(0)
		r.fraction, part = mulDiv(r.fraction, l.quota, r.quota)
		if part > 0 {
			r.fraction++
		}
		if r.fraction == l.quota {
			r.at, r.fraction = r.at+1, 0
		}
		r.quota, r.window, r.gapsAt, r.gaps = l.quota, l.window, instant{}, 0
		return
	}
	if rate, _ := mulDiv(l.quota, r.window, l.window); rate >= r.quota && r.at >= r.chargedAt {
		r.convert(l, r.chargedAt)
	}
}

// convert makes what is left at the instant from drain at l's rate.
func (r *record) convert(l limit, from int64) {
	units, part := mulDiv(r.at-from, r.quota, r.window)
	part += r.fraction // in 1/window of a unit
	units, part = addCount(units, part/r.window), part%r.window
	ahead, rest := mulDiv(units, l.window, l.quota)
	part, lost := mulDiv(part, l.window, r.window)
	if lost > 0 { // rounded up as units and as a time are
		part++
	}
	more, part := mulDiv(part, 1, l.quota)
	ahead, rest = ahead+more, rest+part
	if rest >= l.quota {
		ahead, rest = ahead+1, rest-l.quota
	}
	r.at, r.fraction, r.quota, r.window = addInstant(from, ahead), rest, l.quota, l.window
}

// A queue is lengthened to where the longest of the other policy's ends, so that no
// start is given twice. Else what joins fills a bucket and no more, or until the other
// policy's bucket has drained: the other policy may allow far more than this one.
func (k bucket) join(r *record, own []record, cost, now int64) {
	others := int64(0) // when theirs have drained
	for i := range own {
		if own[i].kind == r.kind {
			others = max(others, own[i].drainedAt())
		}
	}
	if k.queue && others > 0 {
		if others > r.at {
			r.at, r.fraction = others, 0
		}
		return
	}
	was := *r
	k.charge(r, limit{window: r.window, quota: r.quota, capacity: r.capacity}, cost, now)
	ahead, part := mulDiv(r.capacity, r.window, r.quota)
	full := record{at: addInstant(now, ahead), fraction: part}
	if full.at < others {
		full.at, full.fraction = others, 0
	}
	if r.drainsAfter(full) {
		r.at, r.fraction = full.at, full.fraction
		if was.drainsAfter(full) {
			r.at, r.fraction = was.at, was.fraction
		}
	}
}

// drainsAfter reports whether r drains after o, a record of the same quota.
func (r *record) drainsAfter(o record) bool {
	return r.at > o.at || r.at == o.at && r.fraction > o.fraction
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

func (k bucket) append(b []byte, r *record) []byte {
	b = appendCount(appendInstant(b, r.at), r.fraction)
	b = appendCount(appendInstant(appendCount(b, r.quota), r.chargedAt), r.capacity)
	if k.queue {
		b = appendCount(appendCount(appendInstant(b, r.gapsAt.at), r.gapsAt.fraction), r.gaps)
	}
	return b
}

func (k bucket) size(*record) int {
	if k.queue {
		return 3*instantBytes + 5*countBytes
	}
	return 2*instantBytes + 3*countBytes
}

func (k bucket) parse(p parser, r *record) parser {
	r.at, r.fraction, r.quota, r.chargedAt, r.capacity = p.instant(), p.count(), p.count(), p.instant(), p.count()
	if k.queue {
		r.gapsAt, r.gaps = instant{p.instant(), p.count()}, p.count()
	}
	p.failed = p.failed || max(r.fraction, r.gapsAt.fraction) >= r.quota
	return p
}

// lifetime is the time that a full bucket needs to drain.
func (bucket) lifetime(l limit) float64 {
	return float64(l.window) * float64(l.capacity) / float64(l.quota)
}
