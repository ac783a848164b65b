package throttler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Wait takes the charges when they fit, and returns when they may start, in turn. If they
// never fit, or not before ctx's deadline, Wait fails at once, with context.DeadlineExceeded.
// If ctx ends earlier, Wait refunds them.
func (t *Throttler) Wait(ctx context.Context, charges ...Charge) (d Decision, err error) {
	if t.observer != nil {
		defer func(start time.Time) { t.observe(ctx, observe.OpWait, charges, start, &d, err) }(time.Now())
	}
	for i := range charges {
		if m := charges[i].Mode; m != quota.Enforce && m != quota.Capped {
			return Decision{}, invalid.Errorf("throttler: charge %d: mode is %v; Wait charges in Enforce or Capped: use Take for other modes", i, m)
		}
	}
	c, err := t.queues.enter(ctx, charges)
	if err != nil && t.outdated(ctx, charges) {
		c, err = t.queues.enter(ctx, charges)
	}
	if err != nil {
		return Decision{}, err
	}
	defer t.queues.leave(c)
	select {
	case <-c.called:
	case <-ctx.Done():
		t.queues.giveUp(c)
	}
	if c.answer == nil && c.err == nil {
		c.err = t.ask(ctx, c)
	}
	if c.answer == nil {
		return Decision{}, c.err
	}
	defer t.Hold(ctx, c.answer.Decision, func(error) {})() // until it starts; if it lapses, the caller's Renew says so
	var woken <-chan struct{}                              // a reset ends a pause, but brings no start forward
	for start := c.answer.start; err == nil && !start.IsZero(); start, woken = t.queues.pausedUntil(c) {
		if err = tooEarly(ctx, t.clock, start); err == nil {
			err = sleep(ctx, t.clock, start, woken)
		}
	}
	if err != nil {
		_, _ = t.Refund(ctx, c.answer.Decision) // the observer receives a failure
		return Decision{}, err
	}
	return c.answer.Decision, nil
}

// ask asks the backend, in c's turn, until it allows c's charges.
func (t *Throttler) ask(ctx context.Context, c *call) error {
	for {
		woken, err := t.untilNext(ctx, c)
		if err != nil {
			return err
		}
		alike := t.queues.alike(c)
		a, err := t.takeAhead(ctx, c.charges, alike)
		if alike > 1 && errors.Is(err, driver.ErrFailClosed) && !driver.MayHaveCharged(err) {
			a, err = t.takeAhead(ctx, c.charges, 1) // one call may fit what this process allows in an outage
		}
		if err == nil && a.room > 0 { // only some of the calls fit
			a, err = t.takeAhead(ctx, c.charges, a.room)
		}
		if err != nil {
			return err
		}
		if a.Allowed {
			for range t.queues.share(c, &a, woken) {
				_, _ = t.Refund(ctx, a.again())
			}
			return nil
		}
		t.queues.expect(c, &a, woken)
		if err := tooEarly(ctx, t.clock, a.start); err != nil {
			return err
		}
	}
}

// lookAgain is how often a waiting call checks whether other limits are in force. After a
// Degraded refusal it asks again as often, because the outage may be over.
const lookAgain = time.Second

// untilNext waits until c should ask: at the time from the last answer or, once other limits
// are in force, at once.
func (t *Throttler) untilNext(ctx context.Context, c *call) (woken <-chan struct{}, err error) {
	for {
		start, woken := t.queues.next(c)
		until := start
		if again := t.clock.Now().Add(lookAgain); t.policies != nil && start.After(again) {
			until = again
		}
		if err := sleep(ctx, t.clock, until, woken); err != nil {
			return nil, err
		}
		select {
		case <-woken:
			continue // at once
		default:
		}
		if until.Equal(start) {
			return woken, nil
		}
		t.outdated(ctx, c.charges)
	}
}

// outdated reports whether the last answer about charges was under other limits. If so,
// waiting calls ask again at once.
func (t *Throttler) outdated(ctx context.Context, charges []Charge) bool {
	if t.policies == nil {
		return false
	}
	var r driver.Request
	decided, _, err := t.resolve(ctx, &r, charges)
	return t.queues.outdated(charges, termsOf(&r, decided), err)
}

// tooEarly returns an error if ctx's deadline is before start, or start is Never.
func tooEarly(ctx context.Context, c clock.Clock, start time.Time) error {
	deadline, ok := ctx.Deadline()
	switch {
	case start.Equal(decision.Never):
		return fmt.Errorf("throttler: the charges never fit: %w", context.DeadlineExceeded)
	case ok && start.Sub(c.Now()) > time.Until(deadline):
		return fmt.Errorf("throttler: the charges may start at %s, and the context ends before: %w", start.Format(time.RFC3339Nano), context.DeadlineExceeded)
	}
	return nil
}

// sleep returns when c reaches end or woken is closed, or with an error when ctx is done.
func sleep(ctx context.Context, c clock.Clock, end time.Time, woken <-chan struct{}) error {
	for {
		if ctx.Err() != nil {
			return fmt.Errorf("throttler: the wait ended: %w", ctx.Err())
		}
		remaining := end.Sub(c.Now())
		if remaining <= 0 {
			return nil
		}
		passed := make(chan struct{})
		stop := clock.AfterFunc(c, remaining, func() { close(passed) })
		select {
		case <-passed:
		case <-woken:
			stop()
			return nil
		case <-ctx.Done():
			stop()
		}
	}
}
