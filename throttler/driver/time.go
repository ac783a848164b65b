package driver

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// errServerTime is the cause of a context of WithServerTime after its time has passed.
var errServerTime = fmt.Errorf("the server's time has passed: %w", context.DeadlineExceeded)

// WithServerTime returns a copy of ctx that ends after d, as context.WithTimeout does, and
// marks d as the server's time. A backend that distinguishes its own delays from the server's,
// as the backends of this module do, continues while the server answers, and fails when the
// server has not answered for d. Any other deadline is the caller's, and ends the call.
func WithServerTime(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	s := &serverTime{caller: ctx, d: d, end: time.Now().Add(d)}
	return s, s.cancel
}

// Detached is a context that has the values of another one and doesn't end with it. Like a
// context of WithServerTime, it ends after some time, which begins with the first wait: a
// backend that doesn't wait is never late, however busy the machine is. It needs no memory
// beyond its own.
type Detached struct{ serverTime }

// Begin gives c, a zero Detached, the values of ctx. c ends d after the first wait, or by End.
func (c *Detached) Begin(ctx context.Context, d time.Duration) {
	c.caller, c.detached, c.d = ctx, true, d
}

// End ends c, for goroutines that a backend has left running.
func (c *Detached) End() { c.cancel() }

// idleAsks is how often Err may be called without counting as a wait: a throttler, and each
// of a few backends that wrap one another, call it once before they begin. A goroutine that
// calls it more often may be polling.
const idleAsks = 4

// serverTime is a context of WithServerTime. It needs a timer only for callers that wait for
// it: a backend that calls ServerTime has its own.
type serverTime struct {
	caller   context.Context
	d        time.Duration
	detached bool // it does not end with caller

	canceled bool   // guarded by mu, as are the fields below
	asked    uint32 // how often Err was called
	mu       sync.Mutex
	end      time.Time       // zero until the time begins
	timed    context.Context // made when it is needed
	stop     context.CancelFunc
}

// parent returns the context that s ends with.
func (s *serverTime) parent() context.Context {
	if s.detached {
		return context.WithoutCancel(s.caller)
	}
	return s.caller
}

// begin begins the time, unless it has begun, and returns its end. s.mu is held.
func (s *serverTime) begin() time.Time {
	if s.end.IsZero() {
		s.end = time.Now().Add(s.d)
	}
	return s.end
}

// make returns the context of package context that does the work of s. The first call makes it.
func (s *serverTime) make() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timed == nil {
		s.timed, s.stop = context.WithDeadlineCause(s.parent(), s.begin(), errServerTime)
		if s.canceled {
			s.stop()
		}
	}
	return s.timed
}

func (s *serverTime) cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.canceled = true; s.stop != nil {
		s.stop()
	}
}

// Deadline implements context.Context.
func (s *serverTime) Deadline() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endAt(s.begin()), true
}

// endAt returns end or, if s ends with the caller, the caller's deadline if that is earlier.
func (s *serverTime) endAt(end time.Time) time.Time {
	if at, ok := s.caller.Deadline(); ok && !s.detached && at.Before(end) {
		return at
	}
	return end
}

// Done implements context.Context.
func (s *serverTime) Done() <-chan struct{} { return s.make().Done() }

// Err implements context.Context.
func (s *serverTime) Err() error {
	s.mu.Lock()
	s.asked++
	waits := s.asked > idleAsks
	if !s.end.IsZero() {
		waits = !time.Now().Before(s.end)
	}
	waits = waits || s.timed != nil || s.canceled
	s.mu.Unlock()
	switch {
	case waits:
		return s.make().Err()
	case s.detached:
		return nil
	}
	return s.caller.Err()
}

// Value asks the context that make has made, if any: it has the cause of its end, and package
// context links contexts derived from it without a goroutine for each.
func (s *serverTime) Value(key any) any {
	s.mu.Lock()
	timed := s.timed
	s.mu.Unlock()
	if timed != nil {
		return timed.Value(key)
	}
	return s.parent().Value(key)
}

// ServerTime is the method that function ServerTime calls. Until the time of a Detached has
// begun, each server that is asked has all of it.
func (s *serverTime) ServerTime(now time.Time) (end time.Time, caller context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if end = s.end; end.IsZero() {
		end = now.Add(s.d)
	}
	return s.endAt(end), s.parent()
}

// ServerTime returns the end of the server's time, as of now, and the context that ends
// with the caller alone. ok is false if ctx has no method ServerTime, as contexts of
// WithServerTime and Detached have. A backend that calls it needs no timer of ctx.
func ServerTime(ctx context.Context, now time.Time) (end time.Time, caller context.Context, ok bool) {
	s, ok := ctx.(interface {
		ServerTime(now time.Time) (end time.Time, caller context.Context)
	})
	if !ok {
		return time.Time{}, ctx, false
	}
	end, caller = s.ServerTime(now)
	return end, caller, true
}

// ServerTimeOver reports whether ctx has ended because the time of WithServerTime has
// passed, and not by its caller.
func ServerTimeOver(ctx context.Context) bool {
	return context.Cause(ctx) == errServerTime //nolint:errorlint // the cause is never wrapped
}

// Ended returns the error of ctx if its caller has ended it, or nil. The end of the time of
// WithServerTime is not an error.
func Ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil && !ServerTimeOver(ctx) {
		return err
	}
	return nil
}

// HasTime is Ended for a backend that is about to ask a server. If the caller has less than a
// millisecond left, too little for a server to answer, HasTime waits for the end first.
func HasTime(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < time.Millisecond {
		<-ctx.Done()
	}
	return Ended(ctx)
}
