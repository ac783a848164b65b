package backendtest

import (
	"time"

	"github.com/weir-go/weir/throttler"
)

func severalLimitsCases() []testCase {
	minute := throttler.Limit{Quota: 20, Window: time.Minute}
	windows := charging(minute, throttler.Limit{Quota: 5, Window: 3 * time.Second})
	logs := charging(minute, throttler.Limit{Quota: 5, Window: 3 * time.Second, Algorithm: throttler.SlidingLog})
	const s = time.Second
	return []testCase{
		{
			name:        "20 per 60 s and 5 per 3 s, both fixed windows",
			explanation: allOrNothing,
			steps: []step{ // 16 calls in 6 s
				{at: 0, take: windows(1), want: all(room(1, 19, 60*s), room(1, 4, 3*s))},
				{at: 400 * time.Millisecond, take: windows(1), want: all(room(2, 18, 60*s), room(2, 3, 3*s))},
				{at: 800 * time.Millisecond, take: windows(1), want: all(room(3, 17, 60*s), room(3, 2, 3*s))},
				{at: 1200 * time.Millisecond, take: windows(1), want: all(room(4, 16, 60*s), room(4, 1, 3*s))},
				{at: 1600 * time.Millisecond, take: windows(1), want: all(room(5, 15, 60*s), room(5, 0, 3*s))},
				{at: 2000 * time.Millisecond, take: windows(1), want: all(room(5, 15, 60*s), full(5, 0, 3*s, 3*s))},
				{at: 2400 * time.Millisecond, take: windows(1), want: all(room(5, 15, 60*s), full(5, 0, 3*s, 3*s))},
				{at: 2800 * time.Millisecond, take: windows(1), want: all(room(5, 15, 60*s), full(5, 0, 3*s, 3*s))},
				{at: 3200 * time.Millisecond, take: windows(1), want: all(room(6, 14, 60*s), room(1, 4, 6200*time.Millisecond))},
				{at: 3600 * time.Millisecond, take: windows(1), want: all(room(7, 13, 60*s), room(2, 3, 6200*time.Millisecond))},
				{at: 4000 * time.Millisecond, take: windows(1), want: all(room(8, 12, 60*s), room(3, 2, 6200*time.Millisecond))},
				{at: 4400 * time.Millisecond, take: windows(1), want: all(room(9, 11, 60*s), room(4, 1, 6200*time.Millisecond))},
				{at: 4800 * time.Millisecond, take: windows(1), want: all(room(10, 10, 60*s), room(5, 0, 6200*time.Millisecond))},
				{at: 5200 * time.Millisecond, take: windows(1), want: all(room(10, 10, 60*s), full(5, 0, 6200*time.Millisecond, 6200*time.Millisecond))},
				{at: 5600 * time.Millisecond, take: windows(1), want: all(room(10, 10, 60*s), full(5, 0, 6200*time.Millisecond, 6200*time.Millisecond))},
				{at: 6000 * time.Millisecond, take: windows(1), want: all(room(10, 10, 60*s), full(5, 0, 6200*time.Millisecond, 6200*time.Millisecond))},
			},
		},
		{
			name:        "20 per 60 s and never more than 5 in any 3 s",
			explanation: allOrNothing,
			steps: []step{ // the same 16 calls
				{at: 0, take: logs(1), want: all(room(1, 19, 60*s), room(1, 4, 3000*time.Millisecond))},
				{at: 400 * time.Millisecond, take: logs(1), want: all(room(2, 18, 60*s), room(2, 3, 3400*time.Millisecond))},
				{at: 800 * time.Millisecond, take: logs(1), want: all(room(3, 17, 60*s), room(3, 2, 3800*time.Millisecond))},
				{at: 1200 * time.Millisecond, take: logs(1), want: all(room(4, 16, 60*s), room(4, 1, 4200*time.Millisecond))},
				{at: 1600 * time.Millisecond, take: logs(1), want: all(room(5, 15, 60*s), room(5, 0, 4600*time.Millisecond))},
				{at: 2000 * time.Millisecond, take: logs(1), want: all(room(5, 15, 60*s), full(5, 0, 4600*time.Millisecond, 3*s))},
				{at: 2400 * time.Millisecond, take: logs(1), want: all(room(5, 15, 60*s), full(5, 0, 4600*time.Millisecond, 3*s))},
				{at: 2800 * time.Millisecond, take: logs(1), want: all(room(5, 15, 60*s), full(5, 0, 4600*time.Millisecond, 3*s))},
				{at: 3200 * time.Millisecond, take: logs(1), want: all(room(6, 14, 60*s), room(5, 0, 6200*time.Millisecond))},
				{at: 3600 * time.Millisecond, take: logs(1), want: all(room(7, 13, 60*s), room(5, 0, 6600*time.Millisecond))},
				{at: 4000 * time.Millisecond, take: logs(1), want: all(room(8, 12, 60*s), room(5, 0, 7000*time.Millisecond))},
				{at: 4400 * time.Millisecond, take: logs(1), want: all(room(9, 11, 60*s), room(5, 0, 7400*time.Millisecond))},
				{at: 4800 * time.Millisecond, take: logs(1), want: all(room(10, 10, 60*s), room(5, 0, 7800*time.Millisecond))},
				{at: 5200 * time.Millisecond, take: logs(1), want: all(room(10, 10, 60*s), full(5, 0, 7800*time.Millisecond, 6200*time.Millisecond))},
				{at: 5600 * time.Millisecond, take: logs(1), want: all(room(10, 10, 60*s), full(5, 0, 7800*time.Millisecond, 6200*time.Millisecond))},
				{at: 6000 * time.Millisecond, take: logs(1), want: all(room(10, 10, 60*s), full(5, 0, 7800*time.Millisecond, 6200*time.Millisecond))},
			},
		},
		{
			name:        "every limit that lacks room says when it will have it",
			explanation: retryEarliest,
			steps: []step{
				{at: 0, take: windows(4), want: all(room(4, 16, 60*s), room(4, 1, 3*s))},
				{at: 3 * s, take: windows(5), want: all(room(9, 11, 60*s), room(5, 0, 6*s))},
				{at: 6 * s, take: windows(5), want: all(room(14, 6, 60*s), room(5, 0, 9*s))},
				{at: 9 * s, take: windows(4), want: all(room(18, 2, 60*s), room(4, 1, 12*s))},
				{at: 10 * s, take: windows(3), want: all(full(18, 2, 60*s, 60*s), full(4, 1, 12*s, 12*s))},
				{at: 10 * s, take: windows(6), want: all(full(18, 2, 60*s, 60*s), full(4, 1, 12*s, forever))},
				{at: 12 * s, take: windows(3), want: all(full(18, 2, 60*s, 60*s), room(0, 5, 12*s))},
				{at: 12 * s, take: windows(2), want: all(room(20, 0, 60*s), room(2, 3, 15*s))},
			},
		},
		{
			name:        "a cost that one limit can never hold drains no other",
			explanation: costTooHigh,
			steps: []step{
				{at: 0, take: windows(6), want: all(room(0, 20, 0), full(0, 5, 0, forever))},
				{at: s, peek: windows(0), want: all(room(0, 20, s), room(0, 5, s))},
			},
		},
		{
			name:        "all algorithms in one policy, all at one instant",
			explanation: wholeAnswer,
			steps:       sixLimits(),
		},
	}
}

// sixLimits has a limit of each of five algorithms, an aligned one, and a tight one. t0 is 250
// ms into a window of 10 s.
func sixLimits() []step {
	const s = time.Second
	mixed := append([]throttler.Limit(nil), tenPer10s[:6]...)
	mixed[0].Window = 11 * s // next to aligned ones of 10 s
	mixed = append(mixed, throttler.Limit{Quota: 4, Window: 5 * s})
	core := charging(mixed...)
	return []step{
		{at: 0, take: core(3), want: all(
			room(3, 7, 11*s), room(3, 7, 9750*time.Millisecond), room(3, 7, 19750*time.Millisecond),
			room(3, 7, 10*s), room(3, 7, 3*s), queued(3, 7, 3*s, 0), room(3, 1, 5*s))},
		{at: 2 * s, take: core(2), want: all(
			room(3, 7, 11*s), room(3, 7, 9750*time.Millisecond), room(3, 7, 19750*time.Millisecond),
			room(3, 7, 10*s), room(1, 9, 3*s), room(1, 9, 3*s), full(3, 1, 5*s, 5*s))},
		{at: 2 * s, take: core(1), want: all(
			room(4, 6, 11*s), room(4, 6, 9750*time.Millisecond), room(4, 6, 19750*time.Millisecond),
			room(4, 6, 12*s), room(2, 8, 4*s), queued(2, 8, 4*s, 3*s), room(4, 0, 5*s))},
		{at: 9750 * time.Millisecond, take: core(4), want: all(
			room(8, 2, 11*s), room(4, 6, 19750*time.Millisecond), room(8, 2, 29750*time.Millisecond),
			room(8, 2, 19750*time.Millisecond), room(4, 6, 13750*time.Millisecond), queued(4, 6, 13750*time.Millisecond, 9750*time.Millisecond), room(4, 0, 14750*time.Millisecond))},
		{at: 10 * s, peek: core(0), want: all(
			room(8, 2, 11*s), room(4, 6, 19750*time.Millisecond), room(8, 2, 29750*time.Millisecond),
			room(5, 5, 19750*time.Millisecond), room(4, 6, 13750*time.Millisecond), room(4, 6, 13750*time.Millisecond), room(4, 0, 14750*time.Millisecond))},
	}
}
