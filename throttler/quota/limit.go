package quota

import (
	"cmp"
	"fmt"
	"time"

	"github.com/weir-go/weir/internal/exact"
)

// Bounds of what a limit may say. Counts are exact up to 2^53 because Redis
// scripts compute in doubles.
const (
	MaxQuota     = 1 << 53              // of a quota, a burst, a cost
	MaxWindow    = 366 * 24 * time.Hour // of a window, and of the time a burst needs to drain
	MaxLogQuota  = 10_000               // of the quota of a SlidingLog or InFlight, which store each charge
	MaxLimits    = 16                   // in one policy
	MaxCharges   = 16                   // in one take
	MaxNameBytes = 64                   // in a policy's name
	MaxWork      = 84                   // of one decision: the sum of its limits' Work
)

// Limit allows Quota units per Window.
type Limit struct {
	// Quota is the number of units allowed per window, or at once if InFlight: 1 to MaxQuota,
	// and to MaxLogQuota for SlidingLog and InFlight.
	Quota int64

	// Window is the period: whole milliseconds, from 1 ms to MaxWindow; 0 with a Calendar.
	// For an InFlight, it is the lease.
	Window time.Duration

	// Algorithm is how units are counted. The zero value is FixedWindow.
	Algorithm Algorithm

	// Aligned lets a FixedWindow's windows begin on multiples of Window since
	// the Unix epoch, the same ones for all keys, instead of at each key's
	// first charge.
	Aligned bool

	// Burst is the capacity of a TokenBucket or LeakyBucket: the units that
	// can be taken at once from a full bucket, or wait in an empty queue. With
	// Quota 10 per second and Burst 30, a client that was silent for three
	// seconds may send 30 requests at once. If zero, Quota or, for a LeakyBucket
	// with a MaxWait, the units that can wait no longer than that.
	Burst int64

	// MaxWait bounds how long a LeakyBucket lets a charge wait for its start:
	// it refuses a charge that would wait longer. Whole milliseconds. If zero,
	// Burst alone bounds the queue.
	MaxWait time.Duration

	// Calendar, if not zero, makes a FixedWindow's windows days, weeks or months, in
	// place of Window.
	Calendar Calendar
}

// Length returns the length of a window: Window or, with a Calendar, the length of its
// shortest window.
func (l *Limit) Length() time.Duration {
	return l.Window + l.Calendar.Period.Shortest()
}

// Units returns the units that a charge of cost takes: cost, or at most 1 of an InFlight.
func (l *Limit) Units(cost int64) int64 {
	if l.Algorithm.Holds() {
		return min(cost, 1)
	}
	return cost
}

// Per returns the period of the quota in words: "1h", or "month".
func (l *Limit) Per() string {
	if l.Calendar.IsZero() {
		return FormatWindow(l.Window)
	}
	return l.Calendar.Period.String()
}

// Capacity returns the most units that can be taken at once: Quota or, for the
// two buckets, the capacity that Burst and MaxWait set.
func (l Limit) Capacity() int64 { return l.capacity() }

func (l *Limit) capacity() int64 {
	capacity, a := l.Quota, l.Algorithm.traits()
	if a.drains && l.Burst > 0 {
		capacity = l.Burst
	}
	if a.queues && l.MaxWait > 0 {
		// The k-th unit of a queue starts (k-1) * Window/Quota after the first.
		waiting, _ := exact.MulDiv(l.MaxWait.Milliseconds(), l.Quota, l.Window.Milliseconds())
		waiting = min(waiting+1, MaxQuota)
		if l.Burst == 0 || waiting < capacity {
			capacity = waiting
		}
	}
	return capacity
}

// Work returns a server's work for the limit, at most, in each decision: 1 for a
// FixedWindow, 2 for the other algorithms, and for a SlidingLog or an InFlight 1 more for
// each 125 units of its quota. 1 is about 10 µs of a Redis server. See MaxWork.
func (l Limit) Work() int {
	a := l.Algorithm.traits()
	if a.unitsPerWork == 0 {
		return a.work
	}
	return a.work + int(l.Quota/a.unitsPerWork)
}

// String returns the limit as "60 per 1h0m0s (fixed-window)".
func (l Limit) String() string {
	aligned := ""
	if l.Aligned {
		aligned = ", aligned"
	}
	return fmt.Sprintf("%d per %v (%v%s)", l.Quota, l.period(), l.Algorithm, aligned)
}

func (l *Limit) period() fmt.Stringer {
	if l.Calendar.IsZero() {
		return l.Window
	}
	return l.Calendar
}

// validate describes an error of l, in words that follow "limit 0: ". It returns "" if l is
// valid.
func (l *Limit) validate() string {
	a := l.Algorithm.traits()
	switch {
	case l.Quota < 1 || l.Quota > MaxQuota:
		return fmt.Sprintf("quota is %d; it must be from 1 to %d (2^53)", l.Quota, int64(MaxQuota))
	case a.holds && l.Window == 0 && l.Calendar.IsZero():
		return fmt.Sprintf("window is missing; an %v has one, the lease after which a unit of a process that died is free, such as 1m", l.Algorithm)
	case l.Calendar.IsZero() && l.Window < time.Millisecond || l.Window > MaxWindow:
		return fmt.Sprintf("window is %v; it must be from 1ms to %v (366 days)", l.Window, MaxWindow)
	case l.Window%time.Millisecond != 0:
		return fmt.Sprintf("window is %v; it must be whole milliseconds", l.Window)
	case a.name == "":
		return fmt.Sprintf("algorithm is %v; it must be one of %q", l.Algorithm, algorithmNames())
	case l.Quota > a.maxQuota && a.holds:
		return fmt.Sprintf("quota is %d; an %v stores every unit, so it must be at most %d", l.Quota, l.Algorithm, a.maxQuota)
	case l.Quota > a.maxQuota:
		return fmt.Sprintf("quota is %d; a %v stores every charge, so it must be at most %d (a sliding-window has no such bound)", l.Quota, l.Algorithm, a.maxQuota)
	case l.Aligned && !a.aligned:
		return fmt.Sprintf("aligned is set; only a %s can be aligned, not a %v", algorithmsWith(func(a traits) bool { return a.aligned }), l.Algorithm)
	case !l.Calendar.IsZero():
		return cmp.Or(l.validateBucket(a), l.Calendar.problemIn(l))
	}
	return l.validateBucket(a)
}

// validateBucket is validate for the fields that only limits that drain may set.
func (l *Limit) validateBucket(a *traits) string {
	switch {
	case l.Burst != 0 && !a.drains:
		return fmt.Sprintf("burst is %d; only a %s has one, not a %v", l.Burst, algorithmsWith(func(a traits) bool { return a.drains }), l.Algorithm)
	case l.Burst < 0 || l.Burst > MaxQuota:
		return fmt.Sprintf("burst is %d; it must be from 1 to %d (2^53), or 0 for the quota", l.Burst, int64(MaxQuota))
	case l.MaxWait != 0 && !a.queues:
		return fmt.Sprintf("max wait is %v; only a %s has one, not a %v", l.MaxWait, algorithmsWith(func(a traits) bool { return a.queues }), l.Algorithm)
	case l.MaxWait < 0 || l.MaxWait > MaxWindow || l.MaxWait%time.Millisecond != 0:
		return fmt.Sprintf("max wait is %v; it must be whole milliseconds, from 0 to %v", l.MaxWait, MaxWindow)
	case !a.drains || !l.Calendar.IsZero():
		return ""
	}
	if exact.Exceeds(l.Capacity(), l.Window.Milliseconds(), l.Quota, MaxWindow.Milliseconds()) {
		return fmt.Sprintf("a burst of %d at %d per %v takes longer than %v (366 days) to drain; lower the burst or raise the quota", l.Capacity(), l.Quota, l.Window, MaxWindow)
	}
	return ""
}
