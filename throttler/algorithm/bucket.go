package algorithm

import (
	"github.com/weir-go/weir/internal/exact"
	"github.com/weir-go/weir/throttler/driver"
)

// bucket is both buckets: the generic cell rate algorithm. It keeps one instant, when the
// bucket is drained. A charge moves it by cost * window / quota. The instant is a whole
// millisecond and a fraction in units of 1/quota of one, so that rounding errors never add up.
//
// The level, in units of 1/window of a quota unit, is
//
//	(at - now) * quota + fraction
//
// In a token bucket, the level is the units missing from a full bucket; in a leaky bucket, the
// queue that a charge has to wait for.
//
// https://brandur.org/rate-limiting
type bucket struct{ queue bool }

func (k bucket) used(r *record, _ limit, now int64) int64 {
	if k.resetAt(r, now) <= now {
		return 0
	}
	return ceilLevel(r.ms-now, r.quota, r.fraction, r.window)
}

func (bucket) resetAt(r *record, now int64) int64 { return max(r.roundedUp(), now) }

// A charge fits when the level has sunk to (capacity - cost) * window.
func (bucket) retryAt(r *record, l limit, cost, _ int64) int64 {
	ahead, fraction := exact.MulDiv(l.capacity-cost, r.window, r.quota)
	if fraction < r.fraction {
		ahead--
	}
	return r.ms - ahead
}

func (k bucket) charge(r *record, l limit, cost, now int64) charged {
	var c charged
	if k.queue {
		c.startAt = k.resetAt(r, now)
	}
	if r.ms < now {
		r.instant, r.gapsAt, r.gaps = instant{ms: now}, instant{}, 0
	}
	if r.quota != 0 && (r.quota != l.quota || r.window != l.window) {
		r.convert(l, now)
	}
	r.quota, r.capacity, r.chargedAt = l.quota, l.capacity, max(r.chargedAt, now)
	ms, fraction := exact.MulDiv(cost, l.window, l.quota)
	r.instant = r.plus(ms, fraction, l.quota)
	c.mark = driver.Mark{At: r.ms, Fraction: r.fraction}
	return c
}

// The charge started where the queue would end without cost.
func (k bucket) lastCharge(r *record, cost int64) charged {
	c := charged{mark: driver.Mark{At: r.ms, Fraction: r.fraction}}
	if k.queue {
		ms, fraction := exact.MulDiv(cost, r.window, r.quota)
		c.startAt = r.minus(ms, fraction, r.quota).roundedUp()
	}
	return c
}

// A clock behind the one that charged last would give back what had drained by then.
func (k bucket) giveBack(r *record, l limit, c settled, now int64) bool {
	now = max(now, r.chargedAt)
	switch {
	case k.resetAt(r, now) <= now || c.mark.At < now:
		return false
	case k.queue:
		return r.leave(l, c, now)
	case r.quota != l.quota:
		k.giveBackJoined(r, c, now)
	default:
		r.refill(c, now, r.minDebt(l, c, now))
	}
	return true
}

// minDebt returns how far the bucket is ahead of c's mark, in ms and a fraction, if c was
// charged although it did not fit and still does not fit; otherwise 0. Charges behind c have
// their starts, which must not be returned twice.
func (r *record) minDebt(l limit, c settled, now int64) instant {
	mark := instant{c.mark.At, c.mark.Fraction}
	ms, fraction := exact.MulDiv(l.capacity, r.window, r.quota)
	if starts := mark.minus(ms, fraction, r.quota); mark.fraction >= r.quota || !(instant{ms: now}).before(starts) || !mark.before(r.instant) {
		return instant{}
	}
	return r.minus(mark.ms, mark.fraction, r.quota)
}

// refill is giveBack for a token bucket. Units drain in the order in which they were charged,
// so the units of a charge are the last before its mark. refill refunds at most the units that
// drain between now and the mark, less floor.
func (r *record) refill(c settled, now int64, floor instant) {
	ms, fraction := exact.MulDiv(c.charged-c.cost, r.window, r.quota)
	if wait := c.mark.At - now; wait < ms || wait == ms && c.mark.Fraction < fraction {
		ms, fraction = wait, c.mark.Fraction
	}
	gain := instant{ms, fraction}.minus(floor.ms, floor.fraction, r.quota) // 0 at least
	ms, fraction = gain.ms, gain.fraction
	if r.instant = r.minus(ms, fraction, r.quota); r.ms < now {
		r.instant = instant{ms: now}
	}
}

// leave is giveBack for a leaky bucket. The last charge in a queue frees its place. A place in
// front of others becomes a gap, because the starts of the others were returned. Once only
// gaps are left from the first gap to the end, the queue ends at the first gap. A charge that
// has started keeps its first unit's place, or the next charge would start right behind it.
func (r *record) leave(l limit, c settled, now int64) bool {
	level := instant{c.mark.At, c.mark.Fraction}
	if r.quota != l.quota || level.fraction >= r.quota || r.before(level) {
		return false
	}
	ms, fraction := exact.MulDiv(c.charged, l.window, l.quota)
	gap := level.minus(ms, fraction, l.quota)
	if gap.roundedUp() <= now { // its start has come
		c.cost = max(c.cost, 1)
	}
	ms, fraction = exact.MulDiv(c.cost, l.window, l.quota)
	gap = gap.plus(ms, fraction, l.quota)
	if r.gaps > 0 && !(instant{ms: now}).before(r.gapsEnd()) {
		// The time since the first gap began is at least as long as all gaps, so charges that
		// stay lie between them. Later gaps count from zero.
		r.gapsAt, r.gaps = instant{}, 0
	}
	switch {
	case level == r.instant:
		r.instant = gap
	case c.cost < c.charged:
		if r.gaps == 0 || gap.before(r.gapsAt) {
			r.gapsAt = gap
		}
		r.gaps = addCount(r.gaps, c.charged-c.cost)
	}
	if r.gaps > 0 && r.gapsEnd() == r.instant {
		r.instant, r.gapsAt, r.gaps = r.gapsAt, instant{}, 0
	}
	return true
}

// gapsEnd is where the queue would end if the gaps followed each other.
func (r *record) gapsEnd() instant {
	ms, fraction := exact.MulDiv(r.gaps, r.window, r.quota)
	return r.gapsAt.plus(ms, fraction, r.quota)
}

// A token bucket keeps its units. Until the next charge they drain at the last charge's rate
// or, if faster, at l's. A queue keeps its end: starts up to it were returned.
func (k bucket) adopt(r *record, l limit) {
	if k.queue {
		part := int64(0)
		r.fraction, part = exact.MulDiv(r.fraction, l.quota, r.quota)
		if part > 0 {
			r.fraction++
		}
		if r.fraction == l.quota {
			r.ms, r.fraction = r.ms+1, 0
		}
		r.quota, r.window, r.gapsAt, r.gaps = l.quota, l.window, instant{}, 0
		return
	}
	if rate, _ := exact.MulDiv(l.quota, r.window, l.window); rate >= r.quota && r.ms >= r.chargedAt {
		r.convert(l, r.chargedAt)
	}
}

// convert makes the units that are left at the instant from drain at l's rate.
func (r *record) convert(l limit, from int64) {
	units, part := exact.MulDiv(r.ms-from, r.quota, r.window)
	part += r.fraction // in 1/window of a unit
	units, part = addCount(units, part/r.window), part%r.window
	ahead, fraction := exact.MulDiv(units, l.window, l.quota)
	part, lost := exact.MulDiv(part, l.window, r.window)
	if lost > 0 { // rounded up, as units and times are
		part++
	}
	carry, part := exact.MulDiv(part, 1, l.quota)
	ahead, fraction = ahead+carry, fraction+part
	if fraction >= l.quota {
		ahead, fraction = ahead+1, fraction-l.quota
	}
	r.instant, r.quota, r.window = instant{addInstant(from, ahead), fraction}, l.quota, l.window
}

// A queue is extended to the end of the other policy's longest queue, so that no start is
// given twice. Otherwise the charge moves r's instant no further than a full bucket's or, if
// later, the other policy's: the other policy may allow far more than this one.
func (k bucket) join(r *record, current []record, cost, now int64) {
	drained := int64(0) // when the other policy's buckets have drained
	for i := range current {
		if current[i].kind == r.kind {
			drained = max(drained, current[i].roundedUp())
		}
	}
	if k.queue && drained > 0 {
		if drained > r.ms {
			r.instant = instant{ms: drained}
		}
		return
	}
	old := r.instant
	k.charge(r, limit{window: r.window, quota: r.quota, capacity: r.capacity}, cost, now)
	ahead, part := exact.MulDiv(r.capacity, r.window, r.quota)
	full := instant{addInstant(now, ahead), part}
	if full.ms < drained {
		full = instant{ms: drained}
	}
	if full.before(r.instant) {
		r.instant = full
		if full.before(old) {
			r.instant = old
		}
	}
}

// The units of c are sure to count only until they would have drained from an empty bucket. A
// place in a queue is not refunded.
func (k bucket) giveBackJoined(r *record, c settled, now int64) {
	now = max(now, r.chargedAt)
	ahead, fraction := exact.MulDiv(c.charged, r.window, r.quota)
	c.mark = driver.Mark{At: addInstant(c.takenAt, ahead), Fraction: fraction}
	if !k.queue && k.resetAt(r, now) > now && c.mark.At >= now {
		r.refill(c, now, instant{})
	}
}

func (k bucket) append(b []byte, r *record) []byte {
	b = appendCount(appendInstant(b, r.ms), r.fraction)
	b = appendCount(appendInstant(appendCount(b, r.quota), r.chargedAt), r.capacity)
	if k.queue {
		b = appendCount(appendCount(appendInstant(b, r.gapsAt.ms), r.gapsAt.fraction), r.gaps)
	}
	return b
}

func (k bucket) parse(p parser, r *record) parser {
	r.ms, r.fraction, r.quota, r.chargedAt, r.capacity = p.instant(), p.count(), p.count(), p.instant(), p.count()
	if k.queue {
		r.gapsAt, r.gaps = instant{p.instant(), p.count()}, p.count()
	}
	p.failed = p.failed || max(r.fraction, r.gapsAt.fraction) >= r.quota
	return p
}
