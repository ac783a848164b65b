// Package clock provides the time to the rest of weir.
//
// Every decision is made at a time that the application chooses; no server's clock
// and no TTL affects it. So a test can move the time against a real Redis, and
// processes agree on one window without comparing their clocks with a server's.
package clock

import (
	"sync"
	"time"
)

// Clock returns the current time. Implementations must be safe for concurrent use.
type Clock interface {
	// Now returns the current time.
	Now() time.Time
}

// Timer is a Clock whose time may pass at another rate than the system's. Waits
// of other clocks take as long as the system says.
type Timer interface {
	Clock

	// AfterFunc calls f in its own goroutine when d has passed on the clock, at
	// once if d is not positive. stop cancels the call; it returns false if f was
	// called or stopped before.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// AfterFunc calls f in its own goroutine when d has passed on c.
func AfterFunc(c Clock, d time.Duration, f func()) (stop func() bool) {
	if t, ok := c.(Timer); ok {
		return t.AfterFunc(d, f)
	}
	return time.AfterFunc(d, f).Stop
}

// Manual is a Timer that moves only by Set and Advance, forward or back. It is
// for tests. The zero value is at the Unix epoch.
type Manual struct {
	mu      sync.Mutex
	instant time.Time // the zero Time means the Unix epoch
	pending map[*call]struct{}
	added   *sync.Cond // of mu; nil until BlockUntil needs it
}

// call is a function to call at a time.
type call struct {
	instant time.Time
	f       func()
}

// NewManual returns a clock at t.
func NewManual(t time.Time) *Manual {
	m := new(Manual)
	m.Set(t)
	return m
}

// Now returns the clock's time, in UTC.
func (m *Manual) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now()
}

func (m *Manual) now() time.Time {
	if m.instant.IsZero() {
		return time.Unix(0, 0).UTC()
	}
	return m.instant
}

// Set moves the clock to t, which may be in its past.
func (m *Manual) Set(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.move(t)
}

// Advance moves the clock by d, which may be negative, and returns the new time.
func (m *Manual) Advance(d time.Duration) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.move(m.now().Add(d))
	return m.instant
}

func (m *Manual) move(to time.Time) {
	m.instant = to.UTC().Round(0) // no monotonic reading: a test's times are compared by ==
	for c := range m.pending {
		if !c.instant.After(to) {
			delete(m.pending, c)
			go c.f()
		}
	}
}

// AfterFunc calls f when Set or Advance has moved the clock by d or more.
func (m *Manual) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d <= 0 {
		go f()
		return func() bool { return false }
	}
	c := &call{m.now().Add(d), f}
	if m.pending == nil {
		m.pending = make(map[*call]struct{})
	}
	m.pending[c] = struct{}{}
	if m.added != nil {
		m.added.Broadcast()
	}
	return func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		_, ok := m.pending[c]
		delete(m.pending, c)
		return ok
	}
}

// BlockUntil returns when at least n functions wait to be called by AfterFunc.
// A test calls it before it moves the clock, to be sure that the code under test
// is waiting.
func (m *Manual) BlockUntil(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.added == nil {
		m.added = sync.NewCond(&m.mu)
	}
	for len(m.pending) < n {
		m.added.Wait()
	}
}
