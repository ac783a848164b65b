package algorithm

import (
	"time"

	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// fixedWindow keeps a count and the window's reset-at, which is set when the
// window opens and never again.
type fixedWindow struct{ aligned bool }

func (fixedWindow) used(r *record, _ limit, now int64) int64 {
	if now >= r.ms {
		return 0
	}
	return r.count
}

func (fixedWindow) resetAt(r *record, now int64) int64 { return max(r.ms, now) }

func (fixedWindow) retryAt(r *record, _ limit, _, _ int64) int64 { return r.ms }

func (f fixedWindow) charge(r *record, l limit, cost, now int64) charged {
	if now < r.ms {
		r.count = addCount(r.count, cost)
	} else {
		r.ms, r.count = f.opensUntil(l, now), cost
	}
	return charged{mark: driver.Mark{At: r.ms}}
}

func (fixedWindow) lastCharge(r *record, _ int64) charged {
	return charged{mark: driver.Mark{At: r.ms}}
}

// opensUntil returns the reset-at of a window that opens at now.
func (f fixedWindow) opensUntil(l limit, now int64) int64 {
	switch {
	case l.kind == calendarKind:
		return endOf(l.calendar, now)
	case f.aligned:
		now -= now % l.window
	}
	return addInstant(now, l.window)
}

// endOf returns the reset-at of a calendar's window that is open at now.
func endOf(c *quota.Calendar, now int64) int64 {
	return min(c.End(time.UnixMilli(now)).UnixMilli(), maxInstant)
}

func (fixedWindow) giveBack(r *record, _ limit, c settled, _ int64) bool {
	if c.mark.At != r.ms {
		return false
	}
	r.count = max(r.count-(c.charged-c.cost), 0)
	return true
}

// A window that is open ends when one of the new length, opened with it, would have
// ended. A longer window opens with its first charge.
func (fixedWindow) adopt(r *record, l limit) {
	if r.window < l.window {
		r.ms, r.count = 0, 0
	} else {
		r.ms = max(r.ms-(r.window-l.window), 0)
	}
	r.window = l.window
}

func (fixedWindow) join(r *record, _ []record, cost, _ int64) {
	r.count = addCount(r.count, cost)
}

func (fixedWindow) giveBackJoined(r *record, c settled, _ int64) {
	if r.ms-r.window <= c.takenAt && c.takenAt < r.ms {
		r.count = max(r.count-(c.charged-c.cost), 0)
	}
}

func (fixedWindow) append(b []byte, r *record) []byte {
	return appendCount(appendInstant(b, r.ms), r.count)
}

func (fixedWindow) parse(p parser, r *record) parser {
	r.ms, r.count = p.instant(), p.count()
	return p
}
