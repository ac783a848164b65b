package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

func resetCases() []testCase {
	const s = time.Second
	var cases []testCase
	for _, l := range tenPer10s {
		name, c := nameOf(l), charging(l)
		empty, first, refunded := room(0, 10, 0), room(4, 6, 0), room(0, 10, 0)
		if l.Algorithm.Queues() {
			refunded = room(1, 9, 0) // a started charge keeps its place
		}
		cases = append(cases,
			testCase{
				name:        name + ": the next charge finds nothing",
				explanation: resetForgets,
				run: func(ctx context.Context, backend driver.Backend) error {
					return playAnyTimes(ctx, backend, []step{
						{at: 0, take: c(4), want: first},
						{at: 0, take: c(6), want: room(10, 0, 0)},
						{at: s / 4, take: c(9), want: full(10, 0, 0, 0)},
						{at: s / 4, reset: c(1)},
						{at: s / 4, peek: c(0), want: empty},
						{at: s / 4, take: c(10), want: room(10, 0, 0)},
					})
				},
			},
			testCase{
				name:        name + ": a refund of an earlier charge does nothing, within the same millisecond too",
				explanation: resetRefunds,
				run: func(ctx context.Context, backend driver.Backend) error {
					return playAnyTimes(ctx, backend, []step{
						{at: 0, take: c(4), as: "a", want: first},
						{at: 0, take: c(1), as: "b", want: room(5, 5, 0)},
						{at: 0, reset: c(1)},
						{at: 0, take: c(4), as: "c", want: first},
						{at: 0, refund: "a", want: first},
						{at: 0, reset: c(1)},
						{at: 0, refund: "b", want: empty},
						{at: 0, take: c(4), as: "d", want: first},
						{at: 0, refund: "c", want: first},
						{at: 0, refund: "d", want: refunded},
					})
				},
			},
		)
	}
	var (
		alice  = named("core", throttler.Limit{Quota: 10, Window: 10 * s})(1)
		second = named("other", throttler.Limit{Quota: 10, Window: 10 * s})(1)
		bob    = []throttler.Charge{{Policy: alice[0].Policy, Key: "bob", Cost: 1}}
		chain  = func(key string) []throttler.Charge {
			return []throttler.Charge{{Policy: alice[0].Policy, Key: key, Partition: "acme", Cost: 1}}
		}
	)
	for _, first := range []bool{true, false} {
		cases = append(cases, testCase{
			name:        fmt.Sprintf("units in flight are renewed, by a limit that is the first: %v; a refund of their earlier charge does nothing", first),
			explanation: resetRefunds,
			run:         func(ctx context.Context, b driver.Backend) error { return renewAfterReset(ctx, b, first) },
		}, testCase{
			name:        fmt.Sprintf("units in flight are lost after a reset, by a limit that is the first: %v; their charge is refunded", first),
			explanation: refundNames,
			run:         func(ctx context.Context, b driver.Backend) error { return loseAfterReset(ctx, b, first) },
		})
	}
	return append(cases,
		testCase{
			name:        "of nothing does nothing",
			explanation: resetForgets,
			steps: []step{
				{at: 0, reset: alice},
				{at: 0, take: alice, as: "a", want: room(1, 9, 10*s)},
				{at: 10 * s, reset: alice},
				{at: 10 * s, refund: "a", want: room(0, 10, 10*s)},
				{at: 10 * s, take: alice, want: room(1, 9, 20*s)},
			},
		},
		testCase{
			name:        "other keys, policies and partitions stay",
			explanation: resetForgets,
			steps: []step{
				{at: 0, take: alice, want: room(1, 9, 10*s)},
				{at: 0, take: second, want: room(1, 9, 10*s)},
				{at: 0, take: bob, want: room(1, 9, 10*s)},
				{at: 0, take: chain("alice"), want: room(1, 9, 10*s)},
				{at: 0, take: chain("bob"), want: room(1, 9, 10*s)},
				{at: 0, reset: alice},
				{at: 0, reset: chain("bob")},
				{at: 0, take: alice, want: room(1, 9, 10*s)},
				{at: 0, take: second, want: room(2, 8, 10*s)},
				{at: 0, take: bob, want: room(2, 8, 10*s)},
				{at: 0, take: chain("alice"), want: room(2, 8, 10*s)},
				{at: 0, take: chain("bob"), want: room(1, 9, 10*s)},
			},
		},
		testCase{
			name:        "of several charges, and of one twice",
			explanation: resetForgets,
			steps: []step{
				{at: 0, take: alice, want: room(1, 9, 10*s)},
				{at: 0, take: second, want: room(1, 9, 10*s)},
				{at: 0, take: bob, want: room(1, 9, 10*s)},
				{at: s, reset: []throttler.Charge{alice[0], second[0], alice[0], bob[0]}},
				{at: s, take: alice, want: room(1, 9, 11*s)},
				{at: s, take: second, want: room(1, 9, 11*s)},
				{at: s, take: bob, want: room(1, 9, 11*s)},
			},
		},
		testCase{
			name:        "a settlement of an earlier charge charges what it cost more",
			explanation: settleCharges,
			steps: []step{
				{at: 0, take: alice, as: "a", want: room(1, 9, 10*s)},
				{at: s, reset: alice},
				{at: s, settle: "a", costs: []int64{4}, want: room(3, 7, 11*s)},
			},
		},
		testCase{
			name:        "the whole quota is free, and no more, while takes are made",
			explanation: resetForgets,
			run:         resetUnderTakes,
		},
	)
}

// playAnyTimes plays steps and checks their units and refusals, but not their times.
func playAnyTimes(ctx context.Context, backend driver.Backend, steps []step) error {
	p := newPlayer(backend)
	for i := range steps {
		s := &steps[i]
		s.anyTimes = true
		if err := p.step(ctx, s); err != nil {
			return fmt.Errorf("step %d of %d, %v: %w", i+1, len(steps), s, err)
		}
	}
	return nil
}

// resetUnderTakes resets a count while others take and refund: each take is either before or
// after the reset.
func resetUnderTakes(ctx context.Context, backend driver.Backend) error {
	const quota, resets = 20, 5
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	charge := named("core", throttler.Limit{Quota: quota, Window: time.Hour, Aligned: true})(1)
	var mu sync.Mutex
	var errs []error
	var remaining int64 // taken, and not refunded
	var takers sync.WaitGroup
	for n := range 4 {
		takers.Go(func() {
			for i := range 3 * quota {
				d, err := t.Take(ctx, charge...)
				refunds := err == nil && d.Allowed && (i+n)%3 == 0
				if refunds {
					_, err = t.Refund(ctx, d)
				}
				mu.Lock()
				if errs = append(errs, err); d.Allowed && !refunds {
					remaining++
				}
				mu.Unlock()
			}
		})
	}
	for range resets {
		err := t.Reset(ctx, charge...)
		mu.Lock()
		errs = append(errs, err)
		mu.Unlock()
	}
	takers.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if remaining > quota*(resets+1) {
		return fmt.Errorf("%d takes were allowed and not refunded, of %d after each of %d resets", remaining, quota, resets)
	}
	if err := t.Reset(ctx, charge...); err != nil {
		return err
	}
	for i := range quota + 1 {
		d, err := t.Take(ctx, charge...)
		if err != nil {
			return err
		}
		if d.Allowed != (i < quota) {
			return fmt.Errorf("after a reset, take %d is allowed: %v", i, d.Allowed)
		}
	}
	return nil
}

// inFlightAnd returns a policy that bounds the requests in flight, and their cost in an hour.
func inFlightAnd(inFlight int64, first bool) *throttler.Policy {
	p := &throttler.Policy{Name: "both", Limits: []throttler.Limit{
		{Quota: inFlight, Window: 30 * time.Second, Algorithm: throttler.InFlight},
		{Quota: 100, Window: time.Hour},
	}}
	if !first {
		slices.Reverse(p.Limits)
	}
	return p
}

// usedInHour returns the units of the limit of p that is not in flight.
func usedInHour(ctx context.Context, t *throttler.Throttler, p *throttler.Policy) (int64, error) {
	d, err := t.Peek(ctx, p.Charge("alice"))
	if err != nil {
		return 0, err
	}
	return d.Limit(slices.IndexFunc(p.Limits, func(l throttler.Limit) bool { return !l.Algorithm.Holds() })).Used, nil
}

// renewAfterReset renews the units of a charge after a reset, and refunds the charge.
func renewAfterReset(ctx context.Context, backend driver.Backend, first bool) error {
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	p := inFlightAnd(9, first)
	d, err := t.Take(ctx, throttler.Charge{Policy: p, Key: "alice", Cost: 10})
	if err != nil {
		return err
	}
	if err := t.Reset(ctx, p.Charge("alice")); err != nil {
		return err
	}
	if _, err := t.Take(ctx, throttler.Charge{Policy: p, Key: "alice", Cost: 30}); err != nil {
		return err
	}
	if renewed, err := t.Renew(ctx, d); err != nil || !renewed.Allowed {
		return fmt.Errorf("renewed: %v, %w", renewed, err)
	}
	if _, err := t.Refund(ctx, d); err != nil {
		return err
	}
	if used, err := usedInHour(ctx, t, p); err != nil || used != 30 {
		return fmt.Errorf("%d are used, %w, want 30", used, err)
	}
	return nil
}

// loseAfterReset refunds a charge after a reset that has lost its units in flight.
func loseAfterReset(ctx context.Context, backend driver.Backend, first bool) error {
	c := clock.NewManual(t0)
	t := throttler.New(backend, &throttler.Options{Clock: c})
	p := inFlightAnd(1, first)
	if _, err := t.Take(ctx, p.Charge("alice")); err != nil {
		return err
	}
	if err := t.Reset(ctx, p.Charge("alice")); err != nil {
		return err
	}
	d, err := t.Take(ctx, throttler.Charge{Policy: p, Key: "alice", Cost: 10})
	if err != nil {
		return err
	}
	c.Advance(time.Minute)
	if _, err := t.Take(ctx, p.Charge("alice")); err != nil {
		return err
	}
	if renewed, err := t.Renew(ctx, d); err != nil || renewed.Allowed {
		return fmt.Errorf("renewed without room: %v, %w", renewed, err)
	}
	if _, err := t.Refund(ctx, d); err != nil {
		return err
	}
	if used, err := usedInHour(ctx, t, p); err != nil || used != 1 {
		return fmt.Errorf("%d are used, %w, want 1", used, err)
	}
	return nil
}
