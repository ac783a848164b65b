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

// tenPer10s has ten units per 10 s by each algorithm.
var tenPer10s = []throttler.Limit{
	{Quota: 10, Window: 10 * time.Second, Algorithm: throttler.FixedWindow},
	{Quota: 10, Window: 10 * time.Second, Algorithm: throttler.FixedWindow, Aligned: true},
	{Quota: 10, Window: 10 * time.Second, Algorithm: throttler.SlidingWindow},
	{Quota: 10, Window: 10 * time.Second, Algorithm: throttler.SlidingLog},
	{Quota: 10, Window: 10 * time.Second, Algorithm: throttler.TokenBucket},
	{Quota: 10, Window: 10 * time.Second, Algorithm: throttler.LeakyBucket},
}

// nameOf names each of the limits above.
func nameOf(l throttler.Limit) string {
	if l.Aligned {
		return "aligned " + l.Algorithm.String()
	}
	return l.Algorithm.String()
}

func costCases() []testCase {
	var cases []testCase
	for _, l := range tenPer10s {
		core := charging(l)
		cases = append(cases,
			testCase{
				name:        "zero opens nothing, " + nameOf(l),
				explanation: costZero,
				steps: []step{
					{at: 0, take: core(0), want: room(0, 10, 0)},
					{at: 5 * time.Second, peek: core(0), want: room(0, 10, 5*time.Second)},
					{at: 6 * time.Second, take: core(0), as: "zero", want: room(0, 10, 6*time.Second)},
					{at: 7 * time.Second, refund: "zero"},
					{at: 7 * time.Second, peek: core(10), want: room(0, 10, 7*time.Second)},
				},
			},
			testCase{
				name:        "above the capacity never fits, " + nameOf(l),
				explanation: costTooHigh,
				steps: []step{
					{at: 0, take: core(11), want: full(0, 10, 0, forever)},
					{at: time.Second, take: core(quota.MaxQuota), want: full(0, 10, time.Second, forever)},
					{at: 2 * time.Second, peek: core(11), want: full(0, 10, 2*time.Second, forever)},
				},
			},
			testCase{
				name:        "a bad argument charges nothing, " + nameOf(l),
				explanation: badArguments,
				run: func(ctx context.Context, backend driver.Backend) error {
					return refusesBadArguments(ctx, backend, core)
				},
			})
	}
	core := charging(tenPer10s[0])
	cases = append(cases, testCase{
		name:        "zero is allowed where nothing is left",
		explanation: costZero,
		steps: []step{
			{at: 0, take: core(10), want: room(10, 0, 10*time.Second)},
			{at: time.Second, take: core(0), want: room(10, 0, 10*time.Second)},
			{at: time.Second, take: core(1), want: full(10, 0, 10*time.Second, 10*time.Second)},
		},
	})
	return cases
}

func refusesBadArguments(ctx context.Context, backend driver.Backend, core func(int64) []throttler.Charge) error {
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	good := core(1)[0]
	bad := map[string]throttler.Charge{
		"no policy":         {Key: "bob"},
		"a cost below zero": {Policy: good.Policy, Key: "bob", Cost: -1},
	}
	for name, charge := range bad {
		_, err := t.Take(ctx, good, charge)
		if err == nil {
			return fmt.Errorf("a take with a good charge and one with %s: got no error, want one that wraps ErrInvalid", name)
		}
		if !errors.Is(err, throttler.ErrInvalid) {
			return fmt.Errorf("a take with a good charge and one with %s: got an error that does not wrap ErrInvalid: %w", name, err)
		}
	}
	return play(ctx, backend, []step{{at: 0, peek: core(0), want: room(0, 10, 0)}})
}
