package shares

import (
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/quota"
)

// bucket is a token bucket in one word, which takes change by compare-and-swap. The word
// is an instant and the tokens that there were at it; those that came since are the time
// since times the rate. They are added up only when they are asked for, so no fraction is
// ever lost, and a bucket says to the last bit what package algorithm's says.
//
// The instant is 41 bits of ms since an epoch, the tokens are 22. When a take leaves less
// than none, the instant moves on by a time in which the rate gives a whole number of
// tokens: to after the present, if what is taken is still to come.
//
// The zero bucket is full.
type bucket struct{ word atomic.Uint64 }

const (
	tokenBits   = 22
	maxTokens   = 1<<tokenBits - 1
	instantBits = 41
	maxInstant  = 1<<instantBits - 1 // 69 years

	latestInstant = maxInstant - int64(quota.MaxWindow/time.Millisecond) // at which something is decided
)

// share is what a bucket holds and gets: at most capacity tokens, and units per window
// ms, both from 0 to maxTokens. It does not change; buckets move from one share to
// another.
type share struct {
	units, window, capacity int64

	// The shortest time, in whole ms, in which the rate gives a whole number of tokens.
	stepTime, stepTokens int64
}

func newShare(units, window, capacity int64) share {
	a, b := units, window
	for b != 0 {
		a, b = b, a%b
	}
	// If units is 0, a is the window.
	return share{units: units, window: window, capacity: capacity, stepTime: window / a, stepTokens: units / a}
}

// level is what a bucket has: tokens at an instant, and the rate times the time since.
type level struct{ at, tokens int64 }

// read returns what word says at now, and no more than the capacity.
func (s *share) read(word uint64, now int64) level {
	v := level{at: int64(word >> tokenBits), tokens: int64(word & maxTokens)}
	if s.has(v, s.capacity, now) {
		return level{at: now, tokens: s.capacity}
	}
	return v
}

// has reports whether v has n tokens at now.
func (s *share) has(v level, n, now int64) bool {
	return (now-v.at)*s.units >= (n-v.tokens)*s.window // below 2^63: 41 bits and 22
}

// word returns the word that says v, whose tokens may be below none or above maxTokens.
func (s *share) word(v level) uint64 {
	if v.tokens < 0 || v.tokens > maxTokens {
		v = s.fold(v)
	}
	return uint64(v.at)<<tokenBits | uint64(v.tokens)
}

// fold returns v with tokens that a word can have, by whole steps of the rate. Without a
// rate, nothing is owed: it would be owed for ever.
func (s *share) fold(v level) level {
	if s.units == 0 {
		return level{at: v.at}
	}
	if v.tokens > maxTokens {
		steps := divUp(v.tokens-maxTokens, s.stepTokens)
		return level{at: max(v.at-steps*s.stepTime, 0), tokens: v.tokens - steps*s.stepTokens}
	}
	steps := divUp(-v.tokens, s.stepTokens)
	if steps > (maxInstant-v.at)/s.stepTime { // a debt of decades
		return level{at: maxInstant}
	}
	return level{at: v.at + steps*s.stepTime, tokens: v.tokens + steps*s.stepTokens}
}

// take takes n tokens at now, in ms since the epoch, if there are as many. It returns what
// there is afterwards.
func (b *bucket) take(s *share, n, now int64) (v level, ok bool) {
	for {
		word := b.word.Load()
		v = s.read(word, now)
		if n > s.capacity || !s.has(v, n, now) {
			return v, false
		}
		v.tokens -= n
		if b.word.CompareAndSwap(word, s.word(v)) {
			return v, true
		}
	}
}

// peek returns what there is at now.
func (b *bucket) peek(s *share, now int64) level { return s.read(b.word.Load(), now) }

// charge takes n tokens at now, there or not. Takes wait until the rate has made up for
// those that were not.
func (b *bucket) charge(s *share, n, now int64) level {
	for {
		word := b.word.Load()
		v := s.read(word, now)
		v.tokens -= n
		less := s.word(v)
		if b.word.CompareAndSwap(word, less) {
			return s.read(less, now)
		}
	}
}

// giveBack gives n tokens back at now. The charge that took them left a bucket that was to
// be full at an instant, with a rest, as hasAt returns it. The rate gives tokens back in
// the order in which they were taken, and what it has given is not given twice.
func (b *bucket) giveBack(s *share, n, full, rest, now int64) level {
	for {
		word := b.word.Load()
		v := s.read(word, now)
		left := full - now
		switch {
		case left < 0 || v.at == now && v.tokens == s.capacity:
			return v
		case left*s.units+min(rest, s.units-1) >= n*s.window:
			v.tokens += n
		default:
			v.at -= left
		}
		v = s.read(s.word(v), now)
		if b.word.CompareAndSwap(word, s.word(v)) {
			return v
		}
	}
}

// move makes a bucket under from one under to, at now, with the same tokens or, if they
// are more, the capacity of to. A fraction of a token is kept to the ms. It must not run
// at the same time as other methods.
func (b *bucket) move(from, to *share, now int64) {
	v := from.read(b.word.Load(), now)
	if to.units == 0 {
		v = level{at: now}
	} else if from.units != to.units {
		whole := divDown((now-v.at)*from.units, from.window)
		rest := (now-v.at)*from.units - whole*from.window
		v = level{at: now - rest/to.units, tokens: v.tokens + whole}
	}
	v = to.read(to.word(v), now)
	b.word.Store(to.word(v))
}

// whole returns the tokens of v at now, rounded down.
func (s *share) whole(v level, now int64) int64 {
	return v.tokens + divDown((now-v.at)*s.units, s.window)
}

// hasAt returns the instant at which v has n tokens, in ms and a rest in 1/units of a ms.
func (s *share) hasAt(v level, n int64) (at, rest int64) {
	missing := (n - v.tokens) * s.window
	at = divDown(missing, s.units)
	return v.at + at, missing - at*s.units
}

func divDown(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func divUp(a, b int64) int64 { return -divDown(-a, b) }
