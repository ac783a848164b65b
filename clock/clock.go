// Package clock provides the time to the rest of weir.
//
// Every decision is made at a time that the application chooses: no server's
// clock and no TTL takes part in it. That lets a test travel in time against a
// real Redis, and lets many processes agree on one window without comparing
// their clocks with a server's.
package clock

import (
	"sync"
	"time"
)

// Clock tells the time. Implementations must be safe for concurrent use. To
// change only what Now returns, embed System.
type Clock interface {
	// Now returns the current time.
	Now() time.Time

	// AfterFunc calls f in its own goroutine when the clock reaches t, or at once
	// if it already has. stop cancels the call; it returns false if f was called
	// or stopped before.
	AfterFunc(t time.Time, f func()) (stop func() bool)
}

// System is the wall clock of this process.
type System struct{}

// Now returns [time.Now].
func (System) Now() time.Time { return time.Now() }

// AfterFunc calls [time.AfterFunc] for the time until t.
func (System) AfterFunc(t time.Time, f func()) (stop func() bool) {
	return time.AfterFunc(time.Until(t), f).Stop
}

// Manual is a clock that moves only by Set and Advance, forward or back. It is
// for tests. The zero value is at the Unix epoch.
type Manual struct {
	mu         sync.Mutex
	sinceEpoch time.Duration
	pending    map[*call]struct{}
	added      *sync.Cond // of mu; nil until BlockUntil needs it
}

// call is a function to call at a time.
type call struct {
	at time.Duration
	f  func()
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
	return time.Unix(0, int64(m.sinceEpoch)).UTC()
}

// Set moves the clock to t, which may be in its past.
func (m *Manual) Set(t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.move(time.Duration(t.UnixNano()))
}

// Advance moves the clock by d, which may be negative, and returns the new time.
func (m *Manual) Advance(d time.Duration) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.move(m.sinceEpoch + d)
	return time.Unix(0, int64(m.sinceEpoch)).UTC()
}

func (m *Manual) move(to time.Duration) {
	m.sinceEpoch = to
	for c := range m.pending {
		if c.at <= to {
			delete(m.pending, c)
			go c.f()
		}
	}
}

// AfterFunc calls f when Set or Advance has moved the clock to t or beyond.
func (m *Manual) AfterFunc(t time.Time, f func()) (stop func() bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &call{time.Duration(t.UnixNano()), f}
	if c.at <= m.sinceEpoch {
		go f()
		return func() bool { return false }
	}
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
// A test calls it before it moves the clock, to be sure that what it tests is
// waiting.
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
