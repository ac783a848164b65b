package algorithm

import (
	"github.com/weir-go/weir/internal/exact"
	"github.com/weir-go/weir/throttler/driver"
)

// slidingWindow keeps the counts of two adjacent windows, which begin on multiples of the
// window since the epoch or, where the window was changed, since the record began. It
// estimates the units used in the last window's length as previous * (share of it still
// inside) + current.
//
// https://blog.cloudflare.com/counting-things-a-lot-of-different-things/
type slidingWindow struct{}

// moved returns the record at now, after windows that ended have moved on.
func (slidingWindow) moved(r *record, now int64) (start, elapsed, current, previous int64) {
	if now < r.ms+r.window { // also when time stepped back: the stored window holds
		return r.ms, max(now-r.ms, 0), r.count, r.previous
	}
	start = now - (now-r.ms)%r.window
	if start == r.ms+r.window {
		return start, now - start, 0, r.count
	}
	return start, now - start, 0, 0
}

func (s slidingWindow) used(r *record, _ limit, now int64) int64 {
	_, elapsed, current, previous := s.moved(r, now)
	weighted, remainder := exact.MulDiv(previous, r.window-elapsed, r.window)
	if remainder > 0 {
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

// A charge fits as soon as elapsed satisfies
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
	inside, _ := exact.MulDiv(room, r.window, previous)
	return addInstant(start, r.window-min(inside, r.window))
}

func (s slidingWindow) charge(r *record, _ limit, cost, now int64) charged {
	start, _, current, previous := s.moved(r, now)
	r.ms, r.count, r.previous = start, addCount(current, cost), previous
	return charged{mark: driver.Mark{At: start}}
}

func (slidingWindow) lastCharge(r *record, _ int64) charged {
	return charged{mark: driver.Mark{At: r.ms}}
}

func (slidingWindow) giveBack(r *record, _ limit, c settled, _ int64) bool {
	switch c.mark.At {
	case r.ms:
		r.count = max(r.count-(c.charged-c.cost), 0)
	case r.ms - r.window:
		r.previous = max(r.previous-(c.charged-c.cost), 0)
	default:
		return false
	}
	return true
}

// A shorter window counts from the start that is stored. A longer one begins empty.
func (slidingWindow) adopt(r *record, l limit) {
	if r.window < l.window {
		r.ms, r.count, r.previous = 0, 0, 0
	}
	r.window = l.window
}

func (s slidingWindow) join(r *record, _ []record, cost, now int64) {
	s.charge(r, limit{}, cost, now)
}

func (slidingWindow) giveBackJoined(r *record, c settled, _ int64) {
	switch amount := c.charged - c.cost; {
	case c.takenAt >= r.ms && c.takenAt < r.ms+r.window:
		r.count = max(r.count-amount, 0)
	case c.takenAt >= r.ms-r.window && c.takenAt < r.ms:
		r.previous = max(r.previous-amount, 0)
	}
}

func (slidingWindow) append(b []byte, r *record) []byte {
	return appendCount(appendCount(appendInstant(b, r.ms), r.count), r.previous)
}

func (slidingWindow) parse(p parser, r *record) parser {
	r.ms, r.count, r.previous = p.instant(), p.count(), p.count()
	return p
}
