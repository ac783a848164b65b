package main

import (
	"context"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

const (
	perWindow = 10
	window    = 10 * time.Second
	duration  = 60 * time.Second
)

// arrivals is the traffic: a trickle, a burst on either side of the tenth
// second, silence, an overload of four a second, and a trickle again.
func arrivals() []time.Duration {
	var times []time.Duration
	every := func(begin, end, step time.Duration) {
		for instant := begin; instant < end; instant += step {
			times = append(times, instant)
		}
	}
	const s, ms = time.Second, time.Millisecond
	every(0, 8*s, 2*s)
	every(8700*ms, 9700*ms, 100*ms)
	every(10200*ms, 11200*ms, 100*ms)
	every(26*s, 36*s, 250*ms)
	every(38*s, 58*s, 1500*ms)
	return times
}

// outcome is the outcome of one arrival.
type outcome struct {
	instant time.Duration
	start   time.Duration // when it may start; differs from instant only in the leaky bucket
	allowed bool
}

// sample is the number of units used at an instant.
type sample struct {
	instant time.Duration
	used    int64
}

// play runs the arrivals through one algorithm. It also returns the used units at each step,
// and the ends of the windows that were reported.
func play(a quota.Algorithm) (outcomes []outcome, curve []sample, resets []time.Duration) {
	const step = 50 * time.Millisecond
	began := time.UnixMilli(1_900_000_800_000) // a multiple of the window
	c := clock.NewManual(began)
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Clock: c})
	p := &throttler.Policy{Name: "trace", Limits: []throttler.Limit{{Quota: perWindow, Window: window, Algorithm: a}}}
	charge := p.Charge("client")
	next := arrivals()
	for instant := time.Duration(0); instant <= duration; instant += step {
		for len(next) > 0 && next[0] <= instant {
			c.Set(began.Add(next[0]))
			d, err := t.Take(context.Background(), charge)
			if err != nil {
				panic(err) // the memory backend is not full
			}
			outcomes = append(outcomes, outcome{next[0], d.StartAt().Sub(began), d.Allowed})
			if reset := d.Limit(0).ResetAt.Sub(began); len(resets) == 0 || resets[len(resets)-1] != reset {
				resets = append(resets, reset)
			}
			next = next[1:]
		}
		c.Set(began.Add(instant))
		d, err := t.Peek(context.Background(), charge)
		if err != nil {
			panic(err)
		}
		curve = append(curve, sample{instant, d.Limit(0).Used})
	}
	return outcomes, curve, resets
}
