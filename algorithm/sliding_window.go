package algorithm

import "github.com/weir-go/weir/throttler"

// slidingWindow keeps the counts of two adjacent windows that begin on multiples
// of the window since the epoch. It estimates what was used in the last window's
// length as previous * (share of it still inside) + current.
//
// https://blog.cloudflare.com/counting-things-a-lot-of-different-things/
type slidingWindow struct{}

// moved returns the record at now, after windows that ended have moved on.
func (slidingWindow) moved(r *record, now int64) (start, elapsed, current, previous int64) {
	start = now - now%r.window
	switch {
	case start <= r.at: // also when time stepped back: the stored window holds
		return r.at, max(now-r.at, 0), r.count, r.previous
	case start == r.at+r.window:
		return start, now - start, 0, r.count
	}
	return start, now - start, 0, 0
}

func (s slidingWindow) used(r *record, _ limit, now int64) int64 {
	_, elapsed, current, previous := s.moved(r, now)
	weighted, rest := mulDiv(previous, r.window-elapsed, r.window)
	if rest > 0 {
		weighted++
	}
	return addCount(weighted, current)
}

func (s slidingWindow) resetAt(r *record, now int64) int64 {
	start, _, current, previous := s.moved(r, now)
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
func (s slidingWindow) retryAt(r *record, l limit, cost, now int64) int64 {
	start, _, current, previous := s.moved(r, now)
	room := l.capacity - cost - current
	if room < 0 {
		start, room, previous = addInstant(start, r.window), l.capacity-cost, current
	}
	inside, _ := mulDiv(room, r.window, previous)
	return addInstant(start, r.window-min(inside, r.window))
}

func (s slidingWindow) charge(r *record, _ limit, cost, now int64) charged {
	start, _, current, previous := s.moved(r, now)
	r.at, r.count, r.previous = start, addCount(current, cost), previous
	return charged{mark: throttler.Mark{At: start}}
}

func (slidingWindow) giveBack(r *record, _ limit, mark throttler.Mark, amount, _ int64) {
	switch mark.At {
	case r.at:
		r.count = max(r.count-amount, 0)
	case r.at - r.window:
		r.previous = max(r.previous-amount, 0)
	}
}

// Counts in windows of another length cannot be split exactly: what counts now
// counts on as if charged now.
func (s slidingWindow) adopt(r *record, l limit, now int64) {
	r.at, r.count, r.previous = now-now%l.window, s.used(r, l, now), 0
}

func (slidingWindow) append(b []byte, r *record) []byte {
	return appendCount(appendCount(appendInstant(b, r.at), r.count), r.previous)
}

func (slidingWindow) size(*record) int { return instantBytes + 2*countBytes }

func (slidingWindow) parse(b []byte, r *record) ([]byte, bool) {
	p := parser{rest: b}
	r.at, r.count, r.previous = p.instant(), p.count(), p.count()
	return p.rest, !p.failed
}

func (slidingWindow) lifetime(l limit) float64 { return 2 * float64(l.window) }
