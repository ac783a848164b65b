package backendtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// clockCases have clocks that step back, and processes whose clocks differ.
func clockCases() []testCase {
	const s = time.Second
	var (
		fixed   = charging(tenPer10s[0])
		aligned = charging(tenPer10s[1])
		sliding = charging(tenPer10s[2])
		log     = charging(tenPer10s[3])
		token   = charging(tenPer10s[4])
		leaky   = charging(tenPer10s[5])
	)
	return []testCase{
		{
			name:        "a fixed window outlives a step back",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: fixed(4), want: room(4, 6, 10*s)},
				{at: -5 * s, peek: fixed(0), want: room(4, 6, 10*s)},
				{at: -5 * s, take: fixed(1), want: room(5, 5, 10*s)},
				{at: -5 * s, take: fixed(6), want: full(5, 5, 10*s, 10*s)},
				{at: 9999 * time.Millisecond, take: fixed(5), want: room(10, 0, 10*s)},
				{at: 10 * s, take: fixed(1), want: room(1, 9, 20*s)},
			},
		},
		{
			name:        "an aligned window outlives a step back to before its start",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: aligned(4), want: room(4, 6, 9750*time.Millisecond)},
				{at: -s, take: aligned(1), want: room(5, 5, 9750*time.Millisecond)},
				{at: 9750 * time.Millisecond, take: aligned(1), want: room(1, 9, 19750*time.Millisecond)},
			},
		},
		{
			name:        "a sliding window counts time before its start as the start",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: sliding(6), want: room(6, 4, 19750*time.Millisecond)},
				{at: 14750 * time.Millisecond, take: sliding(1), want: room(4, 6, 29750*time.Millisecond)},
				{at: 5 * s, peek: sliding(0), want: room(7, 3, 29750*time.Millisecond)},
				{at: 5 * s, take: sliding(2), want: room(9, 1, 29750*time.Millisecond)},
				// Room for two after three: 6 * (10 s - x) / 10 s <= 5 from 1667 ms.
				{at: 5 * s, take: sliding(2), want: full(9, 1, 29750*time.Millisecond, 11417*time.Millisecond)},
				{at: 14750 * time.Millisecond, peek: sliding(0), want: room(6, 4, 29750*time.Millisecond)},
				{at: 19750 * time.Millisecond, peek: sliding(0), want: room(3, 7, 29750*time.Millisecond)},
			},
		},
		{
			name:        "a sliding log logs no earlier than it did before",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: log(1), want: room(1, 9, 10*s)},
				{at: 5 * s, take: log(1), want: room(2, 8, 15*s)},
				{at: 2 * s, take: log(3), want: room(5, 5, 15*s)},
				{at: 2 * s, take: log(6), want: full(5, 5, 15*s, 10*s)},
				{at: 12 * s, peek: log(0), want: room(4, 6, 15*s)},
				{at: 15 * s, peek: log(0), want: room(0, 10, 15*s)},
			},
		},
		{
			name:        "a token bucket keeps the instant at which it is drained",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: token(4), want: room(4, 6, 4*s)},
				{at: -2 * s, peek: token(0), want: room(6, 4, 4*s)},
				{at: -2 * s, take: token(1), want: room(7, 3, 5*s)},
				{at: -6 * s, take: token(0), want: full(11, 0, 5*s, -5*s)},
				{at: 0, peek: token(0), want: room(5, 5, 5*s)},
			},
		},
		{
			name:        "a leaky bucket keeps the instant at which it is drained",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: leaky(4), want: queued(4, 6, 4*s, 0)},
				{at: -2 * s, take: leaky(1), want: queued(7, 3, 5*s, 4*s)},
			},
		},
		{
			name:        "a process whose clock is behind sees the live window",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: fixed(1), want: room(1, 9, 10*s)},
				{at: -2 * s, process: 1, take: fixed(1), want: room(2, 8, 10*s)},
				{at: 9 * s, take: fixed(1), want: room(3, 7, 10*s)},
				{at: 7 * s, process: 1, peek: fixed(0), want: room(3, 7, 10*s)},
				{at: 10 * s, take: fixed(1), want: room(1, 9, 20*s)},
				{at: 8 * s, process: 1, peek: fixed(0), want: room(1, 9, 20*s)},
				{at: 8 * s, process: 1, take: fixed(1), want: room(2, 8, 20*s)},
				{at: 11 * s, take: fixed(1), want: room(3, 7, 20*s)},
				{at: 18 * s, process: 1, take: fixed(1), want: room(4, 6, 20*s)},
				{at: 20 * s, peek: fixed(0), want: room(0, 10, 20*s)},
			},
		},
		{
			name:        "a process whose clock is ahead opens the window for both",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: fixed(2), want: room(2, 8, 10*s)},
				{at: 10 * s, process: 1, take: fixed(3), want: room(3, 7, 20*s)},
				{at: 7 * s, take: fixed(1), want: room(4, 6, 20*s)},
				{at: 19 * s, take: fixed(1), want: room(5, 5, 20*s)},
			},
		},
		{
			name:        "a refund through another process names the same window",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: fixed(2), as: "a", want: room(2, 8, 10*s)},
				{at: 0, take: fixed(3), want: room(5, 5, 10*s)},
				{at: -2 * s, process: 1, refund: "a", want: room(3, 7, 10*s)},
			},
		},
		{
			name:        "the epoch is an instant like any other",
			explanation: ourTime,
			steps: []step{ // t0 is 1893456000250 ms after it
				{at: -1893456000250 * time.Millisecond, take: fixed(1), want: room(1, 9, -1893455990250*time.Millisecond)},
				{at: -1893455990250 * time.Millisecond, take: fixed(1), want: room(1, 9, -1893455980250*time.Millisecond)},
			},
		},
		{
			name:        "a refund by a clock behind gives back no more than had not drained at the last charge",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: token(10), as: "a", want: room(10, 0, 10*s)},
				{at: 8 * s, take: token(8), want: room(10, 0, 18*s)},
				{at: s, process: 1, refund: "a", want: room(15, 0, 16*s)}, // 2 of 10
				{at: 8 * s, peek: token(0), want: room(8, 2, 16*s)},
			},
		},
		{
			name:        "clocks from 1970 to 9999",
			explanation: ourTime,
			run:         clocksOfAllYears,
		},
	}
}

// clocksOfAllYears makes random calls by clocks of all years. After each call, the count can be
// read, charged and moved.
func clocksOfAllYears(ctx context.Context, backend driver.Backend) error {
	rng := rand.New(rand.NewPCG(1970, 9999))
	for _, a := range quota.Algorithms() {
		for key := range 3 {
			y := &years{Rand: rng, backend: backend, key: fmt.Sprint(a, key)}
			for i := range y.policies {
				y.policies[i] = &throttler.Policy{Name: "core", Limits: []throttler.Limit{{
					Algorithm: a, Quota: []int64{1, 60, 10_000}[rng.IntN(3)],
					Window: []time.Duration{time.Millisecond, time.Minute, time.Hour, year}[rng.IntN(4)],
				}}}
				if key == 2 { // a policy of several algorithms
					y.policies[i].Limits = append(y.policies[i].Limits, throttler.Limit{Algorithm: a, Quota: 60, Window: time.Second}, throttler.Limit{Quota: 10, Window: 24 * time.Hour})
				}
			}
			for range 60 {
				if err := y.step(ctx); err != nil {
					return fmt.Errorf("%v: %w", a, err)
				}
			}
		}
	}
	return nil
}

// years makes the calls of clocksOfAllYears about one count.
type years struct {
	*rand.Rand
	backend  driver.Backend
	key      string
	policies [2]*throttler.Policy // two versions of one
	now      int64
	takes    []driver.Decision
}

func (y *years) charge(cost int64) throttler.Charge {
	return throttler.Charge{Policy: y.policies[y.IntN(2)], Key: y.key, Partition: y.key, Cost: cost}
}

func (y *years) move() {
	last := decision.Never.UnixMilli()
	switch y.IntN(6) {
	case 0:
		y.now = y.Int64N(last + 1)
	case 1: // an edge, such as the first instant of windows that are stored as digits
		edges := []int64{0, 1, 1735689600000, 1735689600000 + 1e12, 1<<31*1000 - 1, last}
		y.now = edges[y.IntN(len(edges))] + y.Int64N(7_200_000) - 3_600_000
	case 2:
		y.now += y.Int64N(7_200_000) - 3_600_000
	case 3:
		if len(y.takes) > 0 {
			y.now = y.takes[y.IntN(len(y.takes))].Request.Now
		}
	}
	y.now = min(max(y.now, 0), last)
}

func (y *years) step(ctx context.Context) error {
	y.move()
	call, err := "take", error(nil)
	switch n := y.IntN(10); {
	case n == 0:
		call, err = "reset", y.backend.Reset(ctx, driver.NewRequest(y.now, y.charge(1)))
	case n < 5 && len(y.takes) > 0:
		call = "settle"
		s := driver.Settlement{Now: y.now, Charged: y.takes[y.IntN(len(y.takes))], Costs: []int64{y.Int64N(4) * y.Int64N(30)}}
		if c := s.Charged.Charges()[0]; y.IntN(4) == 0 && c.Policy.Holds() {
			s.Renews, s.Costs[0] = true, c.Cost
		}
		_, err = y.backend.Settle(ctx, s)
	default:
		err = y.take(ctx, y.Int64N(20)*y.Int64N(20))
	}
	if err != nil {
		return fmt.Errorf("%s at %d: %w", call, y.now, err)
	}
	y.move()
	if _, err := y.backend.Peek(ctx, driver.NewRequest(y.now, y.charge(1))); err != nil {
		return fmt.Errorf("peek at %d, after %s: %w", y.now, call, err)
	}
	if err := y.take(ctx, y.Int64N(2)); err != nil {
		return fmt.Errorf("take at %d, after %s: %w", y.now, call, err)
	}
	store, ok := y.backend.(handoff.Store)
	if !ok {
		return nil
	}
	released, err := store.Release(ctx, handoff.ReleaseRequest{Now: y.now, Charges: []throttler.Charge{y.charge(1)}, To: 1, Version: 1, ReadOnly: true})
	if err == nil {
		_, err = algorithm.Parse(released[0].State)
	}
	if err != nil {
		return fmt.Errorf("move at %d, after %s: %w", y.now, call, err)
	}
	return nil
}

func (y *years) take(ctx context.Context, cost int64) error {
	d, err := y.backend.Take(ctx, driver.NewRequest(y.now, y.charge(cost)))
	if d.Allowed && cost > 0 {
		y.takes = append(y.takes, d)
	}
	return err
}
