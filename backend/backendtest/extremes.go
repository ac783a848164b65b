package backendtest

import (
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

const (
	year     = 365 * 24 * time.Hour
	greatest = quota.MaxQuota
)

// extremeCases are the shortest and the longest windows, the largest quotas.
func extremeCases() []testCase {
	limit := func(a quota.Algorithm, quota int64, window time.Duration) func(int64) []throttler.Charge {
		return charging(throttler.Limit{Algorithm: a, Quota: quota, Window: window})
	}
	var (
		msFixed, fixed     = limit(throttler.FixedWindow, 3, time.Millisecond), limit(throttler.FixedWindow, greatest, year)
		msSliding, sliding = limit(throttler.SlidingWindow, 3, time.Millisecond), limit(throttler.SlidingWindow, greatest, year)
		msLog, log         = limit(throttler.SlidingLog, 3, time.Millisecond), limit(throttler.SlidingLog, quota.MaxLogQuota, year)
		msToken, token     = limit(throttler.TokenBucket, 3, time.Millisecond), limit(throttler.TokenBucket, greatest, year)
		msLeaky, leaky     = limit(throttler.LeakyBucket, 3, time.Millisecond), limit(throttler.LeakyBucket, greatest, year)
		aligned            = charging(throttler.Limit{Quota: greatest, Window: year, Aligned: true})
		tenth              = charging(throttler.Limit{Quota: 3, Window: 100 * time.Millisecond})
		alignedTenth       = charging(throttler.Limit{Quota: 3, Window: 100 * time.Millisecond, Aligned: true})
		slidingTenth       = limit(throttler.SlidingWindow, 4, 100*time.Millisecond)
		hasty              = limit(throttler.TokenBucket, greatest, time.Millisecond)
	)
	const (
		ms = time.Millisecond
		// The 61st window of 365 days since the epoch begins 15 days before t0.
		yearEnd = 350*24*time.Hour - 250*ms
	)
	return []testCase{
		{
			name:        "fixed windows of 1 ms",
			explanation: liveBefore,
			steps: []step{
				{at: 0, take: msFixed(3), want: room(3, 0, ms)},
				{at: 0, take: msFixed(1), want: full(3, 0, ms, ms)},
				{at: ms, take: msFixed(2), want: room(2, 1, 2*ms)},
				{at: ms, take: msFixed(2), want: full(2, 1, 2*ms, 2*ms)},
			},
		},
		{
			name:        "sliding windows of 1 ms",
			explanation: slidingCounts,
			steps: []step{
				{at: 0, take: msSliding(3), want: room(3, 0, 2*ms)},
				{at: 0, take: msSliding(1), want: full(3, 0, 2*ms, 2*ms)},
				{at: ms, take: msSliding(1), want: full(3, 0, 2*ms, 2*ms)},
				{at: 2 * ms, take: msSliding(3), want: room(3, 0, 4*ms)},
			},
		},
		{
			name:        "sliding logs of 1 ms",
			explanation: logCounts,
			steps: []step{
				{at: 0, take: msLog(3), want: room(3, 0, ms)},
				{at: 0, take: msLog(1), want: full(3, 0, ms, ms)},
				{at: ms, take: msLog(3), want: room(3, 0, 2*ms)},
			},
		},
		{
			name:        "token buckets of 1 ms",
			explanation: tokenCounts,
			steps: []step{
				{at: 0, take: msToken(2), want: room(2, 1, ms)},
				{at: 0, take: msToken(2), want: full(2, 1, ms, ms)},
				{at: 0, take: msToken(1), want: room(3, 0, ms)},
				{at: ms, take: msToken(1), want: room(1, 2, 2*ms)},
			},
		},
		{
			name:        "leaky buckets of 1 ms",
			explanation: leakyCounts,
			steps: []step{
				{at: 0, take: msLeaky(2), want: queued(2, 1, ms, 0)},
				{at: 0, take: msLeaky(1), want: queued(3, 0, ms, ms)},
				{at: 0, take: msLeaky(1), want: full(3, 0, ms, ms)},
				{at: ms, take: msLeaky(1), want: queued(1, 2, 2*ms, ms)},
			},
		},
		{
			name:        "fixed windows below a second",
			explanation: liveBefore,
			steps: []step{
				{at: 0, take: tenth(3), want: room(3, 0, 100*ms)},
				{at: 99 * ms, take: tenth(1), want: full(3, 0, 100*ms, 100*ms)},
				{at: 100 * ms, take: tenth(1), want: room(1, 2, 200*ms)},
			},
		},
		{
			name:        "aligned windows below a second",
			explanation: fixedCounts,
			steps: []step{ // t0 is 50 ms into one
				{at: 0, take: alignedTenth(3), want: room(3, 0, 50*ms)},
				{at: 49 * ms, take: alignedTenth(1), want: full(3, 0, 50*ms, 50*ms)},
				{at: 50 * ms, take: alignedTenth(1), want: room(1, 2, 150*ms)},
			},
		},
		{
			name:        "sliding windows below a second",
			explanation: slidingCounts,
			steps: []step{
				{at: 0, take: slidingTenth(4), want: room(4, 0, 150*ms)},
				{at: 74 * ms, take: slidingTenth(1), want: full(4, 0, 150*ms, 75*ms)},
				{at: 75 * ms, take: slidingTenth(1), want: room(4, 0, 250*ms)},
			},
		},
		{
			name:        "a fixed window of a year and 2^53 units",
			explanation: exactCounts,
			steps: []step{
				{at: 0, take: fixed(greatest - 1), want: room(greatest-1, 1, year)},
				{at: ms, take: fixed(2), want: full(greatest-1, 1, year, year)},
				{at: ms, take: fixed(greatest), want: full(greatest-1, 1, year, year)},
				{at: ms, take: fixed(1), want: room(greatest, 0, year)},
				{at: year - ms, take: fixed(greatest), want: full(greatest, 0, year, year)},
				{at: year, take: fixed(greatest), want: room(greatest, 0, 2*year)},
			},
		},
		{
			name:        "an aligned window of a year and 2^53 units",
			explanation: exactCounts,
			steps: []step{
				{at: 0, take: aligned(greatest - 1), want: room(greatest-1, 1, yearEnd)},
				{at: yearEnd - ms, take: aligned(1), want: room(greatest, 0, yearEnd)},
				{at: yearEnd, take: aligned(1), want: room(1, greatest-1, yearEnd+year)},
			},
		},
		{
			name:        "a sliding window of a year and 2^53 units",
			explanation: exactCounts,
			steps: []step{
				{at: 0, take: sliding(greatest - 1), want: room(greatest-1, 1, yearEnd+year)},
				{at: 0, take: sliding(2), want: full(greatest-1, 1, yearEnd+year, yearEnd+ms)},
				{at: 0, take: sliding(1), want: room(greatest, 0, yearEnd+year)},
				// A unit takes less than a millisecond to slide out: 2^53 * (year -
				// 1 ms) / year is 2^53 - 285616.4, rounded up.
				{at: yearEnd + ms, peek: sliding(0), want: room(greatest-285616, 285616, yearEnd+year)},
				{at: yearEnd + year/2, peek: sliding(0), want: room(greatest/2, greatest/2, yearEnd+year)},
				{at: yearEnd + year/2, take: sliding(greatest/2 + 1), want: full(greatest/2, greatest/2, yearEnd+year, yearEnd+year/2+ms)},
				{at: yearEnd + year/2, take: sliding(greatest / 2), want: room(greatest, 0, yearEnd+2*year)},
				// To a clock behind, more units than a count can have are in use.
				{at: yearEnd, take: sliding(0), want: room(greatest, 0, yearEnd+2*year)},
			},
		},
		{
			name:        "a sliding log of a year and the largest quota it may have",
			explanation: exactCounts,
			steps: []step{
				{at: 0, take: log(9_999), want: room(9_999, 1, year)},
				{at: time.Hour, take: log(2), want: full(9_999, 1, year, year)},
				{at: time.Hour, take: log(1), want: room(10_000, 0, year+time.Hour)},
				{at: year - ms, take: log(1), want: full(10_000, 0, year+time.Hour, year)},
				{at: year, take: log(9_999), want: room(10_000, 0, 2*year)},
			},
		},
		{
			name:        "a token bucket of a year and 2^53 units",
			explanation: exactCounts,
			steps: []step{
				{at: 0, take: token(greatest - 1), want: room(greatest-1, 1, year)},
				{at: 0, take: token(2), want: full(greatest-1, 1, year, ms)},
				{at: 0, take: token(1), want: room(greatest, 0, year)},
				// 285616.4 units drain in 1 ms.
				{at: ms, peek: token(0), want: room(greatest-285616, 285616, year)},
				{at: ms, take: token(285617), want: full(greatest-285616, 285616, year, 2*ms)},
				{at: ms, take: token(285616), want: room(greatest, 0, year+ms)},
				{at: year / 2, take: token(greatest), want: full(greatest/2+285616, greatest/2-285616, year+ms, year+ms)},
				// To a clock behind, more units than a count can have are in use.
				{at: -ms, take: token(0), want: room(greatest, 0, year+ms)},
				{at: -ms, take: token(1), want: full(greatest, 0, year+ms, 2*ms)},
			},
		},
		{
			name:        "a leaky bucket of a year and 2^53 units",
			explanation: exactCounts,
			steps: []step{
				{at: 0, take: leaky(greatest - 1), want: queued(greatest-1, 1, year, 0)},
				{at: 0, take: leaky(1), want: queued(greatest, 0, year, year)},
				{at: 0, take: leaky(1), want: full(greatest, 0, year, ms)},
				{at: -ms, take: leaky(0), want: room(greatest, 0, year)},
				{at: year, take: leaky(1), want: queued(1, greatest-1, year+ms, year)},
			},
		},
		{
			name:        "2^53 units per millisecond",
			explanation: exactCounts,
			steps: []step{
				{at: 0, take: hasty(greatest), want: room(greatest, 0, ms)},
				{at: 0, take: hasty(1), want: full(greatest, 0, ms, ms)},
				{at: ms, take: hasty(1), want: room(1, greatest-1, 2*ms)},
				{at: ms, take: hasty(greatest - 1), want: room(greatest, 0, 2*ms)},
			},
		},
	}
}
