package algorithm

import (
	"slices"
	"time"

	"github.com/weir-go/weir/internal/exact"
	"github.com/weir-go/weir/throttler/quota"
)

// Margin is how long stores keep a state beyond its reset time unless their
// options say otherwise: more than the clocks of any two processes differ by.
const Margin = 10 * time.Second

// Largest values that are stored. A larger value is stored as the largest. The Redis scripts
// have the same constants.
const (
	maxCount   = quota.MaxQuota
	maxLogCost = 1<<32 - 1           // of one log entry
	maxInstant = 253402300799000     // decision.Never in ms: it fits six bytes
	maxRecords = 2 * quota.MaxLimits // of a state: the limits of one policy, and as many left over
)

// record is the count of one limit. It is named by kind and window, not by its place, so that
// the limits of a policy can change and keep their counts.
type record struct {
	kind   kind
	window int64

	// fixed windows: the window's reset-at
	// sliding window: the start of the current window
	// buckets: when the bucket is drained
	instant

	// fixed windows: used. sliding window: used in the current window.
	// sliding log: the sum of the entries.
	count int64

	// sliding window: used in the window before
	previous int64

	// buckets: the quota and capacity under which the bucket was last charged, and the latest
	// time of a charge, by the clock furthest ahead, so that at minus chargedAt is at most the
	// time to drain; otherwise 0
	quota     int64
	capacity  int64
	chargedAt int64

	// leaky bucket: the units of places that were refunded while charges were behind them, and
	// where the first such place begins; otherwise 0
	gaps   int64
	gapsAt instant

	// sliding log: oldest first, instants rising
	log []entry

	// endsAt is when the record is dropped, because other policies charge it and its own no
	// longer does: its reset time when its own policy last charged it. 0 if no other policy
	// has charged it since.
	endsAt int64
}

// instant is a whole millisecond since the epoch and, for buckets, a fraction of the next one
// in units of 1/quota of it.
type instant struct{ ms, fraction int64 }

func (i instant) before(j instant) bool {
	return i.ms < j.ms || i.ms == j.ms && i.fraction < j.fraction
}

// roundedUp returns i in whole milliseconds, rounded up.
func (i instant) roundedUp() int64 {
	if i.fraction > 0 {
		return addInstant(i.ms, 1)
	}
	return i.ms
}

// plus returns the instant ms and a fraction after i.
func (i instant) plus(ms, fraction, quota int64) instant {
	i.ms, i.fraction = addInstant(i.ms, ms), i.fraction+fraction
	if i.fraction >= quota {
		i.ms, i.fraction = addInstant(i.ms, 1), i.fraction-quota
	}
	return i
}

// minus returns the instant ms and a fraction before i, or the epoch if that is later: earlier
// instants can't be stored.
func (i instant) minus(ms, fraction, quota int64) instant {
	i.ms, i.fraction = i.ms-ms, i.fraction-fraction
	if i.fraction < 0 {
		i.ms, i.fraction = i.ms-1, i.fraction+quota
	}
	if i.ms < 0 {
		return instant{}
	}
	return i
}

// limit is a quota.Limit in the numbers that the algorithms use.
type limit struct {
	kind     kind
	window   int64
	quota    int64
	capacity int64
	calendar *quota.Calendar // says when windows of calendarKind end
}

func limitOf(l *quota.Limit) limit {
	return limit{kind: kindOf(l), window: int64(l.Length() / time.Millisecond), quota: l.Quota, capacity: l.Capacity(), calendar: &l.Calendar}
}

// countsFor reports whether r is l's own record and counts as l does.
func (r *record) countsFor(l limit) bool {
	return r.kind == l.kind && r.window == l.window && (r.quota == 0 || r.quota == l.quota)
}

// adoptedBy returns a copy of r, a record of another window or quota, that counts under l and
// shares no memory with r. It never counts more than r, at any instant, and depends only on r
// and l, so every process computes the same.
func (r *record) adoptedBy(l limit) *record {
	adopted := *r
	adopted.log = slices.Clone(r.log)
	adopted.kind, adopted.endsAt = l.kind, 0
	l.kind.counter().adopt(&adopted, l)
	return &adopted
}

func (r *record) resetAt(now int64) int64 { return r.kind.counter().resetAt(r, now) }

// life returns for how many ms r counts at most: see State.Life.
func (r *record) life(now int64) int64 {
	longest := 2 * r.window
	if r.quota > 0 { // a bucket
		longest = max(longest, r.roundedUp()-r.chargedAt)
	}
	return min(r.resetAt(now)-now, longest)
}

func (r *record) live(now int64) bool { return r.resetAt(now) > now }

// nearer reports whether the window a is nearer to w than b is, by their ratio. It is exact:
// two different ratios may be equal as floats.
func nearer(a, b, w int64) bool {
	ratio, _ := exact.MulDiv(max(a, w), min(b, w), min(a, w))
	return ratio < max(b, w)
}
