// Package clock says where "now" comes from.
//
// Every decision of weir is made at an instant that the application chooses:
// no server's clock and no TTL takes part in it. That is what lets a test
// travel in time against a real Redis, and what lets many processes speak of
// one window without comparing clocks with a server.
package clock

import (
	"sync/atomic"
	"time"
)

// Clock tells the time. Implementations must be safe for concurrent use.
type Clock interface {
	Now() time.Time
}

// System is the wall clock of this process.
type System struct{}

// Now returns [time.Now].
func (System) Now() time.Time { return time.Now() }

// Manual is a clock that moves only when told to, forward or back. It is for
// tests. Its zero value stands at the Unix epoch.
type Manual struct {
	sinceEpoch atomic.Int64 // ns
}

// NewManual returns a clock that stands at t.
func NewManual(t time.Time) *Manual {
	m := new(Manual)
	m.Set(t)
	return m
}

// Now returns the instant at which the clock stands, in UTC.
func (m *Manual) Now() time.Time { return time.Unix(0, m.sinceEpoch.Load()).UTC() }

// Set moves the clock to t, which may lie in its past.
func (m *Manual) Set(t time.Time) { m.sinceEpoch.Store(t.UnixNano()) }

// Advance moves the clock by d, which may be negative, and returns the new
// instant.
func (m *Manual) Advance(d time.Duration) time.Time {
	return time.Unix(0, m.sinceEpoch.Add(int64(d))).UTC()
}
