package backendtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

func waitCases() []testCase {
	burst := charging(throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 30})
	cases := []testCase{{
		name:        "what is behind a charge that waits stays, also if it is more",
		explanation: startsOnce,
		steps: []step{
			{at: 0, take: burst(30), want: room(30, 0, 3*time.Second)},
			{at: 0, take: withMode(quota.Record, burst(1)), as: "a", want: room(31, 0, 3100*time.Millisecond)},
			{at: 0, take: withMode(quota.Record, burst(3)), want: room(34, 0, 3400*time.Millisecond)},
			{at: 0, take: withMode(quota.Record, burst(2)), as: "b", want: room(36, 0, 3600*time.Millisecond)},
			{at: 0, refund: "a", want: room(36, 0, 3600*time.Millisecond)},
			{at: 0, refund: "b", want: room(34, 0, 3400*time.Millisecond)},
		},
	}}
	for _, l := range tenPer10s {
		if l.Algorithm.Drains() {
			l.Quota, l.Burst = 1, 1
			cases = append(cases, testCase{
				name:        "places of calls that leave, " + nameOf(l),
				explanation: startsOnce,
				run: func(ctx context.Context, backend driver.Backend) error {
					return placesLeft(ctx, backend, charging(l)(1))
				},
			})
		}
	}
	return cases
}

// placesLeft makes processes wait for one start each 10 s. The one in the middle leaves, and
// then the last one.
func placesLeft(ctx context.Context, backend driver.Backend, charges []throttler.Charge) error {
	clk := clock.NewManual(t0)
	type outcome struct {
		d   throttler.Decision
		err error
	}
	waiting := 0
	wait := func() (result <-chan outcome, leave func()) {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan outcome, 1)
		go func() {
			d, err := throttler.New(backend, &throttler.Options{Clock: clk}).Wait(ctx, charges...)
			done <- outcome{d, err}
		}()
		waiting++
		clk.BlockUntil(waiting)
		return done, func() {
			cancel()
			done <- <-done // once it has left
			waiting--
		}
	}
	first, err := throttler.New(backend, &throttler.Options{Clock: clk}).Wait(ctx, charges...)
	if err != nil || !first.StartAt().Equal(t0) {
		return fmt.Errorf("the first starts at %s, %w", after(first.StartAt()), err)
	}
	a, _ := wait()
	b, bLeaves := wait()
	c, _ := wait()
	bLeaves()
	d, dLeaves := wait()
	dLeaves()
	e, _ := wait()
	clk.Advance(time.Minute)
	for i, want := range []struct {
		outcomes <-chan outcome
		start    time.Duration // 0 if it left
	}{{a, 10 * time.Second}, {b, 0}, {c, 30 * time.Second}, {d, 0}, {e, 40 * time.Second}} {
		switch got := <-want.outcomes; {
		case want.start == 0 && !errors.Is(got.err, context.Canceled):
			return fmt.Errorf("call %d, which left: got %w, want context.Canceled", i, got.err)
		case want.start > 0 && (got.err != nil || !got.d.StartAt().Equal(t0.Add(want.start))):
			return fmt.Errorf("call %d: got a start at %s, %w; want one at %v", i, after(got.d.StartAt()), got.err, want.start)
		}
	}
	return nil
}
