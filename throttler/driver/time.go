package driver

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// errServerTime is the cause of contexts of WithServerTime whose time has passed.
var errServerTime = fmt.Errorf("the server's time has passed: %w", context.DeadlineExceeded)

// WithServerTime returns a copy of ctx that ends after d, as context.WithTimeout does, and
// says that d is meant for the server: a backend that distinguishes its own delays from
// the server's, as the backends of this module do, goes on while the server answers, and fails when
// the server has not answered for d. Any other deadline is the caller's, and ends the call.
func WithServerTime(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	s := &serverTime{caller: ctx, end: time.Now().Add(d)}
	return s, s.cancel
}

// serverTime is a context of WithServerTime. It needs a timer only for those that wait for
// it: a backend that asks by ServerTime has its own.
type serverTime struct {
	caller context.Context
	end    time.Time

	mu       sync.Mutex
	timed    context.Context // made when it is needed
	stop     context.CancelFunc
	canceled bool
}

// make returns the context that s takes the place of.
func (s *serverTime) make() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timed == nil {
		s.timed, s.stop = context.WithDeadlineCause(s.caller, s.end, errServerTime)
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
	if end, ok := s.caller.Deadline(); ok && end.Before(s.end) {
		return end, true
	}
	return s.end, true
}

// Done implements context.Context.
func (s *serverTime) Done() <-chan struct{} { return s.make().Done() }

// Err implements context.Context.
func (s *serverTime) Err() error {
	s.mu.Lock()
	runs := s.timed == nil && !s.canceled && time.Now().Before(s.end)
	s.mu.Unlock()
	if runs {
		return s.caller.Err()
	}
	return s.make().Err()
}

// Value implements context.Context.
func (s *serverTime) Value(key any) any {
	s.mu.Lock()
	timed := s.timed
	s.mu.Unlock()
	if timed != nil { // which has the cause of its end
		return timed.Value(key)
	}
	return s.caller.Value(key)
}

// ServerTime implements what ServerTime asks for.
func (s *serverTime) ServerTime(time.Time) (end time.Time, caller context.Context) {
	end, _ = s.Deadline()
	return end, s.caller
}

// ServerTime returns when the time of the server ends, as of now, and the context that
// ends with the caller alone, if ctx is one of WithServerTime, or has this method. A
// backend that asks needs no timer of ctx.
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
// WithServerTime is none.
func Ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil && !ServerTimeOver(ctx) {
		return err
	}
	return nil
}

// HasTime returns what Ended does, for a backend that is about to ask a server. If the
// caller has left less than a millisecond, in which no server answers, that passes first.
func HasTime(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < time.Millisecond {
		<-ctx.Done()
	}
	return Ended(ctx)
}
