package backendtest

import (
	"time"
	_ "time/tzdata" // for hosts without a database of zones

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

func fixedWindowCases() []testCase {
	core := charging(throttler.Limit{Quota: 10, Window: time.Minute})
	const day = 24 * time.Hour
	const early = 250 * time.Millisecond // how long after midnight in UTC t0 is
	daily := charging(throttler.Limit{Quota: 10, Calendar: quota.Calendar{Period: quota.Day, Zone: "Europe/Berlin"}})
	monthly := func(month int64, week ...int64) func(int64) []throttler.Charge {
		limits := []throttler.Limit{{Quota: month, Calendar: quota.Calendar{Period: quota.Month, Day: 31}}}
		for _, n := range week {
			limits = append(limits, throttler.Limit{Quota: n, Calendar: quota.Calendar{Period: quota.Week}})
		}
		return charging(limits...)
	}
	aligned := charging(throttler.Limit{Quota: 10, Window: time.Minute, Aligned: true})
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
		{
			name:        "a calendar's windows are its days, also those of 23 hours",
			explanation: calendarCounts,
			steps: []step{ // t0 is one in the morning in Berlin; clocks are set ahead on the 90th day
				{at: 0, peek: daily(1), want: room(0, 10, 0)},
				{at: 0, take: daily(9), want: room(9, 1, 23*time.Hour-early)},
				{at: 23*time.Hour - early - time.Millisecond, take: daily(2), want: full(9, 1, 23*time.Hour-early, 23*time.Hour-early)},
				{at: 23*time.Hour - early, take: daily(2), as: "a", want: room(2, 8, 47*time.Hour-early)},
				{at: 24 * time.Hour, refund: "a", want: room(0, 10, 47*time.Hour-early)},
				{at: 88*day + 23*time.Hour - early, take: daily(1), want: room(1, 9, 89*day+22*time.Hour-early)},
				{at: 89*day + 22*time.Hour - early - time.Millisecond, take: daily(1), want: room(2, 8, 89*day+22*time.Hour-early)},
				{at: 89*day + 22*time.Hour - early, take: daily(1), want: room(1, 9, 90*day+22*time.Hour-early)},
			},
		},
		{
			name:        "a month from the 31st ends on the last day of a shorter one, and is one count",
			explanation: calendarCounts,
			steps: []step{ // 2030-01-01
				{at: 0, take: monthly(10, 5)(5), as: "a", want: all(room(5, 5, 30*day-early), room(5, 0, 6*day-early))},
				{at: day, take: monthly(10, 5)(1), want: all(room(5, 5, 30*day-early), full(5, 0, 6*day-early, 6*day-early))},
				{at: 29 * day, take: monthly(20, 5)(5), want: all(room(10, 10, 30*day-early), room(5, 0, 34*day-early))},
				{at: 29 * day, refund: "a", want: all(room(5, 5, 30*day-early), room(5, 0, 34*day-early))},
				{at: 30*day - early, take: monthly(10, 5)(0), want: all(room(0, 10, 30*day-early), room(5, 0, 34*day-early))},
				{at: 40 * day, take: monthly(10, 5)(2), want: all(room(2, 8, 58*day-early), room(2, 3, 41*day-early))}, // to 28 February
				{at: 58 * day, take: monthly(10, 5)(2), want: all(room(2, 8, 89*day-early), room(2, 3, 62*day-early))}, // to 31 March
			},
		},
		{
			name:        "thirty days are made a month: what is charged goes on",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: charging(throttler.Limit{Quota: 10, Window: 30 * day})(4), want: room(4, 6, 30*day)},
				{at: day, take: monthly(10)(1), want: room(5, 5, 30*day)},
				{at: 2 * day, process: 1, peek: charging(throttler.Limit{Quota: 10, Window: 30 * day})(1), want: room(5, 5, 30*day)},
			},
		},
	}
}
