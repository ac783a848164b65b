package throttler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

// Wait takes the charges when they fit, and returns when they may start. Calls about the same
// counts take turns, in order. If the charges never fit, or not before ctx's deadline, Wait
// fails at once, with context.DeadlineExceeded. What is charged when ctx ends is refunded.
func (t *Throttler) Wait(ctx context.Context, charges ...Charge) (d Decision, err error) {
	if t.observer != nil {
		defer func(start time.Time) { t.observe(ctx, observe.OpWait, charges, start, &d, err) }(time.Now())
	}
	for i := range charges {
		if m := charges[i].Mode; m != quota.Enforce && m != quota.Capped {
			return Decision{}, invalid.Errorf("throttler: charge %d: mode is %v, and Wait takes what is enforced: use Take", i, m)
		}
	}
	c, err := t.lines.enter(ctx, charges)
	if err != nil && t.outdated(ctx, charges) {
		c, err = t.lines.enter(ctx, charges)
	}
	if err != nil {
		return Decision{}, err
	}
	defer t.lines.leave(c)
	select {
	case <-c.called:
	case <-ctx.Done():
		t.lines.giveUp(c)
	}
	if c.answer == nil && c.err == nil {
		c.err = t.ask(ctx, c)
	}
	if c.answer == nil {
		return Decision{}, c.err
	}
	defer t.Hold(ctx, c.answer.Decision, func(error) {})() // until it starts; the caller hears of it then
	var woken <-chan struct{}                              // a start is not sooner after a reset, but a pause is over
	for at := c.answer.start; err == nil && !at.IsZero(); at, woken = t.lines.pausedUntil(c) {
		if err = tooEarly(ctx, t.clock, at); err == nil {
			err = sleep(ctx, t.clock, at, woken)
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
		alike := t.lines.alike(c)
		a, err := t.takeAhead(ctx, c.charges, alike)
		if alike > 1 && errors.Is(err, driver.ErrFailClosed) && !driver.MayHaveCharged(err) {
			a, err = t.takeAhead(ctx, c.charges, 1) // one may fit what this process may allow by itself
		}
		if err == nil && a.room > 0 { // for some of the calls alone
			a, err = t.takeAhead(ctx, c.charges, a.room)
		}
		if err != nil {
			return err
		}
		if a.Allowed {
			for range t.lines.share(c, &a, woken) {
				_, _ = t.Refund(ctx, a.again())
			}
			return nil
		}
		t.lines.expect(c, &a, woken)
		if err := tooEarly(ctx, t.clock, a.start); err != nil {
			return err
		}
	}
}

// lookAgain is how often a call that waits looks whether other limits are in force. If its process
// refused it by itself in an outage, it asks again as often.
const lookAgain = time.Second

// untilNext returns when c is to ask: when the last answer said or, if other limits are in
// force by then, at once.
func (t *Throttler) untilNext(ctx context.Context, c *call) (woken <-chan struct{}, err error) {
	for {
		at, woken := t.lines.next(c)
		until := at
		if again := t.clock.Now().Add(lookAgain); t.policies != nil && at.After(again) {
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
		if until.Equal(at) {
			return woken, nil
		}
		t.outdated(ctx, c.charges)
	}
}

// outdated reports whether what the last answer about charges said was under other limits. If
// so, calls that wait ask again at once.
func (t *Throttler) outdated(ctx context.Context, charges []Charge) bool {
	if t.policies == nil {
		return false
	}
	var r driver.Request
	made, _, err := t.resolve(ctx, &r, charges)
	return t.lines.outdated(charges, termsOf(&r, made), err)
}

// tooEarly returns an error if ctx's deadline is before at, or at is never.
func tooEarly(ctx context.Context, c clock.Clock, at time.Time) error {
	deadline, ok := ctx.Deadline()
	switch {
	case at.Equal(decision.Never):
		return fmt.Errorf("throttler: the charges never fit: %w", context.DeadlineExceeded)
	case ok && at.Sub(c.Now()) > time.Until(deadline):
		return fmt.Errorf("throttler: the charges may start at %s, and the context ends before: %w", at.Format(time.RFC3339Nano), context.DeadlineExceeded)
	}
	return nil
}

// sleep returns when c shows at, or woken is closed, or with an error when ctx is done.
func sleep(ctx context.Context, c clock.Clock, at time.Time, woken <-chan struct{}) error {
	for {
		if ctx.Err() != nil {
			return fmt.Errorf("throttler: the wait ended: %w", ctx.Err())
		}
		left := at.Sub(c.Now())
		if left <= 0 {
			return nil
		}
		passed := make(chan struct{})
		stop := clock.AfterFunc(c, left, func() { close(passed) })
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
