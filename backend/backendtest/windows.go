package backendtest

import (
	"time"

	"github.com/weir-go/weir/throttler"
)

func fixedWindowCases() []testCase {
	core := on(throttler.Limit{Quota: 10, Window: time.Minute})
	aligned := on(throttler.Limit{Quota: 10, Window: time.Minute, Aligned: true})
	return []testCase{
		{
			name:        "opens at the first charge",
			explanation: fixedCounts,
			steps: []step{
				{at: 0, peek: core(1), want: room(0, 10, 0)},
				{at: 5 * time.Second, take: core(1), want: room(1, 9, 65*time.Second)},
				{at: 6 * time.Second, take: core(2), want: room(3, 7, 65*time.Second)},
			},
		},
		{
			name:        "reset at stays, whatever happens in the window",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: core(4), as: "a", want: room(4, 6, time.Minute)},
				{at: 1 * time.Millisecond, take: core(1), want: room(5, 5, time.Minute)},
				{at: 999 * time.Millisecond, take: core(6), want: full(5, 5, time.Minute, time.Minute)},
				{at: 1001 * time.Millisecond, peek: core(0), want: room(5, 5, time.Minute)},
				{at: 30 * time.Second, refund: "a", want: room(1, 9, time.Minute)},
				{at: 59999 * time.Millisecond, take: core(9), want: room(10, 0, time.Minute)},
				{at: 59999 * time.Millisecond, take: core(1), want: full(10, 0, time.Minute, time.Minute)},
			},
		},
		{
			name:        "ends at reset at, not before",
			explanation: liveBefore,
			steps: []step{
				{at: 0, take: core(10), want: room(10, 0, time.Minute)},
				{at: time.Minute - time.Millisecond, take: core(1), want: full(10, 0, time.Minute, time.Minute)},
				{at: time.Minute - time.Millisecond, peek: core(1), want: full(10, 0, time.Minute, time.Minute)},
				{at: time.Minute, peek: core(1), want: room(0, 10, time.Minute)},
				{at: time.Minute, take: core(1), want: room(1, 9, 2*time.Minute)},
				{at: 2*time.Minute - time.Millisecond, take: core(9), want: room(10, 0, 2*time.Minute)},
				{at: 2 * time.Minute, take: core(10), want: room(10, 0, 3*time.Minute)},
			},
		},
		{
			name:        "the next one opens at its own first charge",
			explanation: fixedCounts,
			steps: []step{
				{at: 0, take: core(7), want: room(7, 3, time.Minute)},
				{at: 100 * time.Second, peek: core(1), want: room(0, 10, 100*time.Second)},
				{at: 110 * time.Second, take: core(1), want: room(1, 9, 170*time.Second)},
			},
		},
		{
			name:        "a refused charge drains nothing",
			explanation: allOrNothing,
			steps: []step{
				{at: 0, take: core(8), want: room(8, 2, time.Minute)},
				{at: time.Second, take: core(3), want: full(8, 2, time.Minute, time.Minute)},
				{at: time.Second, take: core(3), want: full(8, 2, time.Minute, time.Minute)},
				{at: time.Second, take: core(2), want: room(10, 0, time.Minute)},
			},
		},
		{
			name:        "instants are whole milliseconds",
			explanation: ourTime,
			steps: []step{
				{at: 999 * time.Microsecond, take: core(1), want: room(1, 9, time.Minute)},
				{at: time.Minute - time.Microsecond, take: core(1), want: room(2, 8, time.Minute)},
				{at: time.Minute + time.Microsecond, take: core(1), want: room(1, 9, 2*time.Minute)},
			},
		},
		{
			name:        "aligned windows begin on multiples of the window",
			explanation: fixedCounts,
			steps: []step{ // t0 is 250 ms into a minute
				{at: 0, peek: aligned(1), want: room(0, 10, 0)},
				{at: 0, take: aligned(10), want: room(10, 0, 59750*time.Millisecond)},
				{at: 59749 * time.Millisecond, take: aligned(1), want: full(10, 0, 59750*time.Millisecond, 59750*time.Millisecond)},
				{at: 59750 * time.Millisecond, take: aligned(1), want: room(1, 9, 119750*time.Millisecond)},
				{at: 150 * time.Second, take: aligned(2), want: room(2, 8, 179750*time.Millisecond)},
			},
		},
	}
}
