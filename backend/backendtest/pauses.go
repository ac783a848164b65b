package backendtest

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

const pauseRefuses = "PauseUntil is before when nothing fits these counts. The latest of several pauses counts."

func pauseCases() []testCase {
	var cases []testCase
	for _, l := range tenPer10s {
		cases = append(cases, testCase{
			name:        "a pause, " + nameOf(l),
			explanation: pauseRefuses,
			run: func(ctx context.Context, backend driver.Backend) error {
				return pauses(ctx, backend, &throttler.Policy{Name: "core", Limits: []throttler.Limit{l}})
			},
		})
	}
	return cases
}

// pauses pauses alice, and does the same with bob but for the pause. In its end the two have
// used the same, as has carol, whose pause is of a count that has nothing.
func pauses(ctx context.Context, backend driver.Backend, policy *throttler.Policy) error {
	clk := clock.NewManual(t0)
	t := throttler.New(backend, &throttler.Options{Clock: clk})
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	var first [2]throttler.Decision
	for i, key := range []string{"alice", "bob"} {
		for k := range 2 {
			d, err := t.Take(ctx, policy.Charge(key))
			if err != nil || !d.Allowed {
				return fmt.Errorf("take %d of %s: %v, %w", k, key, d, err)
			}
			first[i] = d
		}
	}
	for _, until := range []int{3, 5, 4} {
		for _, key := range []string{"alice", "carol"} {
			if err := t.Pause(ctx, at(until), policy.Charge(key)); err != nil {
				return err
			}
		}
	}
	for i, d := range first {
		clk.Set(at(1 + i))
		if _, err := t.Refund(ctx, d); err != nil {
			return err
		}
	}
	clk.Set(at(4))
	for _, key := range []string{"alice", "carol"} {
		for _, ask := range []func(context.Context, ...throttler.Charge) (throttler.Decision, error){t.Peek, t.Take} {
			d, err := ask(ctx, policy.Charge(key))
			if err != nil {
				return err
			}
			if s := d.Limit(0); d.Allowed || !d.RetryAt().Equal(at(5)) || s.Remaining != 0 || !s.Reset().Equal(at(5)) {
				return fmt.Errorf("%s in the pause: got %v, remaining %d until %s; want a refusal until t0+5s", key, d, s.Remaining, after(s.Reset()))
			}
		}
	}
	clk.Set(at(5))
	var used [2]int64
	for i, key := range []string{"alice", "bob", "carol"} {
		d, err := t.Take(ctx, policy.Charge(key))
		if err != nil || !d.Allowed {
			return fmt.Errorf("%s after the pause: %v, %w", key, d, err)
		}
		if i < 2 {
			used[i] = d.Limit(0).Used
		} else if d.Limit(0).Used != 1 {
			return fmt.Errorf("%s has used %d, want 1", key, d.Limit(0).Used)
		}
	}
	if used[0] != used[1] {
		return fmt.Errorf("alice has used %d and bob %d, who was not paused", used[0], used[1])
	}
	return nil
}
