package backendtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// nextCases checks NextAt by random histories: after every answer without room for one unit, a
// peek 1 ms before NextAt finds no room, and a peek at NextAt does.
func nextCases() []testCase {
	limits := append([]throttler.Limit{
		{Quota: 3, Window: 7 * time.Second, Algorithm: throttler.TokenBucket, Burst: 2},
		{Quota: 7, Window: time.Second, Algorithm: throttler.LeakyBucket, MaxWait: 300 * time.Millisecond},
	}, tenPer10s...)
	var cases []testCase
	for i, l := range limits {
		cases = append(cases, testCase{
			name:        fmt.Sprintf("come when they are to, %s, %d per %v", nameOf(l), l.Quota, l.Window),
			explanation: nextEarliest,
			run: func(ctx context.Context, backend driver.Backend) error {
				n := next{backend: backend, rng: rand.New(rand.NewPCG(16, uint64(i))), now: t0.UnixMilli()}
				n.policies = []*throttler.Policy{{Name: "next", Limits: []throttler.Limit{l}}}
				return n.run(ctx)
			},
		})
	}
	return append(cases, testCase{
		name:        "come to each limit of several charges when they are to",
		explanation: nextEarliest,
		run: func(ctx context.Context, backend driver.Backend) error {
			n := next{backend: backend, rng: rand.New(rand.NewPCG(16, 16)), now: t0.UnixMilli()}
			n.policies = []*throttler.Policy{{Name: "first", Limits: limits[:3]}, {Name: "second", Limits: limits[3:]}}
			return n.run(ctx)
		},
	})
}

type next struct {
	backend  driver.Backend
	rng      *rand.Rand
	policies []*throttler.Policy
	now      int64
	count    int // answers without room for one unit
}

func (n *next) run(ctx context.Context) error {
	var last driver.Decision
	for step := range 60 {
		if n.rng.IntN(3) > 0 {
			n.now += n.rng.Int64N(1500)
		}
		var d driver.Decision
		var err error
		switch choice := n.rng.IntN(10); {
		case choice == 0 && last.Allowed:
			costs := make([]int64, len(n.policies))
			for i := range costs {
				costs[i] = n.rng.Int64N(5)
			}
			d, err = n.backend.Settle(ctx, driver.Settlement{Now: n.now, Charged: last, Costs: costs})
			last.Allowed = false
		case choice == 1:
			d, err = n.backend.Peek(ctx, n.request(n.now, 1+n.rng.Int64N(3)))
		default:
			if d, err = n.backend.Take(ctx, n.request(n.now, 1+n.rng.Int64N(2))); d.Allowed {
				last = d
			}
		}
		if err == nil {
			err = n.check(ctx, &d)
		}
		if err != nil {
			return fmt.Errorf("step %d, at t0%+dms: %w", step, n.now-t0.UnixMilli(), err)
		}
	}
	if n.count < 10 {
		return fmt.Errorf("the suite is wrong: %d answers had no room for one unit", n.count)
	}
	return nil
}

func (n *next) request(now, cost int64) driver.Request {
	var charges []throttler.Charge
	for _, p := range n.policies {
		charges = append(charges, throttler.Charge{Policy: p, Key: "alice", Cost: cost, Partition: "alice"})
	}
	return driver.NewRequest(now, charges...)
}

// check checks the NextAt of each limit in d, the last decision.
func (n *next) check(ctx context.Context, d *driver.Decision) error {
	text := decided(*d)
	for i, s := range text.Limits() {
		if s.NextAt.IsZero() != (s.Remaining > 0) {
			return fmt.Errorf("%v: %d remain, and next at is %s", s.Limit, s.Remaining, after(s.NextAt))
		}
		if s.Refused && s.Cost == 1 && !s.NextAt.Equal(s.RetryAt) {
			return fmt.Errorf("%v: next at is %s, retry at %s", s.Limit, after(s.NextAt), after(s.RetryAt))
		}
		if s.NextAt.IsZero() {
			continue
		}
		n.count++
		for _, ahead := range []int64{-1, 0} {
			next, err := n.backend.Peek(ctx, n.request(s.NextAt.UnixMilli()+ahead, 1))
			if err != nil {
				return err
			}
			found := decided(next)
			if refused := found.Limit(i).Refused; refused != (ahead < 0) {
				return fmt.Errorf("%v: next at is %s; %+d ms from it, a charge of one is refused: %v", s.Limit, after(s.NextAt), ahead, refused)
			}
		}
	}
	return nil
}
