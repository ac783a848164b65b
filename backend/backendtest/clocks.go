package backendtest

import "time"

// clockCases have clocks that step back, and processes whose clocks differ.
func clockCases() []testCase {
	const s = time.Second
	var (
		fixed   = on(tenPer10s[0])
		aligned = on(tenPer10s[1])
		sliding = on(tenPer10s[2])
		log     = on(tenPer10s[3])
		token   = on(tenPer10s[4])
		leaky   = on(tenPer10s[5])
	)
	return []testCase{
		{
			name:        "a fixed window outlives a step back",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: fixed(4), want: room(4, 6, 10*s)},
				{at: -5 * s, peek: fixed(0), want: room(4, 6, 10*s)},
				{at: -5 * s, take: fixed(1), want: room(5, 5, 10*s)},
				{at: -5 * s, take: fixed(6), want: full(5, 5, 10*s, 10*s)},
				{at: 9999 * time.Millisecond, take: fixed(5), want: room(10, 0, 10*s)},
				{at: 10 * s, take: fixed(1), want: room(1, 9, 20*s)},
			},
		},
		{
			name:        "an aligned window outlives a step back to before its start",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: aligned(4), want: room(4, 6, 9750*time.Millisecond)},
				{at: -s, take: aligned(1), want: room(5, 5, 9750*time.Millisecond)},
				{at: 9750 * time.Millisecond, take: aligned(1), want: room(1, 9, 19750*time.Millisecond)},
			},
		},
		{
			name:        "a sliding window counts time before its start as the start",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: sliding(6), want: room(6, 4, 19750*time.Millisecond)},
				{at: 14750 * time.Millisecond, take: sliding(1), want: room(4, 6, 29750*time.Millisecond)},
				{at: 5 * s, peek: sliding(0), want: room(7, 3, 29750*time.Millisecond)},
				{at: 5 * s, take: sliding(2), want: room(9, 1, 29750*time.Millisecond)},
				// Room for two after three: 6 * (10 s - x) / 10 s <= 5 from 1667 ms.
				{at: 5 * s, take: sliding(2), want: full(9, 1, 29750*time.Millisecond, 11417*time.Millisecond)},
				{at: 14750 * time.Millisecond, peek: sliding(0), want: room(6, 4, 29750*time.Millisecond)},
				{at: 19750 * time.Millisecond, peek: sliding(0), want: room(3, 7, 29750*time.Millisecond)},
			},
		},
		{
			name:        "a sliding log logs no earlier than it did before",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: log(1), want: room(1, 9, 10*s)},
				{at: 5 * s, take: log(1), want: room(2, 8, 15*s)},
				{at: 2 * s, take: log(3), want: room(5, 5, 15*s)},
				{at: 2 * s, take: log(6), want: full(5, 5, 15*s, 10*s)},
				{at: 12 * s, peek: log(0), want: room(4, 6, 15*s)},
				{at: 15 * s, peek: log(0), want: room(0, 10, 15*s)},
			},
		},
		{
			name:        "a token bucket keeps the instant at which it is drained",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: token(4), want: room(4, 6, 4*s)},
				{at: -2 * s, peek: token(0), want: room(6, 4, 4*s)},
				{at: -2 * s, take: token(1), want: room(7, 3, 5*s)},
				{at: -6 * s, take: token(0), want: full(11, 0, 5*s, -5*s)},
				{at: 0, peek: token(0), want: room(5, 5, 5*s)},
			},
		},
		{
			name:        "a leaky bucket keeps the instant at which it is drained",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: leaky(4), want: queued(4, 6, 4*s, 0)},
				{at: -2 * s, take: leaky(1), want: queued(7, 3, 5*s, 4*s)},
			},
		},
		{
			name:        "a process whose clock is behind sees the live window",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: fixed(1), want: room(1, 9, 10*s)},
				{at: -2 * s, process: 1, take: fixed(1), want: room(2, 8, 10*s)},
				{at: 9 * s, take: fixed(1), want: room(3, 7, 10*s)},
				{at: 7 * s, process: 1, peek: fixed(0), want: room(3, 7, 10*s)},
				{at: 10 * s, take: fixed(1), want: room(1, 9, 20*s)},
				{at: 8 * s, process: 1, peek: fixed(0), want: room(1, 9, 20*s)},
				{at: 8 * s, process: 1, take: fixed(1), want: room(2, 8, 20*s)},
				{at: 11 * s, take: fixed(1), want: room(3, 7, 20*s)},
				{at: 18 * s, process: 1, take: fixed(1), want: room(4, 6, 20*s)},
				{at: 20 * s, peek: fixed(0), want: room(0, 10, 20*s)},
			},
		},
		{
			name:        "a process whose clock is ahead opens the window for both",
			explanation: resetStored,
			steps: []step{
				{at: 0, take: fixed(2), want: room(2, 8, 10*s)},
				{at: 10 * s, process: 1, take: fixed(3), want: room(3, 7, 20*s)},
				{at: 7 * s, take: fixed(1), want: room(4, 6, 20*s)},
				{at: 19 * s, take: fixed(1), want: room(5, 5, 20*s)},
			},
		},
		{
			name:        "a refund through another process names the same window",
			explanation: refundNames,
			steps: []step{
				{at: 0, take: fixed(2), as: "a", want: room(2, 8, 10*s)},
				{at: 0, take: fixed(3), want: room(5, 5, 10*s)},
				{at: -2 * s, process: 1, refund: "a", want: room(3, 7, 10*s)},
			},
		},
		{
			name:        "the epoch is an instant like any other",
			explanation: ourTime,
			steps: []step{ // t0 is 1893456000250 ms after it
				{at: -1893456000250 * time.Millisecond, take: fixed(1), want: room(1, 9, -1893455990250*time.Millisecond)},
				{at: -1893455990250 * time.Millisecond, take: fixed(1), want: room(1, 9, -1893455980250*time.Millisecond)},
			},
		},
	}
}
