package clock

import (
	"sync/atomic"
	"time"
)

// System is the wall clock of this process.
type System struct{}

// Now returns [time.Now].
func (System) Now() time.Time { return time.Now() }

// UnixMilli returns Now().UnixMilli() in half the time: to read the wall clock and the
// monotonic clock takes twice as long as to read one of them, and as long as many a
// decision. So it reads the wall clock once in maxReading, and in between adds the time
// that has passed by the monotonic clock. The results differ only if the wall clock is
// set: UnixMilli sees a step within maxReading.
func (System) UnixMilli() int64 {
	if r := lastReading.Load(); r != nil {
		// Negative, or large, if the times are from two clocks: in a bubble of
		// testing/synctest, and after it.
		if passed := time.Since(r.instant); passed >= 0 && passed < maxReading {
			return (r.wall + int64(passed)) / int64(time.Millisecond)
		}
	}
	now := time.Now()
	lastReading.Store(&reading{instant: now, wall: now.UnixNano()})
	return now.UnixMilli()
}

// maxReading is how long a reading of the wall clock is used.
const maxReading = 10 * time.Millisecond

// reading is a reading of both clocks at once.
type reading struct {
	instant time.Time // with a monotonic clock reading
	wall    int64     // ns since the epoch
}

var lastReading atomic.Pointer[reading]
