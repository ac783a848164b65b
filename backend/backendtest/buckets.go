package backendtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

func tokenBucketCases() []testCase {
	five := charging(throttler.Limit{Quota: 1, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 5})
	thirds := charging(throttler.Limit{Quota: 3, Window: time.Second, Algorithm: throttler.TokenBucket})
	burst := charging(throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 30})
	small := charging(throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.TokenBucket, Burst: 2})
	return []testCase{
		{
			// The situations of the table that throttled publishes for its GCRA,
			// one per second with room for five.
			name:        "one per second, bursts of five",
			explanation: tokenCounts,
			steps: []step{
				{at: 0, take: five(6), want: full(0, 5, 0, forever)},
				{at: 0, take: five(1), want: room(1, 4, 1*time.Second)},
				{at: 0, take: five(1), want: room(2, 3, 2*time.Second)},
				{at: 0, take: five(1), want: room(3, 2, 3*time.Second)},
				{at: 0, take: five(1), want: room(4, 1, 4*time.Second)},
				{at: 0, take: five(1), want: room(5, 0, 5*time.Second)},
				{at: 0, take: five(1), want: full(5, 0, 5*time.Second, 1*time.Second)},
				{at: 3000 * time.Millisecond, take: five(1), want: room(3, 2, 6*time.Second)},
				{at: 3100 * time.Millisecond, take: five(1), want: room(4, 1, 7*time.Second)},
				{at: 4000 * time.Millisecond, take: five(1), want: room(4, 1, 8*time.Second)},
				{at: 8000 * time.Millisecond, take: five(1), want: room(1, 4, 9*time.Second)},
				{at: 9500 * time.Millisecond, take: five(1), want: room(1, 4, 10500*time.Millisecond)},
				{at: 9500 * time.Millisecond, take: five(0), want: room(1, 4, 10500*time.Millisecond)},
				{at: 9500 * time.Millisecond, take: five(2), want: room(3, 2, 12500*time.Millisecond)},
				{at: 9500 * time.Millisecond, take: five(5), want: full(3, 2, 12500*time.Millisecond, 12500*time.Millisecond)},
			},
		},
		{
			name:        "retry at, to the millisecond",
			explanation: retryEarliest,
			steps: []step{
				{at: 0, take: five(5), want: room(5, 0, 5*time.Second)},
				{at: 500 * time.Millisecond, take: five(2), want: full(5, 0, 5*time.Second, 2*time.Second)},
				{at: 1999 * time.Millisecond, take: five(2), want: full(4, 1, 5*time.Second, 2*time.Second)},
				{at: 2 * time.Second, take: five(2), want: room(5, 0, 7*time.Second)},
			},
		},
		{
			name:        "thirds of a millisecond do not add up",
			explanation: tokenCounts,
			steps: []step{ // a unit drains in 333 1/3 ms
				{at: 0, take: thirds(1), want: room(1, 2, 334*time.Millisecond)},
				{at: 0, take: thirds(1), want: room(2, 1, 667*time.Millisecond)},
				{at: 0, take: thirds(1), want: room(3, 0, 1000*time.Millisecond)},
				{at: 0, take: thirds(1), want: full(3, 0, 1000*time.Millisecond, 334*time.Millisecond)},
				{at: 333 * time.Millisecond, take: thirds(1), want: full(3, 0, 1000*time.Millisecond, 334*time.Millisecond)},
				{at: 334 * time.Millisecond, take: thirds(1), want: room(3, 0, 1334*time.Millisecond)},
				{at: 334 * time.Millisecond, take: thirds(1), want: full(3, 0, 1334*time.Millisecond, 667*time.Millisecond)},
				{at: 667 * time.Millisecond, take: thirds(1), want: room(3, 0, 1667*time.Millisecond)},
				{at: 1000 * time.Millisecond, take: thirds(1), want: room(3, 0, 2000*time.Millisecond)},
				{at: 1999 * time.Millisecond, peek: thirds(0), want: room(1, 2, 2000*time.Millisecond)},
				{at: 2000 * time.Millisecond, peek: thirds(0), want: room(0, 3, 2000*time.Millisecond)},
			},
		},
		{
			name:        "a burst above the quota is what silence saved up",
			explanation: tokenCounts,
			steps: []step{
				{at: 0, take: burst(30), want: room(30, 0, 3*time.Second)},
				{at: 99 * time.Millisecond, take: burst(1), want: full(30, 0, 3*time.Second, 100*time.Millisecond)},
				{at: time.Second, take: burst(11), want: full(20, 10, 3*time.Second, 1100*time.Millisecond)},
				{at: time.Second, take: burst(10), want: room(30, 0, 4*time.Second)},
				{at: time.Hour, peek: burst(30), want: room(0, 30, time.Hour)},
			},
		},
		{
			name:        "a burst below the quota spaces charges",
			explanation: tokenCounts,
			steps: []step{
				{at: 0, take: small(3), want: full(0, 2, 0, forever)},
				{at: 0, take: small(2), want: room(2, 0, 200*time.Millisecond)},
				{at: 50 * time.Millisecond, take: small(1), want: full(2, 0, 200*time.Millisecond, 100*time.Millisecond)},
				{at: 100 * time.Millisecond, take: small(1), want: room(2, 0, 300*time.Millisecond)},
			},
		},
	}
}

func leakyBucketCases() []testCase {
	queue := charging(throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket, MaxWait: 5 * time.Second})
	thirds := charging(throttler.Limit{Quota: 3, Window: time.Second, Algorithm: throttler.LeakyBucket})
	bounded := charging(throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket, Burst: 4, MaxWait: 5 * time.Second})
	fast := charging(throttler.Limit{Quota: 3000, Window: time.Second, Algorithm: throttler.LeakyBucket})
	return []testCase{
		{
			name:        "fifty at once start 100 ms apart",
			explanation: leakyCounts,
			steps:       fiftyAtOnce(queue),
		},
		{
			name:        "each charge starts when what was before it has drained",
			explanation: leakyCounts,
			steps: []step{
				{at: 0, take: queue(3), want: queued(3, 48, 300*time.Millisecond, 0)},
				{at: 50 * time.Millisecond, take: queue(1), want: queued(4, 47, 400*time.Millisecond, 300*time.Millisecond)},
				{at: 399 * time.Millisecond, take: queue(1), want: queued(2, 49, 500*time.Millisecond, 400*time.Millisecond)},
				{at: 500 * time.Millisecond, take: queue(1), want: queued(1, 50, 600*time.Millisecond, 500*time.Millisecond)},
				{at: time.Second, take: queue(1), want: queued(1, 50, 1100*time.Millisecond, time.Second)},
			},
		},
		{
			name:        "start at is rounded up to the millisecond, and does not drift",
			explanation: leakyCounts,
			steps: []step{
				{at: 0, take: thirds(1), want: queued(1, 2, 334*time.Millisecond, 0)},
				{at: 0, take: thirds(1), want: queued(2, 1, 667*time.Millisecond, 334*time.Millisecond)},
				{at: 0, take: thirds(1), want: queued(3, 0, 1000*time.Millisecond, 667*time.Millisecond)},
				{at: 0, take: thirds(1), want: full(3, 0, 1000*time.Millisecond, 334*time.Millisecond)},
				{at: 334 * time.Millisecond, take: thirds(1), want: queued(3, 0, 1334*time.Millisecond, 1000*time.Millisecond)},
			},
		},
		{
			name:        "a burst bounds the queue where max wait would not",
			explanation: retryEarliest,
			steps: []step{
				{at: 0, peek: bounded(1), want: room(0, 4, 0)},
				{at: 0, take: bounded(4), want: queued(4, 0, 400*time.Millisecond, 0)},
				{at: 0, take: bounded(2), want: full(4, 0, 400*time.Millisecond, 200*time.Millisecond)},
				{at: 199 * time.Millisecond, take: bounded(2), want: full(3, 1, 400*time.Millisecond, 200*time.Millisecond)},
				{at: 200 * time.Millisecond, take: bounded(2), want: queued(4, 0, 600*time.Millisecond, 400*time.Millisecond)},
			},
		},
		{
			name:        "the last of the queue gives its place back",
			explanation: startsOnce,
			steps: []step{
				{at: 0, take: queue(1), want: queued(1, 50, 100*time.Millisecond, 0)},
				{at: 0, take: queue(1), as: "left", want: queued(2, 49, 200*time.Millisecond, 100*time.Millisecond)},
				{at: 50 * time.Millisecond, refund: "left", want: room(1, 50, 100*time.Millisecond)},
				{at: 50 * time.Millisecond, take: queue(1), want: queued(2, 49, 200*time.Millisecond, 100*time.Millisecond)},
			},
		},
		{
			name:        "a place in the middle of the queue comes back when all behind it have left",
			explanation: startsOnce,
			steps: []step{
				{at: 0, take: queue(1), as: "a", want: queued(1, 50, 100*time.Millisecond, 0)},
				{at: 0, take: queue(1), as: "b", want: queued(2, 49, 200*time.Millisecond, 100*time.Millisecond)},
				{at: 0, take: queue(1), as: "c", want: queued(3, 48, 300*time.Millisecond, 200*time.Millisecond)},
				{at: 10 * time.Millisecond, refund: "b", want: room(3, 48, 300*time.Millisecond)},
				{at: 10 * time.Millisecond, take: queue(1), as: "d", want: queued(4, 47, 400*time.Millisecond, 300*time.Millisecond)},
				{at: 20 * time.Millisecond, refund: "d", want: room(3, 48, 300*time.Millisecond)},
				{at: 20 * time.Millisecond, refund: "c", want: room(1, 50, 100*time.Millisecond)},
				{at: 20 * time.Millisecond, take: queue(1), want: queued(2, 49, 200*time.Millisecond, 100*time.Millisecond)},
			},
		},
		{
			name:        "places that end within the same millisecond are told apart",
			explanation: startsOnce,
			steps: []step{ // each is a third of one
				{at: 0, take: fast(2), want: queued(2, 2998, time.Millisecond, 0)},
				{at: 0, take: fast(1), as: "a", want: queued(3, 2997, time.Millisecond, time.Millisecond)},
				{at: 0, take: fast(1), as: "b", want: queued(4, 2996, 2*time.Millisecond, time.Millisecond)},
				{at: 0, refund: "a", want: room(4, 2996, 2*time.Millisecond)},
				{at: 0, refund: "b", want: room(2, 2998, time.Millisecond)},
			},
		},
		{
			name:        "a charge whose start has come keeps the place of its first unit",
			explanation: startsOnce,
			steps: []step{
				{at: 0, take: queue(3), as: "a", want: queued(3, 48, 300*time.Millisecond, 0)},
				{at: 0, refund: "a", want: room(1, 50, 100*time.Millisecond)},
				{at: 0, take: queue(3), as: "b", want: queued(4, 47, 400*time.Millisecond, 100*time.Millisecond)},
				{at: 100 * time.Millisecond, refund: "b", want: room(1, 50, 200*time.Millisecond)},
				{at: 100 * time.Millisecond, take: queue(3), as: "c", want: queued(4, 47, 500*time.Millisecond, 200*time.Millisecond)},
				{at: 199 * time.Millisecond, settle: "c", costs: []int64{1}, want: room(2, 49, 300*time.Millisecond)},
				{at: 199 * time.Millisecond, take: queue(2), as: "d", want: queued(4, 47, 500*time.Millisecond, 300*time.Millisecond)},
				{at: 350 * time.Millisecond, settle: "d", costs: []int64{0}, want: room(1, 50, 400*time.Millisecond)},
				{at: 600 * time.Millisecond, take: queue(2), as: "e", want: queued(2, 49, 800*time.Millisecond, 600*time.Millisecond)},
				{at: 750 * time.Millisecond, refund: "e", want: room(0, 51, 750*time.Millisecond)},
				{at: 750 * time.Millisecond, take: queue(1), want: queued(1, 50, 850*time.Millisecond, 750*time.Millisecond)},
			},
		},
		{
			name:        "of a queue that leaves together, in any order, nothing stays",
			explanation: startsOnce,
			run:         leaveTogether,
		},
		{
			name:        "gaps are forgotten once as much time has passed as they are long",
			explanation: startsOnce,
			steps: []step{
				{at: 0, take: queue(1), want: queued(1, 50, 100*time.Millisecond, 0)},
				{at: 0, take: queue(1), as: "a", want: queued(2, 49, 200*time.Millisecond, 100*time.Millisecond)},
				{at: 0, take: queue(1), want: queued(3, 48, 300*time.Millisecond, 200*time.Millisecond)},
				{at: 0, take: queue(2), as: "b", want: queued(5, 46, 500*time.Millisecond, 300*time.Millisecond)},
				{at: 0, take: queue(1), as: "c", want: queued(6, 45, 600*time.Millisecond, 500*time.Millisecond)},
				{at: 0, refund: "a", want: room(6, 45, 600*time.Millisecond)},
				{at: 200 * time.Millisecond, settle: "b", costs: []int64{1}, want: room(4, 47, 600*time.Millisecond)},
				{at: 200 * time.Millisecond, refund: "c", want: room(2, 49, 400*time.Millisecond)},
				{at: 200 * time.Millisecond, take: queue(1), want: queued(3, 48, 500*time.Millisecond, 400*time.Millisecond)},
			},
		},
		{
			name:        "whichever clients leave, and when, no two start within 100 ms",
			explanation: startsOnce,
			run:         leavers,
		},
	}
}

// leaveTogether makes all but the first of a queue leave, in an order drawn at random,
// some ms apart, while others join and leave.
func leaveTogether(ctx context.Context, backend driver.Backend) error {
	seed := testseed.Value()
	rng := rand.New(rand.NewPCG(seed, 0))
	clk := clock.NewManual(t0)
	t := throttler.New(backend, &throttler.Options{Clock: clk})
	queue := charging(throttler.Limit{Quota: 7, Window: time.Second, Algorithm: throttler.LeakyBucket, Burst: 1000})
	for range 2 {
		if _, err := t.Take(ctx, queue(2)...); err != nil { // starts at once
			return err
		}
		var waiting []throttler.Decision
		for joining := 40; joining > 0 || len(waiting) > 0; {
			if joining > 0 && (len(waiting) < 30 || rng.IntN(2) == 0) {
				d, err := t.Take(ctx, queue(1+rng.Int64N(3))...)
				if err != nil {
					return err
				}
				waiting = append(waiting, d)
				joining--
				continue
			}
			i := rng.IntN(len(waiting))
			if _, err := t.Refund(ctx, waiting[i]); err != nil {
				return err
			}
			waiting = slices.Delete(waiting, i, i+1)
			clk.Advance(time.Duration(rng.IntN(3)) * time.Millisecond)
		}
		d, err := t.Peek(ctx, queue(1)...)
		if err != nil {
			return err
		}
		if used := d.Limit(0).Used; used > 2 {
			return fmt.Errorf("WEIR_SEED=%d: %d units are used of a queue that all but 2 units have left", seed, used)
		}
		clk.Advance(time.Second)
	}
	return nil
}

// leavers makes clients wait in a queue of 10 per second and leave at random: at
// once, while they wait, at the time of their start, later. Clients that are still
// there at their start start 100 ms apart, so never more than 10 in a second.
func leavers(ctx context.Context, backend driver.Backend) error {
	seed := testseed.Value()
	rng := rand.New(rand.NewPCG(seed, 0))
	clk := clock.NewManual(t0)
	t := throttler.New(backend, &throttler.Options{Clock: clk})
	queue := charging(throttler.Limit{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket, MaxWait: 3 * time.Second})
	type client struct {
		d        throttler.Decision
		leavesAt time.Time
	}
	var waiting []client
	var starts []time.Time // of the clients that did not leave before
	for range 300 {
		clk.Advance(time.Duration(rng.IntN(1<<rng.IntN(9))) * time.Millisecond)
		now := clk.Now()
		d, err := t.Take(ctx, queue(1)...)
		if err != nil {
			return err
		}
		if d.Allowed {
			c := client{d: d, leavesAt: d.StartAt()} // at the start itself
			switch rng.IntN(3) {
			case 0:
				c.leavesAt = now.Add(time.Duration(rng.Int64N(int64(d.StartAt().Sub(now)) + 1)).Truncate(time.Millisecond))
			case 1:
				c.leavesAt = d.StartAt().Add(time.Duration(rng.IntN(200)) * time.Millisecond)
			}
			if !c.leavesAt.Before(d.StartAt()) {
				starts = append(starts, d.StartAt())
			}
			waiting = append(waiting, c)
		}
		rng.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
		stay := waiting[:0]
		for _, c := range waiting {
			if c.leavesAt.After(now) {
				stay = append(stay, c)
				continue
			}
			clk.Set(c.leavesAt) // the refunding clock is behind ours
			if _, err := t.Refund(ctx, c.d); err != nil {
				return err
			}
			clk.Set(now)
		}
		waiting = stay
	}
	slices.SortFunc(starts, time.Time.Compare)
	for i := range starts[1:] {
		if gap := starts[i+1].Sub(starts[i]); gap < 100*time.Millisecond {
			return fmt.Errorf("WEIR_SEED=%d: starts at %s and %s are %v apart", seed, after(starts[i]), after(starts[i+1]), gap)
		}
	}
	if len(starts) < 30 { // some 65, give or take 6
		return fmt.Errorf("seed %d: the test is wrong: only %d clients started", seed, len(starts))
	}
	return nil
}

// fiftyAtOnce takes 50 at t0 from a queue of 10 per second with a MaxWait of 5 s.
// The 51st waits just that long, the 52nd would wait longer.
func fiftyAtOnce(queue func(cost int64) []throttler.Charge) []step {
	var steps []step
	for i := range int64(51) {
		start := time.Duration(i) * 100 * time.Millisecond
		steps = append(steps, step{at: 0, take: queue(1), want: queued(i+1, 50-i, start+100*time.Millisecond, start)})
	}
	return append(steps,
		step{at: 0, take: queue(1), want: full(51, 0, 5100*time.Millisecond, 100*time.Millisecond)},
		step{at: 100 * time.Millisecond, take: queue(1), want: queued(51, 0, 5200*time.Millisecond, 5100*time.Millisecond)},
	)
}
