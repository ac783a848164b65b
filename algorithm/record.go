package algorithm

import (
	"time"

	"github.com/weir-go/weir/throttler"
)

// Margin is how long stores keep a state beyond its reset time unless their
// options say otherwise: more than the clocks of the processes differ by.
const Margin = 5 * time.Second

// Largest values that are stored; what would exceed them stays there.
const (
	maxCount    = throttler.MaxQuota
	maxLogCost  = 1<<32 - 1       // of one log entry
	maxInstant  = 253402300799000 // throttler.Never in ms: it fits six bytes
	never       = -1              // a Result's RetryAt
	longestForm = 1 << 28         // ms, the windows that the short form can name
)

// kind says how a record counts. Its values are stored.
type kind uint8

const (
	fixedWindow kind = iota + 1
	alignedWindow
	slidingWindow
	slidingLog
	tokenBucket
	leakyBucket
)

// record is what one limit keeps. It is named by kind and window, not by its
// place, so that the limits of a policy can change and keep their counts.
type record struct {
	kind   kind
	window int64

	// fixed windows: the window's reset-at
	// sliding window: the start of the current window
	// buckets: the instant at which the bucket is drained
	at int64

	// fixed windows: used. sliding window: used in the current window.
	// sliding log: the sum of the entries.
	count int64

	// sliding window: used in the window before
	previous int64

	// buckets: what at leaves of a millisecond, in units of 1/quota of it
	fraction int64

	// sliding log: oldest first, instants rising
	log []entry
}

type entry struct{ at, cost int64 }

// limit is a throttler.Limit in the numbers that the algorithms use.
type limit struct {
	kind     kind
	window   int64
	quota    int64
	capacity int64
}

func limitOf(l *throttler.Limit) limit {
	k := kindOf(l)
	return limit{kind: k, window: int64(l.Window / time.Millisecond), quota: l.Quota, capacity: l.Capacity()}
}

func kindOf(l *throttler.Limit) kind {
	switch l.Algorithm {
	case throttler.SlidingWindow:
		return slidingWindow
	case throttler.SlidingLog:
		return slidingLog
	case throttler.TokenBucket:
		return tokenBucket
	case throttler.LeakyBucket:
		return leakyBucket
	}
	if l.Aligned {
		return alignedWindow
	}
	return fixedWindow
}

// sameAlgorithm reports whether a record of kind a can go on as one of kind b.
func sameAlgorithm(a, b kind) bool {
	return a == b || a <= alignedWindow && b <= alignedWindow
}

// used returns what counts at now, rounded up.
func (r *record) used(l limit, now int64) int64 {
	switch r.kind {
	case slidingWindow:
		return r.slidingUsed(now)
	case slidingLog:
		return r.logUsed()
	case tokenBucket, leakyBucket:
		return r.bucketUsed(l, now)
	}
	return r.fixedUsed(now)
}

// resetAt returns the instant from which nothing counts; now if nothing does.
func (r *record) resetAt(now int64) int64 {
	switch r.kind {
	case slidingWindow:
		return r.slidingResetAt(now)
	case slidingLog:
		return r.logResetAt(now)
	case tokenBucket, leakyBucket:
		return r.bucketResetAt(now)
	}
	return max(r.at, now)
}

func (r *record) live(now int64) bool { return r.resetAt(now) > now }

// retryAt returns the first instant at which cost fits, given that it does not
// fit now.
func (r *record) retryAt(l limit, cost, now int64) int64 {
	if cost > l.capacity {
		return never
	}
	switch r.kind {
	case slidingWindow:
		return r.slidingRetryAt(l, cost, now)
	case slidingLog:
		return r.logRetryAt(l, cost, now)
	case tokenBucket, leakyBucket:
		return r.bucketRetryAt(l, cost)
	}
	return r.at
}

// charge adds cost, room or no room, and returns what names the charge.
func (r *record) charge(l limit, cost, now int64) throttler.Mark {
	switch r.kind {
	case slidingWindow:
		return r.slidingCharge(cost, now)
	case slidingLog:
		return r.logCharge(cost, now)
	case tokenBucket, leakyBucket:
		return r.bucketCharge(l, cost, now)
	}
	return r.fixedCharge(cost, now)
}

// giveBack returns amount of the charge that mark names, as far as it still
// counts.
func (r *record) giveBack(l limit, mark throttler.Mark, amount, now int64) {
	switch r.kind {
	case slidingWindow:
		r.slidingGiveBack(mark, amount)
	case slidingLog:
		r.logGiveBack(mark, amount)
	case tokenBucket, leakyBucket:
		r.bucketGiveBack(l, mark, amount, now)
	default:
		r.fixedGiveBack(mark, amount)
	}
}

// adopt makes a record of the same algorithm go on under limit l, at now.
func (r *record) adopt(l limit, now int64) {
	if r.kind == slidingWindow && r.window != l.window {
		r.slidingAdopt(l, now)
	}
	r.kind, r.window = l.kind, l.window
	if r.kind == slidingLog {
		r.logPrune(now)
	}
}
