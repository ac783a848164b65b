package shares

// bucket is a token bucket: the tokens that it had at an instant. Negative tokens are a debt.
//
// Package algorithm keeps the time when a bucket is full, and so its tokens change with the rate,
// which each division changes, even to none. This bucket keeps the tokens, and under one share its
// results are equal to package algorithm's to the last bit.
type bucket struct {
	instant   int64 // ms
	tokens    int64
	chargedAt int64 // ms: the latest time of a charge, by the clock furthest ahead; 0 since it was full
}

// With these bounds, no product has more than 63 bits: a quota.MaxWindow has 35.
const (
	maxTokens = 1<<22 - 1 // of a quota, and of a burst
	maxTime   = 1 << 40   // ms, 34 years, for which a bucket fills or a debt lasts
)

// share describes a bucket: it holds at most capacity tokens, and gains units per window
// ms, both from 0 to maxTokens. It doesn't change; buckets move from one share to
// another.
type share struct{ units, window, capacity int64 }

// full returns a full bucket.
func (s *share) full(now int64) bucket { return bucket{instant: now, tokens: s.capacity} }

// gained returns the gain of b until now, in 1/window of a token.
func (s *share) gained(b bucket, now int64) int64 {
	return min(max(now-b.instant, -maxTime), maxTime) * s.units
}

// holds reports whether b has n tokens at now.
func (s *share) holds(b bucket, n, now int64) bool {
	return s.gained(b, now) >= (n-b.tokens)*s.window
}

// wholeUnits returns the tokens of b at now, rounded down.
func (s *share) wholeUnits(b bucket, now int64) int64 {
	return b.tokens + divDown(s.gained(b, now), s.window)
}

// hasAt returns the instant at which b has n tokens, in ms plus a remainder in 1/units of a ms.
func (s *share) hasAt(b bucket, n int64) (instant, remainder int64) {
	if s.units == 0 {
		return b.instant, 0
	}
	missing := (n - b.tokens) * s.window
	wait := divDown(missing, s.units)
	return b.instant + wait, missing - wait*s.units
}

// capped returns b or, if it has all of its tokens by now, a full bucket.
func (s *share) capped(b bucket, now int64) bucket {
	if s.holds(b, s.capacity, now) {
		return s.full(now)
	}
	return b
}

// charge takes n tokens at now, even if b has fewer. Takes then wait until the rate has made
// up for the debt. charge returns the bucket that it leaves.
func (b *bucket) charge(s *share, n, now int64) bucket {
	*b = s.capped(*b, now)
	b.tokens, b.chargedAt = max(b.tokens-n, -maxTime*s.units/s.window), max(b.chargedAt, now)
	return *b
}

// giveBack refunds n tokens at now. full and remainder, as hasAt returns them, are when the
// bucket that the charge left would have been full. The rate restores tokens in the order in
// which they were taken, and giveBack does not refund tokens that it has restored: by the last
// charge, if now is of a clock behind.
func (b *bucket) giveBack(s *share, n, full, remainder, now int64) {
	now = max(now, b.chargedAt)
	*b = s.capped(*b, now)
	switch wait := full - now; {
	case wait < 0 || *b == s.full(now): // all are restored
	case (wait*s.units+min(remainder, s.units-1))/s.window >= n: // none
		b.tokens += n
	default: // some
		b.instant -= wait
	}
	*b = s.capped(*b, now)
}

// move moves b from one share to another at now. It keeps the tokens, up to the capacity of
// to, and a fraction of a token to the ms. If to has no rate, a debt ends: it would be owed
// for ever.
func (b *bucket) move(from, to *share, now int64) {
	v := from.capped(*b, now)
	switch {
	case to.units == 0:
		v = bucket{instant: now}
	case from.units != to.units:
		gained := from.gained(v, now)
		units := divDown(gained, from.window)
		v.instant, v.tokens = now-(gained-units*from.window)/to.units, v.tokens+units
	}
	*b = to.capped(v, now)
}

func divDown(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func divUp(a, b int64) int64 { return -divDown(-a, b) }
