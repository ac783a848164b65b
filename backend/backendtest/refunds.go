package backendtest

import (
	"time"

	"github.com/weir-go/weir/throttler"
)

func refundCases() []testCase {
	const s = time.Second
	var (
		fixed   = charging(tenPer10s[0])
		aligned = charging(tenPer10s[1])
		sliding = charging(tenPer10s[2])
		log     = charging(tenPer10s[3])
		token   = charging(tenPer10s[4])
		leaky   = charging(tenPer10s[5])
		thirds  = charging(throttler.Limit{Quota: 3, Window: s, Algorithm: throttler.TokenBucket})
		two     = charging(throttler.Limit{Quota: 10, Window: 10 * s}, throttler.Limit{Quota: 5, Window: 3 * s, Algorithm: throttler.TokenBucket})
		orgs    = named("orgs", throttler.Limit{Quota: 20, Window: 60 * s})
	)
	cases := []testCase{
		{
			name:        "fixed window: the window stays, also when nothing is used",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: fixed(3), as: "a", want: room(3, 7, 10*s)},
				{at: s, take: fixed(2), as: "b", want: room(5, 5, 10*s)},
				{at: 2 * s, refund: "a", want: room(2, 8, 10*s)},
				{at: 3 * s, refund: "b", want: room(0, 10, 10*s)},
				{at: 4 * s, take: fixed(1), want: room(1, 9, 10*s)},
				{at: 9999 * time.Millisecond, peek: fixed(0), want: room(1, 9, 10*s)},
				{at: 10 * s, peek: fixed(0), want: room(0, 10, 10*s)},
			},
		},
		{
			name:        "fixed window: after the window, the next one keeps its count",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: fixed(3), as: "a", want: room(3, 7, 10*s)},
				{at: 10 * s, take: fixed(4), want: room(4, 6, 20*s)},
				{at: 11 * s, refund: "a", want: room(4, 6, 20*s)},
				{at: 12 * s, peek: fixed(0), want: room(4, 6, 20*s)},
			},
		},
		{
			name:        "fixed window: after the window, nothing opens",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: fixed(3), as: "a", want: room(3, 7, 10*s)},
				{at: 10 * s, refund: "a", want: room(0, 10, 10*s)},
				{at: 11 * s, peek: fixed(0), want: room(0, 10, 11*s)},
				{at: 12 * s, take: fixed(1), want: room(1, 9, 22*s)},
			},
		},
		{
			name:        "fixed window: years after the window, nothing opens",
			explanation: refundNames,
			steps: []step{
				{at: -6 * year, take: fixed(3), as: "a", want: room(3, 7, -6*year+10*s)},
				{at: 0, refund: "a", want: room(0, 10, 0)},
				{at: s, take: fixed(1), want: room(1, 9, 11*s)},
			},
		},
		{
			name:        "aligned window: after the window, the next one keeps its count",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: aligned(3), as: "a", want: room(3, 7, 9750*time.Millisecond)},
				{at: s, take: aligned(2), as: "b", want: room(5, 5, 9750*time.Millisecond)},
				{at: 2 * s, refund: "b", want: room(3, 7, 9750*time.Millisecond)},
				{at: 9750 * time.Millisecond, take: aligned(4), want: room(4, 6, 19750*time.Millisecond)},
				{at: 10 * s, refund: "a", want: room(4, 6, 19750*time.Millisecond)},
			},
		},
		{
			name:        "sliding window: the charge leaves the window that it slides out of",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: sliding(4), as: "a", want: room(4, 6, 19750*time.Millisecond)},
				{at: s, take: sliding(2), want: room(6, 4, 19750*time.Millisecond)},
				{at: 14750 * time.Millisecond, take: sliding(1), want: room(4, 6, 29750*time.Millisecond)},
				{at: 14750 * time.Millisecond, refund: "a", want: room(2, 8, 29750*time.Millisecond)},
			},
		},
		{
			name:        "sliding window: when nothing counts, nothing is to reset",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: sliding(4), as: "a", want: room(4, 6, 19750*time.Millisecond)},
				{at: s, refund: "a", want: room(0, 10, s)},
				{at: 2 * s, take: sliding(4), as: "b", want: room(4, 6, 19750*time.Millisecond)},
				{at: 10 * s, take: sliding(1), as: "c", want: room(5, 5, 29750*time.Millisecond)},
				{at: 10 * s, refund: "c", want: room(4, 6, 19750*time.Millisecond)},
				{at: 10 * s, refund: "b", want: room(0, 10, 10*s)},
			},
		},
		{
			name:        "sliding window: after two windows it does nothing",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: sliding(4), as: "a", want: room(4, 6, 19750*time.Millisecond)},
				{at: 10 * s, take: sliding(1), want: room(5, 5, 29750*time.Millisecond)},
				{at: 19750 * time.Millisecond, take: sliding(2), want: room(3, 7, 39750*time.Millisecond)},
				{at: 19750 * time.Millisecond, refund: "a", want: room(3, 7, 39750*time.Millisecond)},
			},
		},
		{
			name:        "sliding log: the charge's instant is struck out",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: log(2), as: "a", want: room(2, 8, 10*s)},
				{at: s, take: log(3), as: "b", want: room(5, 5, 11*s)},
				{at: 2 * s, take: log(1), as: "c", want: room(6, 4, 12*s)},
				{at: 3 * s, refund: "b", want: room(3, 7, 12*s)},
				{at: 3 * s, refund: "c", want: room(2, 8, 10*s)},
				{at: 3 * s, refund: "a", want: room(0, 10, 3*s)},
			},
		},
		{
			name:        "sliding log: of two charges in one millisecond one stays",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: log(2), as: "a", want: room(2, 8, 10*s)},
				{at: 0, take: log(3), want: room(5, 5, 10*s)},
				{at: s, refund: "a", want: room(3, 7, 10*s)},
				{at: 9999 * time.Millisecond, peek: log(0), want: room(3, 7, 10*s)},
			},
		},
		{
			name:        "sliding log: what has left does not leave again",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: log(2), as: "a", want: room(2, 8, 10*s)},
				{at: 10 * s, take: log(3), want: room(3, 7, 20*s)},
				{at: 10 * s, refund: "a", want: room(3, 7, 20*s)},
			},
		},
	}
	return append(cases,
		testCase{
			name:        "token bucket: what has drained does not come back",
			explanation: refundNames,
			steps: []step{ // a unit drains in 1 s
				{at: 0, take: token(3), as: "a", want: room(3, 7, 3*s)},
				{at: 2 * s, take: token(4), as: "b", want: room(5, 5, 7*s)},
				{at: 2 * s, refund: "a", want: room(4, 6, 6*s)},
				{at: 3 * s, refund: "b", want: room(0, 10, 3*s)},
				{at: 3 * s, take: token(10), want: room(10, 0, 13*s)},
			},
		},
		testCase{
			name:        "token bucket: a charge that has drained does nothing to the next",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: token(3), as: "a", want: room(3, 7, 3*s)},
				{at: 3 * s, take: token(4), want: room(4, 6, 7*s)},
				{at: 4 * s, refund: "a", want: room(3, 7, 7*s)},
				{at: 8 * s, take: token(1), as: "b", want: room(1, 9, 9*s)},
				{at: 20 * s, refund: "b", want: room(0, 10, 20*s)},
				{at: 21 * s, peek: token(10), want: room(0, 10, 21*s)},
			},
		},
		testCase{
			name:        "token bucket: thirds of a millisecond come back",
			explanation: refundNames,
			steps: []step{ // a unit drains in 333 1/3 ms
				{at: 0, take: thirds(1), as: "a", want: room(1, 2, 334*time.Millisecond)},
				{at: 0, take: thirds(1), as: "b", want: room(2, 1, 667*time.Millisecond)},
				{at: 0, take: thirds(1), as: "c", want: room(3, 0, 1000*time.Millisecond)},
				{at: 0, refund: "b", want: room(2, 1, 667*time.Millisecond)},
				{at: 0, refund: "a", want: room(1, 2, 334*time.Millisecond)},
				{at: 0, take: thirds(2), want: room(3, 0, 1000*time.Millisecond)},
			},
		},
		testCase{
			name:        "token bucket: a refund of a charge that drains gives back the rest",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: thirds(2), want: room(2, 1, 667*time.Millisecond)},
				{at: 0, take: thirds(1), as: "c", want: room(3, 0, 1000*time.Millisecond)},
				{at: 667 * time.Millisecond, take: thirds(1), want: room(2, 1, 1334*time.Millisecond)},
				// c has drained for 1/3 ms: behind it 333 1/3 ms stay.
				{at: 667 * time.Millisecond, refund: "c", want: room(1, 2, 1001*time.Millisecond)},
			},
		},
		testCase{
			name:        "leaky bucket: the last of the queue gives its place back",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: leaky(3), want: queued(3, 7, 3*s, 0)},
				{at: 0, take: leaky(2), as: "b", want: queued(5, 5, 5*s, 3*s)},
				{at: s, refund: "b", want: room(2, 8, 3*s)},
				{at: s, take: leaky(1), want: queued(3, 7, 4*s, 3*s)},
			},
		},
		testCase{
			name:        "every limit of every charge gets its units back, and is reported",
			explanation: refundStands,
			steps: []step{
				{at: 0, take: append(orgs(4), two(2)...), as: "a", want: all(room(4, 16, 60*s), room(2, 8, 10*s), room(2, 3, 1200*time.Millisecond))},
				{at: 0, take: append(orgs(1), two(3)...), want: all(room(5, 15, 60*s), room(5, 5, 10*s), room(5, 0, 3*s))},
				{at: 600 * time.Millisecond, refund: "a", want: all(room(1, 19, 60*s), room(3, 7, 10*s), room(3, 2, 2400*time.Millisecond))},
				{at: 600 * time.Millisecond, peek: append(orgs(0), two(0)...), want: all(room(1, 19, 60*s), room(3, 7, 10*s), room(3, 2, 2400*time.Millisecond))},
			},
		},
		testCase{
			name:        "twice does it once",
			explanation: giveBackOnce,
			steps: []step{
				{at: 0, take: fixed(3), as: "a", want: room(3, 7, 10*s)},
				{at: 0, take: fixed(4), want: room(7, 3, 10*s)},
				{at: s, refund: "a", want: room(4, 6, 10*s)},
				{at: s, refund: "a"},
				{at: s, peek: fixed(0), want: room(4, 6, 10*s)},
				{at: s, settle: "a", costs: []int64{9}},
				{at: s, peek: fixed(0), want: room(4, 6, 10*s)},
			},
		},
		testCase{
			name:        "of a refused take does nothing",
			explanation: giveBackOnce,
			steps: []step{
				{at: 0, take: fixed(6), want: room(6, 4, 10*s)},
				{at: 0, take: fixed(5), as: "refused", want: full(6, 4, 10*s, 10*s)},
				{at: s, refund: "refused"},
				{at: s, peek: fixed(0), want: room(6, 4, 10*s)},
			},
		})
}
