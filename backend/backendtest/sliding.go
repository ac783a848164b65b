package backendtest

import (
	"time"

	"github.com/weir-go/weir/throttler"
)

// Sliding windows begin on multiples of the window since the epoch. t0 is 250 ms after the start
// of a window of 10 s, and of a minute's.
func slidingWindowCases() []testCase {
	core := charging(throttler.Limit{Quota: 10, Window: 10 * time.Second, Algorithm: throttler.SlidingWindow})
	cloudflare := charging(throttler.Limit{Quota: 50, Window: time.Minute, Algorithm: throttler.SlidingWindow})
	const (
		next  = 9750 * time.Millisecond // start of the window after t0's
		third = next + 10*time.Second
	)
	return []testCase{
		{
			name:        "Cloudflare's 42 * 0.75 + 18 is 49.5",
			explanation: slidingCounts,
			steps: []step{
				{at: 0, take: cloudflare(42), want: room(42, 8, 119750*time.Millisecond)},
				// 15 s into the next minute, 0.75 of the last is still inside.
				{at: 74750 * time.Millisecond, peek: cloudflare(0), want: room(32, 18, 119750*time.Millisecond)},
				{at: 74750 * time.Millisecond, take: cloudflare(18), want: room(50, 0, 179750*time.Millisecond)},
				// 42 * 44285 ms / 60 s is the first share that leaves room for one.
				{at: 74750 * time.Millisecond, take: cloudflare(1), want: full(50, 0, 179750*time.Millisecond, 75465*time.Millisecond)},
				{at: 75464 * time.Millisecond, take: cloudflare(1), want: full(50, 0, 179750*time.Millisecond, 75465*time.Millisecond)},
				{at: 75465 * time.Millisecond, take: cloudflare(1), want: room(50, 0, 179750*time.Millisecond)},
			},
		},
		{
			name:        "what was used slides out of the next window",
			explanation: slidingCounts,
			steps: []step{
				{at: 0, peek: core(1), want: room(0, 10, 0)},
				{at: 0, take: core(8), want: room(8, 2, third)},
				{at: next - time.Millisecond, peek: core(0), want: room(8, 2, third)},
				{at: next, peek: core(0), want: room(8, 2, third)},
				{at: next + 1250*time.Millisecond, peek: core(0), want: room(7, 3, third)},
				{at: next + 1251*time.Millisecond, peek: core(0), want: room(7, 3, third)},
				{at: next + 5*time.Second, peek: core(0), want: room(4, 6, third)},
				{at: next + 9999*time.Millisecond, peek: core(0), want: room(1, 9, third)},
				{at: third, peek: core(0), want: room(0, 10, third)},
			},
		},
		{
			name:        "reset at is when the last charge has slid out",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: core(4), want: room(4, 6, third)},
				{at: next + 5*time.Second, take: core(3), want: room(5, 5, third+10*time.Second)},
				{at: third, peek: core(0), want: room(3, 7, third+10*time.Second)},
				{at: third + 9999*time.Millisecond, peek: core(0), want: room(1, 9, third+10*time.Second)},
				{at: third + 10*time.Second, peek: core(0), want: room(0, 10, third+10*time.Second)},
				{at: third + 10*time.Second, take: core(1), want: room(1, 9, third+30*time.Second)},
			},
		},
		{
			name:        "retry at, in the next window",
			explanation: retryEarliest,
			steps: []step{
				{at: 0, take: core(10), want: room(10, 0, third)},
				{at: time.Second, take: core(1), want: full(10, 0, third, next+time.Second)},
				{at: time.Second, take: core(3), want: full(10, 0, third, next+3*time.Second)},
				{at: time.Second, take: core(10), want: full(10, 0, third, third)},
				{at: next + 999*time.Millisecond, take: core(1), want: full(10, 0, third, next+time.Second)},
				{at: next + time.Second, take: core(1), want: room(10, 0, third+10*time.Second)},
			},
		},
		{
			name:        "retry at, in the same window",
			explanation: retryEarliest,
			steps: []step{
				{at: 0, take: core(7), want: room(7, 3, third)},
				{at: next, take: core(3), want: room(10, 0, third+10*time.Second)},
				// Room for two after three: 7 * (10 s - x) / 10 s <= 5 from 2858 ms.
				{at: next, take: core(2), want: full(10, 0, third+10*time.Second, next+2858*time.Millisecond)},
				{at: next + 2857*time.Millisecond, peek: core(2), want: full(9, 1, third+10*time.Second, next+2858*time.Millisecond)},
				{at: next + 2858*time.Millisecond, take: core(2), want: room(10, 0, third+10*time.Second)},
			},
		},
	}
}

func slidingLogCases() []testCase {
	core := charging(throttler.Limit{Quota: 5, Window: 10 * time.Second, Algorithm: throttler.SlidingLog})
	return []testCase{
		{
			name:        "a charge counts for one window from its instant",
			explanation: logCounts,
			steps: []step{
				{at: 0, peek: core(1), want: room(0, 5, 0)},
				{at: 0, take: core(1), want: room(1, 4, 10*time.Second)},
				{at: 3 * time.Second, take: core(2), want: room(3, 2, 13*time.Second)},
				{at: 9999 * time.Millisecond, peek: core(0), want: room(3, 2, 13*time.Second)},
				{at: 10 * time.Second, peek: core(0), want: room(2, 3, 13*time.Second)},
				{at: 12999 * time.Millisecond, peek: core(0), want: room(2, 3, 13*time.Second)},
				{at: 13 * time.Second, peek: core(0), want: room(0, 5, 13*time.Second)},
				{at: 13 * time.Second, take: core(5), want: room(5, 0, 23*time.Second)},
			},
		},
		{
			name:        "retry at is when enough of the oldest have left",
			explanation: retryEarliest,
			steps: []step{
				{at: 0, take: core(1), want: room(1, 4, 10*time.Second)},
				{at: time.Second, take: core(2), want: room(3, 2, 11*time.Second)},
				{at: 2 * time.Second, take: core(2), want: room(5, 0, 12*time.Second)},
				{at: 3 * time.Second, take: core(1), want: full(5, 0, 12*time.Second, 10*time.Second)},
				{at: 3 * time.Second, take: core(2), want: full(5, 0, 12*time.Second, 11*time.Second)},
				{at: 3 * time.Second, take: core(3), want: full(5, 0, 12*time.Second, 11*time.Second)},
				{at: 3 * time.Second, take: core(4), want: full(5, 0, 12*time.Second, 12*time.Second)},
				{at: 10*time.Second - time.Millisecond, take: core(1), want: full(5, 0, 12*time.Second, 10*time.Second)},
				{at: 10 * time.Second, take: core(1), want: room(5, 0, 20*time.Second)},
				{at: 11*time.Second - time.Millisecond, take: core(2), want: full(5, 0, 20*time.Second, 11*time.Second)},
				{at: 11 * time.Second, take: core(2), want: room(5, 0, 21*time.Second)},
			},
		},
		{
			name:        "charges of one millisecond leave together",
			explanation: logCounts,
			steps: []step{
				{at: 0, take: core(2), want: room(2, 3, 10*time.Second)},
				{at: 0, take: core(2), want: room(4, 1, 10*time.Second)},
				{at: time.Millisecond, take: core(1), want: room(5, 0, 10001*time.Millisecond)},
				{at: 10 * time.Second, peek: core(5), want: full(1, 4, 10001*time.Millisecond, 10001*time.Millisecond)},
				{at: 10 * time.Second, take: core(4), want: room(5, 0, 20*time.Second)},
			},
		},
	}
}
