package backendtest

import (
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// withMode returns charges in mode m.
func withMode(m quota.Mode, charges []throttler.Charge) []throttler.Charge {
	moded := make([]throttler.Charge, len(charges))
	for i, c := range charges {
		c.Mode = m
		moded[i] = c
	}
	return moded
}

// join returns charges of several, in one partition.
func join(lists ...[]throttler.Charge) (joined []throttler.Charge) {
	for _, charges := range lists {
		for _, c := range charges {
			joined = append(joined, c.Within("acme"))
		}
	}
	return joined
}

func modeCases() []testCase {
	const s = time.Second
	var (
		fixed  = charging(tenPer10s[0])
		two    = charging(tenPer10s[0], throttler.Limit{Quota: 6, Window: 3 * s, Algorithm: throttler.TokenBucket})
		second = named("other", tenPer10s[0])
		third  = named("third", tenPer10s[0])
	)
	cases := []testCase{
		{
			name:        "Check opens no window and charges nothing",
			explanation: checkCharges,
			steps: []step{
				{at: 0, take: withMode(quota.Check, fixed(10)), costs: []int64{0}, want: room(0, 10, 0)},
				{at: s, take: fixed(3), want: room(3, 7, 11*s)},
				{at: s, peek: withMode(quota.Check, fixed(7)), costs: []int64{0}, want: room(3, 7, 11*s)},
				{at: s, take: withMode(quota.Check, fixed(7)), costs: []int64{0}, want: room(3, 7, 11*s)},
				{at: s, take: withMode(quota.Check, fixed(8)), want: full(3, 7, 11*s, 11*s)},
				{at: s, take: withMode(quota.Check, fixed(11)), want: full(3, 7, 11*s, forever)},
				{at: 2 * s, take: fixed(7), want: room(10, 0, 11*s)},
			},
		},
		{
			name:        "a Check is settled from nothing",
			explanation: checkCharges,
			steps: []step{
				{at: 0, take: fixed(3), want: room(3, 7, 10*s)},
				{at: 0, take: withMode(quota.Check, fixed(7)), costs: []int64{0}, as: "a", want: room(3, 7, 10*s)},
				{at: s, refund: "a"},
				{at: s, take: withMode(quota.Check, fixed(7)), costs: []int64{0}, as: "b", want: room(3, 7, 10*s)},
				{at: s, settle: "b", costs: []int64{5}, want: room(8, 2, 10*s)},
			},
		},
		{
			name:        "AtMost charges what fits all limits",
			explanation: atMostCharges,
			steps: []step{
				{at: 0, peek: withMode(quota.AtMost, two(100)), costs: []int64{6}, want: all(room(0, 10, 0), room(0, 6, 0))},
				{at: 0, take: withMode(quota.AtMost, two(100)), costs: []int64{6}, want: all(room(6, 4, 10*s), room(6, 0, 3*s))},
				{at: 0, take: withMode(quota.AtMost, two(2)), want: all(room(6, 4, 10*s), full(6, 0, 3*s, 500*time.Millisecond))},
				{at: s, take: withMode(quota.AtMost, two(1)), costs: []int64{1}, want: all(room(7, 3, 10*s), room(5, 1, 3500*time.Millisecond))},
				{at: 3500 * time.Millisecond, take: withMode(quota.AtMost, two(6)), costs: []int64{3}, as: "a", want: all(room(10, 0, 10*s), room(3, 3, 5*s))},
				{at: 3500 * time.Millisecond, take: withMode(quota.AtMost, two(6)), want: all(full(10, 0, 10*s, 10*s), room(3, 3, 5*s))},
				{at: 3500 * time.Millisecond, refund: "a", want: all(room(7, 3, 10*s), room(0, 6, 3500*time.Millisecond))},
			},
		},
		{
			name:        "Capped waits for a full quota",
			explanation: cappedCharges,
			steps: []step{
				{at: 0, take: withMode(quota.Capped, two(1024)), costs: []int64{6}, want: all(room(6, 4, 10*s), room(6, 0, 3*s))},
				{at: s, take: withMode(quota.Capped, two(1024)), costs: []int64{6}, want: all(full(6, 4, 10*s, 10*s), full(4, 2, 3*s, 3*s))},
				{at: 3 * s, take: withMode(quota.Capped, two(4)), costs: []int64{4}, want: all(room(10, 0, 10*s), room(4, 2, 5*s))},
			},
		},
		{
			name:        "modes mix, and a refusal charges nothing",
			explanation: allOrNothing,
			steps: []step{
				{at: 0, take: join(fixed(8), withMode(quota.Record, second(12)), withMode(quota.AtMost, third(20))), costs: []int64{8, 12, 10},
					want: all(room(8, 2, 10*s), room(12, 0, 10*s), room(10, 0, 10*s))},
				{at: s, take: join(fixed(3), withMode(quota.Record, second(1))),
					want: all(full(8, 2, 10*s, 10*s), room(12, 0, 10*s))},
				{at: s, take: join(withMode(quota.Check, fixed(2)), withMode(quota.Record, second(1))), costs: []int64{0, 1},
					want: all(room(8, 2, 10*s), room(13, 0, 10*s))},
				{at: s, take: join(withMode(quota.AtMost, fixed(9)), withMode(quota.Check, second(1))),
					want: all(room(8, 2, 10*s), full(13, 0, 10*s, 10*s))},
				{at: s, take: join(withMode(quota.Record, fixed(9)), withMode(quota.AtMost, third(1))),
					want: all(room(8, 2, 10*s), full(10, 0, 10*s, 10*s))},
				{at: s, peek: join(withMode(quota.AtMost, fixed(9)), withMode(quota.Record, second(5))), costs: []int64{2, 5},
					want: all(room(8, 2, 10*s), room(13, 0, 10*s))},
				{at: s, take: join(withMode(quota.AtMost, fixed(9)), withMode(quota.Record, second(5))), costs: []int64{2, 5}, as: "a",
					want: all(room(10, 0, 10*s), room(18, 0, 10*s))},
				{at: 2 * s, settle: "a", costs: []int64{1, 0}, want: all(room(9, 1, 10*s), room(13, 0, 10*s))},
			},
		},
	}
	for i, l := range tenPer10s {
		charge, again := charging(l), []time.Duration{10 * s, 9750 * time.Millisecond, 13322 * time.Millisecond, 10 * s, 5 * s, 5 * s}[i]
		resets := []time.Duration{10 * s, 9750 * time.Millisecond, 19750 * time.Millisecond, 10 * s, 14 * s, 14 * s}[i]
		cases = append(cases, testCase{
			name:        "Record is never refused, " + nameOf(l),
			explanation: recordCharges,
			steps: []step{
				{at: 0, peek: withMode(quota.Record, charge(14)), want: room(0, 10, 0)},
				{at: 0, take: withMode(quota.Record, charge(14)), want: room(14, 0, resets)},
				{at: 0, take: charge(1), want: full(14, 0, resets, again)},
				{at: 0, take: withMode(quota.AtMost, charge(3)), want: full(14, 0, resets, again)},
				{at: 0, peek: withMode(quota.Record, charge(1)), want: room(14, 0, resets)},
			},
		})
	}
	return cases
}
