package backendtest

import (
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// changedPolicyCases change a policy while its counts live, as a deploy does.
func changedPolicyCases() []testCase {
	const s = time.Second
	limit := func(a quota.Algorithm, quota int64, window time.Duration) throttler.Limit {
		return throttler.Limit{Algorithm: a, Quota: quota, Window: window}
	}
	var (
		minute  = limit(throttler.FixedWindow, 10, 60*s)
		short   = limit(throttler.FixedWindow, 5, 3*s)
		bucket  = limit(throttler.TokenBucket, 10, 10*s)
		fixed   = charging(minute)
		lower   = charging(limit(throttler.FixedWindow, 3, 60*s))
		higher  = charging(limit(throttler.FixedWindow, 20, 60*s))
		tenSecs = charging(limit(throttler.FixedWindow, 10, 10*s))
		pair    = charging(minute, short)
		swapped = charging(short, minute)
		sliding = func(quota int64, window time.Duration) func(int64) []throttler.Charge {
			return charging(limit(throttler.SlidingWindow, quota, window))
		}
		burst = func(quota int64) func(int64) []throttler.Charge {
			return charging(throttler.Limit{Algorithm: throttler.TokenBucket, Quota: quota, Window: 60 * s, Burst: 100})
		}
		tenIn6 = charging(limit(throttler.FixedWindow, 10, 6*s))
		log    = func(quota int64, window time.Duration) func(int64) []throttler.Charge {
			return charging(limit(throttler.SlidingLog, quota, window))
		}
		slow  = charging(throttler.Limit{Algorithm: throttler.TokenBucket, Quota: 22, Window: 7 * time.Millisecond, Burst: 6})
		fast  = charging(throttler.Limit{Algorithm: throttler.TokenBucket, Quota: 7, Window: time.Millisecond, Burst: 6})
		token = func(quota int64, window time.Duration) func(int64) []throttler.Charge {
			return charging(limit(throttler.TokenBucket, quota, window))
		}
	)
	return []testCase{
		{
			name:        "another quota: used stays, remaining follows",
			explanation: countsFound,
			steps: []step{
				{at: 0, take: fixed(5), want: room(5, 5, 60*s)},
				{at: s, peek: higher(0), want: room(5, 15, 60*s)},
				{at: s, take: higher(7), want: room(12, 8, 60*s)},
				{at: 2 * s, take: fixed(1), want: full(12, 0, 60*s, 60*s)},
				{at: 2 * s, take: lower(1), want: full(12, 0, 60*s, 60*s)},
				{at: 2 * s, take: lower(0), want: full(12, 0, 60*s, 60*s)},
				{at: 2 * s, take: higher(1), want: room(13, 7, 60*s)},
				{at: 60 * s, take: lower(3), want: room(3, 0, 120*s)},
			},
		},
		{
			name:        "another quota of a sliding window",
			explanation: countsFound,
			steps: []step{
				{at: 0, take: sliding(10, 10*s)(6), want: room(6, 4, 19750*time.Millisecond)},
				{at: s, take: sliding(20, 10*s)(6), want: room(12, 8, 19750*time.Millisecond)},
				{at: s, peek: sliding(10, 10*s)(0), want: full(12, 0, 19750*time.Millisecond, 11417*time.Millisecond)},
			},
		},
		{
			name:        "another quota of a sliding log",
			explanation: countsFound,
			steps: []step{
				{at: 0, take: log(10, 10*s)(6), want: room(6, 4, 10*s)},
				{at: s, take: log(20, 10*s)(6), want: room(12, 8, 11*s)},
				{at: s, peek: log(5, 10*s)(0), want: full(12, 0, 11*s, 11*s)},
			},
		},
		{
			name:        "another quota of a token bucket: its units stay",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: token(10, 10*s)(4), want: room(4, 6, 4*s)},
				{at: 0, peek: token(20, 10*s)(0), want: room(4, 16, 2*s)},
				{at: s, take: token(20, 10*s)(2), want: room(4, 16, 3*s)},
				{at: s, peek: token(5, 10*s)(0), want: room(4, 1, 3*s)},
				{at: 2 * s, take: token(5, 10*s)(2), want: room(4, 1, 10*s)},
			},
		},
		{
			name:        "a lower rate of a token bucket with a burst hands out nothing",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: burst(100)(100), want: room(100, 0, 60*s)},
				{at: 0, process: 1, take: burst(10)(1), want: full(100, 0, 60*s, 600*time.Millisecond)},
				{at: 600 * time.Millisecond, process: 1, take: burst(10)(1), want: room(100, 0, 600600*time.Millisecond)},
				{at: 700 * time.Millisecond, take: burst(100)(1), want: full(100, 0, 60600*time.Millisecond, 1200*time.Millisecond)},
				{at: 1200 * time.Millisecond, process: 1, take: burst(10)(1), want: full(100, 0, 600600*time.Millisecond, 6600*time.Millisecond)},
			},
		},
		{
			name:        "a token bucket of two quotas has room for what drains at the higher one",
			explanation: looserOfBoth,
			steps: []step{
				{at: 0, take: token(100, 60*s)(100), want: room(100, 0, 60*s)},
				{at: 600 * time.Millisecond, process: 1, take: token(90, 60*s)(1), want: full(99, 0, 60*s, 6600*time.Millisecond)},
				{at: 6600 * time.Millisecond, process: 1, take: token(90, 60*s)(1), want: room(90, 0, 66600*time.Millisecond)},
				{at: 6600 * time.Millisecond, take: token(100, 60*s)(10), want: room(100, 0, 66600*time.Millisecond)},
				{at: 6600 * time.Millisecond, process: 1, take: token(90, 60*s)(1), want: full(100, 0, 66600*time.Millisecond, 13200*time.Millisecond)},
			},
		},
		{
			name:        "a longer window counts what a shorter one counts, and a shorter one leaves it no more than it allows in its length",
			explanation: looserOfBoth,
			steps: []step{
				{at: 0, take: charging(limit(throttler.FixedWindow, 100, 60*s))(95), want: room(95, 5, 60*s)},
				{at: s, process: 1, take: tenIn6(1), want: full(95, 0, 60*s, 6*s)},
				{at: 6 * s, process: 1, take: tenIn6(4), want: room(9, 1, 60*s)},
				{at: 12 * s, process: 1, take: tenIn6(2), want: full(9, 1, 60*s, 60*s)},
				{at: 60 * s, process: 1, take: tenIn6(4), want: room(4, 6, 66*s)},
				{at: 61 * s, peek: charging(limit(throttler.FixedWindow, 100, 60*s))(0), want: room(4, 96, 66*s)},
				{at: 61 * s, take: charging(limit(throttler.FixedWindow, 100, 60*s))(96), want: room(100, 0, 121*s)},
				{at: 66 * s, peek: charging(limit(throttler.FixedWindow, 100, 60*s))(0), want: room(96, 4, 121*s)},
			},
		},
		{
			name:        "a window made shorter ends as if it had been so from its beginning",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: fixed(8), as: "a", want: room(8, 2, 60*s)},
				{at: s, take: tenSecs(3), want: full(8, 2, 10*s, 10*s)},
				{at: 2 * s, peek: tenSecs(3), want: full(8, 2, 10*s, 10*s)},
				{at: 3 * s, process: 1, take: fixed(1), want: room(9, 1, 60*s)},
				{at: 4 * s, take: tenSecs(1), want: room(10, 0, 10*s)},
				{at: 4 * s, process: 1, peek: fixed(1), want: full(10, 0, 60*s, 60*s)},
				{at: 5 * s, process: 1, refund: "a", want: room(2, 8, 60*s)},
				{at: 5 * s, peek: tenSecs(0), want: room(2, 8, 10*s)},
				{at: 10 * s, take: tenSecs(4), want: room(4, 6, 20*s)},
				{at: 10 * s, process: 1, peek: fixed(1), want: room(6, 4, 60*s)},
			},
		},
		{
			name:        "a window that began long ago ends when it is made shorter",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: fixed(10), want: room(10, 0, 60*s)},
				{at: 20 * s, take: tenSecs(4), want: room(4, 6, 30*s)},
			},
		},
		{
			name:        "a window made longer begins with its first charge; what was counted ends when it was to end",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: tenSecs(5), want: room(5, 5, 10*s)},
				{at: s, peek: fixed(6), want: full(5, 5, 10*s, 10*s)},
				{at: s, take: fixed(2), want: room(7, 3, 61*s)},
				{at: 2 * s, process: 1, peek: tenSecs(0), want: room(7, 3, 10*s)},
				{at: 10 * s, take: fixed(1), want: room(3, 7, 61*s)},
				{at: 11 * s, process: 1, take: tenSecs(3), want: room(3, 7, 21*s)},
				{at: 12 * s, peek: fixed(0), want: room(6, 4, 61*s)},
			},
		},
		{
			name:        "a record that only other policies charge ends where its own left it",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: tenSecs(5), want: room(5, 5, 10*s)},
				{at: s, take: fixed(2), want: room(7, 3, 61*s)},
				{at: 61 * s, take: fixed(1), want: room(1, 9, 121*s)},
				{at: 62 * s, process: 1, peek: tenSecs(1), want: room(1, 9, 71*s)},
			},
		},
		{
			name:        "a sliding window made shorter counts from the start of its window",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: sliding(10, 60*s)(6), want: room(6, 4, 119750*time.Millisecond)},
				{at: s, peek: sliding(10, 10*s)(0), want: room(6, 4, 19750*time.Millisecond)},
				{at: s, take: sliding(10, 10*s)(1), want: room(7, 3, 19750*time.Millisecond)},
				{at: s, process: 1, peek: sliding(10, 60*s)(0), want: room(7, 3, 119750*time.Millisecond)},
			},
		},
		{
			name:        "a sliding window made longer ends no later than before",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: sliding(10, 10*s)(6), want: room(6, 4, 19750*time.Millisecond)},
				{at: s, peek: sliding(10, 60*s)(0), want: room(6, 4, 19750*time.Millisecond)},
				{at: 9750 * time.Millisecond, peek: sliding(10, 60*s)(0), want: room(6, 4, 19750*time.Millisecond)},
				{at: 14750 * time.Millisecond, peek: sliding(10, 60*s)(0), want: room(3, 7, 19750*time.Millisecond)},
				{at: 14750 * time.Millisecond, peek: sliding(10, 60*s)(8), want: full(3, 7, 19750*time.Millisecond, 16417*time.Millisecond)},
			},
		},
		{
			name:        "a sliding log made shorter sees what is inside the new window",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: log(10, 60*s)(2), want: room(2, 8, 60*s)},
				{at: 5 * s, take: log(10, 60*s)(3), as: "b", want: room(5, 5, 65*s)},
				{at: 11 * s, peek: log(10, 10*s)(0), want: room(3, 7, 15*s)},
				{at: 11 * s, take: log(10, 10*s)(1), want: room(4, 6, 21*s)},
				{at: 12 * s, process: 1, peek: log(10, 60*s)(0), want: room(6, 4, 71*s)},
				{at: 12 * s, process: 1, refund: "b", want: room(3, 7, 71*s)},
				{at: 12 * s, peek: log(10, 10*s)(0), want: room(1, 9, 21*s)},
			},
		},
		{
			name:        "a sliding log made longer lets charges leave when they were to leave",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: log(10, 10*s)(2), want: room(2, 8, 10*s)},
				{at: 5 * s, take: log(10, 10*s)(3), want: room(5, 5, 15*s)},
				{at: 6 * s, take: log(10, 60*s)(1), want: room(6, 4, 66*s)},
				{at: 10 * s, peek: log(10, 60*s)(0), want: room(4, 6, 66*s)},
				{at: 15 * s, peek: log(10, 60*s)(0), want: room(1, 9, 66*s)},
			},
		},
		{
			name:        "a token bucket made slower is full when it was to be, unless it is charged",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: token(10, 10*s)(4), want: room(4, 6, 4*s)},
				{at: 0, peek: token(10, 20*s)(0), want: room(4, 6, 4*s)},
				{at: 4 * s, peek: token(10, 20*s)(0), want: room(0, 10, 4*s)},
				{at: 2 * s, take: token(10, 20*s)(1), want: room(3, 7, 8*s)},
				{at: 6 * s, peek: token(10, 20*s)(0), want: room(1, 9, 8*s)},
			},
		},
		{
			name:        "a token bucket made faster fills faster since its last charge",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: token(10, 60*s)(10), want: room(10, 0, 60*s)},
				{at: 50 * time.Millisecond, take: token(10, s)(1), want: full(10, 0, s, 100*time.Millisecond)},
				{at: 60 * time.Millisecond, take: token(10, s)(1), want: full(10, 0, s, 100*time.Millisecond)},
				{at: 100 * time.Millisecond, take: token(10, s)(1), want: room(10, 0, 1100*time.Millisecond)},
			},
		},
		{
			name:        "a token bucket that is full within a part of a millisecond counts all that fills it",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: slow(1), want: room(1, 5, time.Millisecond)},
				{at: 0, process: 1, take: fast(5), want: room(6, 0, time.Millisecond)},
				{at: 0, peek: slow(0), want: room(6, 0, 2*time.Millisecond)},
			},
		},
		{
			name:        "of two new limits the one with the nearer window continues, the other refuses no client",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: charging(limit(throttler.FixedWindow, 1000, time.Hour))(100), want: room(100, 900, time.Hour)},
				{at: 10 * time.Minute, take: charging(limit(throttler.FixedWindow, 60, 60*s), limit(throttler.FixedWindow, 2000, 2*time.Hour))(1), want: all(room(1, 59, 11*time.Minute), room(101, 1899, 130*time.Minute))},
				{at: 60 * time.Minute, peek: charging(limit(throttler.FixedWindow, 60, 60*s), limit(throttler.FixedWindow, 2000, 2*time.Hour))(0), want: all(room(0, 60, time.Hour), room(1, 1999, 130*time.Minute))},
			},
		},
		{
			name:        "of two windows that are nearly as near the nearer one continues",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: token(100, 268_435_455*time.Millisecond)(20), want: room(20, 80, 53_687_091*time.Millisecond)},
				{at: 0, take: token(50, 268_435_457*time.Millisecond)(5), want: room(25, 25, 134_217_729*time.Millisecond)},
				{at: 27_000_000 * time.Millisecond, take: token(100, 268_435_455*time.Millisecond)(1), want: room(16, 84, 69_793_219*time.Millisecond)},
				{at: 27_000_000 * time.Millisecond, take: token(100, 268_435_456*time.Millisecond)(1), want: room(22, 78, 85_977_574*time.Millisecond)},
			},
		},
		{
			name:        "aligned from now on: the open window stays",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: fixed(5), want: room(5, 5, 60*s)},
				{at: s, take: charging(throttler.Limit{Quota: 10, Window: 60 * s, Aligned: true})(1), want: room(6, 4, 60*s)},
				{at: 60 * s, take: charging(throttler.Limit{Quota: 10, Window: 60 * s, Aligned: true})(1), want: room(1, 9, 119750*time.Millisecond)},
			},
		},
		{
			name:        "a limit added to the old one counts the window that is open, and resets nothing",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: fixed(2), want: room(2, 8, 60*s)},
				{at: s, peek: pair(1), want: all(room(2, 8, 60*s), room(2, 3, 3*s))},
				{at: 4 * s, peek: pair(1), want: all(room(2, 8, 60*s), room(0, 5, 4*s))},
				{at: 4 * s, take: pair(1), want: all(room(3, 7, 60*s), room(1, 4, 7*s))},
				{at: 4 * s, take: charging(minute, short, bucket)(2), want: all(room(5, 5, 60*s), room(3, 2, 7*s), room(2, 8, 6*s))},
			},
		},
		{
			name:        "a limit added in front of the old one resets nothing",
			explanation: countsAtMost,
			steps: []step{
				{at: 0, take: fixed(4), want: room(4, 6, 60*s)},
				{at: s, take: swapped(1), want: all(room(5, 0, 3*s), room(5, 5, 60*s))},
			},
		},
		{
			name:        "the order of limits does not matter",
			explanation: countsFound,
			steps: []step{
				{at: 0, take: pair(3), as: "a", want: all(room(3, 7, 60*s), room(3, 2, 3*s))},
				{at: s, peek: swapped(0), want: all(room(3, 2, 3*s), room(3, 7, 60*s))},
				{at: s, take: swapped(3), want: all(full(3, 2, 3*s, 3*s), room(3, 7, 60*s))},
				{at: s, take: swapped(1), want: all(room(4, 1, 3*s), room(4, 6, 60*s))},
				{at: 2 * s, refund: "a", want: all(room(1, 9, 60*s), room(1, 4, 3*s))},
				{at: 4 * s, take: pair(2), want: all(room(3, 7, 60*s), room(2, 3, 7*s))},
			},
		},
		{
			name:        "processes with the old policy and the new share what both have",
			explanation: countsFound,
			steps: []step{
				{at: 0, take: fixed(1), want: room(1, 9, 60*s)},
				{at: s, process: 1, take: pair(2), want: all(room(3, 7, 60*s), room(3, 2, 3*s))},
				{at: s, take: fixed(1), want: room(4, 6, 60*s)},
				{at: s, process: 1, take: pair(1), want: all(room(5, 5, 60*s), room(5, 0, 3*s))},
				{at: s, take: fixed(1), want: room(6, 4, 60*s)},
				{at: s, process: 1, take: swapped(2), want: all(full(6, 0, 3*s, 3*s), room(6, 4, 60*s))},
			},
		},
		{
			name:        "another algorithm starts empty, and its charges count for the old one too",
			explanation: countsFound,
			steps: []step{
				{at: 0, take: fixed(4), want: room(4, 6, 60*s)},
				{at: s, take: charging(bucket)(1), want: room(1, 9, 2*s)},
				{at: s, process: 1, peek: fixed(0), want: room(5, 5, 60*s)},
			},
		},
	}
}
