package node

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/clock"
)

// maxCorrection is the most by which a corrected clock differs from its process' clock.
const maxCorrection = 10 * time.Second

// reading is a server's time, read at a time of this process' clock. If that has a monotonic
// reading, steps of the wall clock do not make it wrong.
type reading struct {
	instant time.Time // halfway between question and answer
	server  time.Time
	bound   time.Duration // half the time between the two: how accurate server is
}

func newReading(sent, answered, server time.Time) reading {
	half := max(answered.Sub(sent), 0) / 2
	return reading{sent.Add(half), server, half}
}

// serverAt returns the server's time at now, and its accuracy: quartz clocks drift by some
// 20 ppm, and bad ones by 200.
func (r reading) serverAt(now time.Time) (instant time.Time, bound time.Duration) {
	passed := now.Sub(r.instant)
	return r.server.Add(passed), r.bound + passed.Abs()/5000
}

// skewAt returns how far now is ahead of the server.
func (r reading) skewAt(now time.Time) time.Duration {
	instant, _ := r.serverAt(now)
	return now.Round(0).Sub(instant)
}

// better returns the better of r and a newer reading. If they agree, it is the more accurate
// one, which had the shorter round trip. If they contradict each other, a clock was set, and
// the newer one is right.
func (r reading) better(newer reading) reading {
	instant, bound := r.serverAt(newer.instant)
	if instant.Sub(newer.server).Abs() > bound+newer.bound+time.Millisecond || newer.bound <= bound {
		return newer
	}
	return r
}

// correctedClock is a process' clock, corrected by its servers' clocks. It runs at the rate of
// the process' clock.
type correctedClock struct {
	local  clock.Clock
	anchor atomic.Pointer[anchor] // nil: not corrected
	last   atomic.Int64           // ms since the epoch, as Now last returned it
}

// anchor is a corrected time, at a time of the process' clock.
type anchor struct{ local, corrected time.Time }

// Now returns the corrected time, in whole milliseconds.
func (c *correctedClock) Now() time.Time { return time.UnixMilli(c.UnixMilli()) }

// UnixMilli returns the corrected time in ms since the epoch. It does not go back, except by
// steps so large that no promise holds.
func (c *correctedClock) UnixMilli() int64 {
	ms := c.now().UnixMilli()
	for {
		last := c.last.Load()
		if ms <= last && last-ms <= maxCorrection.Milliseconds() {
			return last
		}
		if c.last.CompareAndSwap(last, ms) {
			return ms
		}
	}
}

func (c *correctedClock) now() time.Time {
	a := c.anchor.Load()
	if a == nil {
		return c.local.Now()
	}
	if _, ok := c.local.(clock.System); ok {
		return a.corrected.Add(time.Since(a.local)) // reads the monotonic clock alone, which takes half as long
	}
	return a.corrected.Add(c.local.Now().Sub(a.local))
}

// correct makes c show the median of the servers' times from now on. It leaves out servers
// that differ by more than maxCorrection from the process' clock. If no server is left, c
// shows the process' time.
func (c *correctedClock) correct(readings []reading) {
	now := c.local.Now()
	var times []time.Time
	for _, r := range readings {
		if r.skewAt(now).Abs() <= maxCorrection {
			instant, _ := r.serverAt(now)
			times = append(times, instant)
		}
	}
	if len(times) == 0 {
		c.anchor.Store(nil)
		return
	}
	slices.SortFunc(times, time.Time.Compare)
	low, high := times[(len(times)-1)/2], times[len(times)/2]
	c.anchor.Store(&anchor{local: now, corrected: low.Add(high.Sub(low) / 2)})
}
