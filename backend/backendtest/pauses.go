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

// pauses pauses alice, and carol before her first take, but not bob. It takes and refunds for
// alice and bob, and expects equal counts in the end.
func pauses(ctx context.Context, backend driver.Backend, policy *throttler.Policy) error {
	p := &paused{ctx: ctx, policy: policy, clock: clock.NewManual(t0)}
	p.Throttler = throttler.New(backend, &throttler.Options{Clock: p.clock})
	instant := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	var decisions [2]throttler.Decision
	for i, key := range []string{"alice", "bob"} {
		if _, err := p.take(key); err != nil {
			return err
		}
		var err error
		if decisions[i], err = p.take(key); err != nil {
			return err
		}
	}
	for _, until := range []int{3, 5, 4} {
		for _, key := range []string{"alice", "carol"} {
			if err := p.Pause(ctx, instant(until), policy.Charge(key)); err != nil {
				return err
			}
		}
	}
	for i, d := range decisions {
		p.clock.Set(instant(1 + i))
		if _, err := p.Refund(ctx, d); err != nil {
			return err
		}
	}
	p.clock.Set(instant(4))
	for _, key := range []string{"alice", "carol"} {
		if err := p.refusesUntil(instant(5), key); err != nil {
			return err
		}
	}
	p.clock.Set(instant(5))
	return p.resumed()
}

// paused is a Throttler, and the clients that are paused.
type paused struct {
	*throttler.Throttler
	ctx    context.Context
	policy *throttler.Policy
	clock  *clock.Manual
}

// take takes a unit of key, which has room.
func (p *paused) take(key string) (throttler.Decision, error) {
	d, err := p.Take(p.ctx, p.policy.Charge(key))
	if err != nil || !d.Allowed {
		return d, fmt.Errorf("%s, at t0+%v: got %v, %w; want a take that is allowed", key, p.clock.Now().Sub(t0), d, err)
	}
	return d, nil
}

// refusesUntil returns an error if key is not refused until end, by a peek and by a take.
func (p *paused) refusesUntil(end time.Time, key string) error {
	for _, ask := range []func(context.Context, ...throttler.Charge) (throttler.Decision, error){p.Peek, p.Take} {
		d, err := ask(p.ctx, p.policy.Charge(key))
		if err != nil {
			return err
		}
		if s := d.Limit(0); d.Allowed || !d.RetryAt().Equal(end) || s.Remaining != 0 || !s.Reset().Equal(end) {
			return fmt.Errorf("%s in the pause: got %v, remaining %d until %s; want a refusal until %s", key, d, s.Remaining, after(s.Reset()), after(end))
		}
	}
	return nil
}

// resumed returns an error if, after the pause, alice's count differs from bob's, or carol's
// is more than one take.
func (p *paused) resumed() error {
	used := make(map[string]int64)
	for _, key := range []string{"alice", "bob", "carol"} {
		d, err := p.take(key)
		if err != nil {
			return err
		}
		used[key] = d.Limit(0).Used
	}
	if used["carol"] != 1 {
		return fmt.Errorf("carol has used %d, want 1", used["carol"])
	}
	if used["alice"] != used["bob"] {
		return fmt.Errorf("alice has used %d, and bob, without a pause, %d", used["alice"], used["bob"])
	}
	return nil
}
