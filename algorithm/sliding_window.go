package algorithm

import "github.com/weir-go/weir/throttler"

// The sliding window keeps the counts of two adjacent windows that begin on
// multiples of the window since the epoch. It estimates what was used in the
// last window's length as previous * (share of it still inside) + current.
//
// https://blog.cloudflare.com/counting-things-a-lot-of-different-things/

// at now, the record as it stands after windows that ended have moved on.
func (r *record) slidingNow(now int64) (start, elapsed, current, previous int64) {
	start = now - now%r.window
	switch {
	case start <= r.at: // also when time stepped back: the stored window holds
		return r.at, max(now-r.at, 0), r.count, r.previous
	case start == r.at+r.window:
		return start, now - start, 0, r.count
	}
	return start, now - start, 0, 0
}

func (r *record) slidingUsed(now int64) int64 {
	_, elapsed, current, previous := r.slidingNow(now)
	weighted, rest := mulDiv(previous, r.window-elapsed, r.window)
	if rest > 0 {
		weighted++
	}
	return addCount(weighted, current)
}

func (r *record) slidingResetAt(now int64) int64 {
	start, _, current, previous := r.slidingNow(now)
	switch {
	case current > 0:
		return addInstant(start, 2*r.window)
	case previous > 0:
		return addInstant(start, r.window)
	}
	return now
}

// It fits at the first elapsed for which
//
//	previous * (window - elapsed) <= (quota - cost - current) * window
//
// in this window, or in the next one, where current has become previous.
func (r *record) slidingRetryAt(l limit, cost, now int64) int64 {
	start, _, current, previous := r.slidingNow(now)
	room := l.capacity - cost - current
	if room < 0 {
		start, room, previous = addInstant(start, r.window), l.capacity-cost, current
	}
	inside, _ := mulDiv(room, r.window, previous)
	return addInstant(start, r.window-min(inside, r.window))
}

func (r *record) slidingCharge(cost, now int64) throttler.Mark {
	start, _, current, previous := r.slidingNow(now)
	r.at, r.count, r.previous = start, addCount(current, cost), previous
	return throttler.Mark{At: start}
}

func (r *record) slidingGiveBack(mark throttler.Mark, amount int64) {
	switch mark.At {
	case r.at:
		r.count = max(r.count-amount, 0)
	case r.at - r.window:
		r.previous = max(r.previous-amount, 0)
	}
}

// Counts in windows of another length can not be split exactly: what counts
// now counts on as if charged now.
func (r *record) slidingAdopt(l limit, now int64) {
	used := r.slidingUsed(now)
	r.at, r.count, r.previous = now-now%l.window, used, 0
}
