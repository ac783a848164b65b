// Package breaker guards calls to one server. While the server does not answer, calls
// fail at once, and one probe at a time checks, in the background, whether it is up again.
package breaker

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/throttler/driver"
)

// ErrOpen is the error of a call that was not made, because the breaker is open.
var ErrOpen = fmt.Errorf("circuit breaker is open: the server failed, and %w", driver.ErrNotSent)

// A breaker opens by two rules about shares and times: a count of failures would, at
// enough calls a second, open it for any small share of errors.
const (
	window    = time.Second            // of calls that count
	step      = 100 * time.Millisecond // by which the window moves
	minCalls  = 20                     // in the window, if half of them failed; or
	hangCalls = 3                      // calls that failed in a row,
	hangTime  = 100 * time.Millisecond // with no success for as long
)

// A server that hangs answers a pending probe when it continues, so the timeout delays
// only probes with lost packets.
//
// A breaker that opens soon after it closed was closed too early, so the first probe
// waits, each time for twice as long as the last.
const (
	probeEvery   = 100 * time.Millisecond
	probeTimeout = 500 * time.Millisecond
	soon         = 5 * time.Second
	minWait      = 100 * time.Millisecond
	maxWait      = time.Second
)

// Breaker is a circuit breaker. It is safe for concurrent use.
type Breaker struct {
	probe    func(context.Context) error
	onChange func(open bool, cause error)

	counts  atomic.Pointer[counts]  // since the breaker last closed
	opened  atomic.Pointer[opening] // nil while it is closed
	success atomic.Int64            // when a call last succeeded, since started
	row     atomic.Int64            // calls that failed since then, however rare
	reset   atomic.Int64            // when the breaker last closed, since started

	started time.Time
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu     sync.Mutex
	closed bool          // by Close
	wait   time.Duration // before the first probe of the last opening
	probes sync.WaitGroup
}

// opening is when and why a breaker opened.
type opening struct {
	probed time.Time
	cause  error
}

// New returns a closed Breaker. When it opens, it calls probe at once, and again
// 100 ms after each failure, and closes when probe returns nil. If it opens less than 5 s
// after it closed, it waits before the first probe: for 100 ms, and each time in a row
// twice as long, up to 1 s. It calls onChange, which may be nil, after each change: with
// the last error, if it opened.
func New(probe func(context.Context) error, onChange func(open bool, cause error)) *Breaker {
	b := &Breaker{probe: probe, onChange: onChange, started: time.Now()}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.counts.Store(new(counts))
	return b
}

// Close ends the probes, and waits for a probe in progress. From then on the breaker is
// closed, and does not open. Calling Close again does nothing.
func (b *Breaker) Close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.probes.Wait()
	b.opened.Store(nil)
}

// Open reports whether the breaker is open, so that no call should be made.
func (b *Breaker) Open() bool { return b.opened.Load() != nil }

// Since returns when the breaker opened, and false if it is closed.
func (b *Breaker) Since() (opened time.Time, open bool) {
	if o := b.opened.Load(); o != nil {
		return o.probed, true
	}
	return time.Time{}, false
}

// Cause returns the error that opened the breaker, or nil if it is closed.
func (b *Breaker) Cause() error {
	if o := b.opened.Load(); o != nil {
		return o.cause
	}
	return nil
}

// Record records when a call began and its outcome, nil for a success. The caller must not
// record calls that say nothing about the server, such as canceled ones. Record ignores a
// failed call that began before the breaker closed: the probe that closed it is newer.
func (b *Breaker) Record(began time.Time, err error) {
	now := time.Since(b.started)
	switch {
	case err == nil:
		b.success.Store(int64(now))
		b.row.Store(0)
	case b.isStale(began):
		return
	default:
		b.row.Add(1)
	}
	if b.Open() {
		return // a late reply: the probes decide
	}
	c := b.counts.Load()
	c.add(now, err)
	if err != nil && b.failing(c, now) {
		b.trip(c, err)
	}
}

// Trip opens the breaker because of a call that began then, and failed with err. err must
// leave no doubt that the server was down.
func (b *Breaker) Trip(began time.Time, err error) {
	if !b.isStale(began) {
		b.trip(b.counts.Load(), err)
	}
}

// isStale reports whether a call began before the breaker last closed.
func (b *Breaker) isStale(began time.Time) bool {
	return int64(began.Sub(b.started)) < b.reset.Load()
}

// trip opens the breaker with the cause err, unless it is open, or has closed since it
// counted in c.
func (b *Breaker) trip(c *counts, err error) {
	b.mu.Lock()
	if b.closed || b.Open() || c != b.counts.Load() {
		b.mu.Unlock()
		return
	}
	now := time.Now()
	b.opened.Store(&opening{now, err})
	switch closed := time.Duration(b.reset.Load()); {
	case closed == 0 || now.Sub(b.started)-closed >= soon:
		b.wait = 0
	default:
		b.wait = min(max(2*b.wait, minWait), maxWait)
	}
	wait := b.wait
	b.probes.Add(1) // before Close waits
	b.mu.Unlock()
	b.changed(true, err)
	go b.probeUntilClosed(wait)
}

// failing reports whether to open the breaker after a failed call.
func (b *Breaker) failing(c *counts, now time.Duration) bool {
	if calls, failed := c.sum(now); calls >= minCalls && 2*failed >= calls {
		return true
	}
	return b.row.Load() >= hangCalls && now-time.Duration(b.success.Load()) >= hangTime
}

func (b *Breaker) probeUntilClosed(wait time.Duration) {
	defer b.probes.Done()
	for every.Wait(b.ctx, wait) {
		if b.probeOnce() {
			return
		}
		wait = probeEvery
	}
}

// probeOnce makes a probe, and reports whether it succeeded, and so closed the breaker.
func (b *Breaker) probeOnce() bool {
	ctx, cancel := context.WithTimeout(b.ctx, probeTimeout)
	defer cancel()
	if err := b.probe(ctx); err != nil {
		return false
	}
	now := int64(time.Since(b.started))
	b.success.Store(now)
	b.reset.Store(now)
	b.row.Store(0)
	b.counts.Store(new(counts))
	b.changed(false, nil) // first: the next change may follow at once
	b.opened.Store(nil)
	return true
}

func (b *Breaker) changed(open bool, cause error) {
	if b.onChange != nil {
		b.onChange(open, cause)
	}
}

// ErrSlow is the error of a probe that the server answers, but later than calls need.
var ErrSlow = fmt.Errorf("the server answers too late: %w", context.DeadlineExceeded)

// Quick makes a probe's call, and repeats it if it took longer than bound, as when it had to
// connect, or the server hung until then. Quick returns the call's error, or ErrSlow if
// both calls took longer.
func Quick(bound time.Duration, call func() error) error {
	for range 2 {
		began := time.Now()
		if err := call(); err != nil {
			return err
		}
		if time.Since(began) <= bound {
			return nil
		}
	}
	return ErrSlow
}
