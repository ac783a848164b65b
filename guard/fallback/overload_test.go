package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/fallback"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// hasty is a backend that waits for the end of the server's time, or else of the context.
type hasty struct {
	driver.Backend
	sent bool
}

func (h hasty) Take(ctx context.Context, r driver.Request) (driver.Decision, error) {
	if r.ServerTime > 0 {
		time.Sleep(r.ServerTime)
		return driver.Decision{}, &driver.UnavailableError{Backend: "hasty", Shard: "a", Err: context.DeadlineExceeded}
	}
	<-ctx.Done()
	if h.sent {
		return driver.Decision{}, &driver.UnavailableError{Backend: "hasty", Shard: "a", Err: ctx.Err()}
	}
	return driver.Decision{}, ctx.Err()
}

// An overloaded process, or a deadline of the caller, is no outage: no choice decides.
func TestOverloadIsNoOutage(t *testing.T) {
	p := throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5, Window: time.Hour}}}
	overloaded := &failure{err: &driver.UnavailableError{Backend: "flaky", Shard: "a", Err: fmt.Errorf("%w: %w", driver.ErrOverloaded, driver.ErrNotSent)}}
	for _, choice := range []fallback.Choice{fallback.Open, fallback.Local, fallback.Closed} {
		backend := &flaky{Backend: memorybackend.NewDefault()}
		b := open(t, backend, optionsOf(choice, 1))
		th := throttler.New(b, nil)
		backend.fails.Store(overloaded)
		if d, err := th.Take(t.Context(), p.Charge("alice")); !errors.Is(err, driver.ErrOverloaded) || errors.Is(err, driver.ErrFailClosed) {
			t.Errorf("%v: an overloaded process: allowed %v, %v; want ErrOverloaded", choice, d.Allowed, err)
		}
		if s := b.Stats(); s.Open+s.Local+s.Closed > 0 {
			t.Errorf("%v: decided in an outage: %+v", choice, s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		defer cancel()
		hurried := throttler.New(open(t, hasty{}, optionsOf(choice, 1)), nil)
		if d, err := hurried.Take(ctx, p.Charge("alice")); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, driver.ErrFailClosed) {
			t.Errorf("%v: a deadline of the caller: allowed %v, %v; want context.DeadlineExceeded", choice, d.Allowed, err)
		}
	}
}

// If the server's time passes, or a call was sent and is not answered, the backend has failed.
func TestServersThatHadTheirTime(t *testing.T) {
	p := throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 5, Window: time.Hour}}}
	for name, test := range map[string]struct {
		serverTime time.Duration
		deadline   time.Duration // of the caller
		sent       bool
	}{
		"the server's time":             {5 * time.Millisecond, time.Hour, false},
		"the caller's, after a sending": {0, 5 * time.Millisecond, true},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
		defer cancel()
		th := throttler.New(open(t, hasty{sent: test.sent}, &fallback.Options{}), nil).WithServerTime(test.serverTime)
		if d, err := th.Take(ctx, p.Charge("alice")); err != nil || !d.Allowed || !d.Degraded {
			t.Errorf("%s: allowed %v, %v; want to be served", name, d.Allowed, err)
		}
	}
}
