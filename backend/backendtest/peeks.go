package backendtest

import (
	"time"

	"github.com/weir-go/weir/throttler"
)

func peekCases() []testCase {
	const s = time.Second
	core := charging(throttler.Limit{Quota: 10, Window: 10 * s})
	bucket := charging(throttler.Limit{Quota: 10, Window: 10 * s, Algorithm: throttler.TokenBucket})
	cases := []testCase{
		{
			name:        "says whether a take would be allowed",
			explanation: peekAnswers,
			steps: []step{
				{at: 0, take: core(7), want: room(7, 3, 10*s)},
				{at: s, peek: core(3), want: room(7, 3, 10*s)},
				{at: s, peek: core(4), want: full(7, 3, 10*s, 10*s)},
				{at: s, peek: core(11), want: full(7, 3, 10*s, forever)},
				{at: s, take: core(3), want: room(10, 0, 10*s)},
				{at: s, peek: core(0), want: room(10, 0, 10*s)},
				{at: s, peek: core(1), want: full(10, 0, 10*s, 10*s)},
			},
		},
		{
			name:        "does not prolong a bucket",
			explanation: peekReads,
			steps: []step{
				{at: 0, take: bucket(2), want: room(2, 8, 2*s)},
				{at: s, peek: bucket(8), want: room(1, 9, 2*s)},
				{at: 2 * s, peek: bucket(10), want: room(0, 10, 2*s)},
				{at: 3 * s, peek: bucket(1), want: room(0, 10, 3*s)},
				{at: 3 * s, take: bucket(1), want: room(1, 9, 4*s)},
			},
		},
	}
	// A peek before the take does not change when the window opens, and a peek after its end
	// sees no window.
	resets := []time.Duration{14 * s, 9750 * time.Millisecond, 19750 * time.Millisecond, 14 * s, 6 * s, 6 * s}
	for i, l := range tenPer10s {
		p := charging(l)
		charged := room(2, 8, resets[i])
		if l.Algorithm.Queues() {
			charged = queued(2, 8, resets[i], 4*s)
		}
		cases = append(cases, testCase{
			name:        "opens no window, " + nameOf(l),
			explanation: peekReads,
			steps: []step{
				{at: 0, peek: p(1), want: room(0, 10, 0)},
				{at: s, peek: p(10), want: room(0, 10, s)},
				{at: 2 * s, peek: p(11), want: full(0, 10, 2*s, forever)},
				{at: 4 * s, take: p(2), want: charged},
				{at: 4 * s, peek: p(8), want: room(2, 8, resets[i])},
				{at: 4 * s, peek: p(8), want: room(2, 8, resets[i])},
				{at: resets[i], peek: p(10), want: room(0, 10, resets[i])},
				{at: 60 * s, peek: p(10), want: room(0, 10, 60*s)},
			},
		})
	}
	return cases
}
