package algorithm

import "github.com/weir-go/weir/throttler"

// What the Redis scripts get of a limit, and reply about it; lua/decide.lua reads
// the one and writes the other.

// AppendLimit appends l as scripts read it: 1 kind, 6 window, 7 quota, 7 capacity.
func AppendLimit(b []byte, l *throttler.Limit) []byte {
	n := limitOf(l)
	b = append(b, byte(n.kind))
	b = AppendUint(b, windowBytes, n.window)
	b = appendCount(b, n.quota)
	return appendCount(b, n.capacity)
}

// CutResult returns what a script's reply begins with, the result for l, and the
// rest of the reply. It reports false if the reply is too short.
func CutResult(l *throttler.Limit, reply []int64) (Result, []int64, bool) {
	size := 6
	if kinds[kindOf(l)].markIsResetAt {
		size = 3
	}
	if len(reply) < size {
		return Result{}, nil, false
	}
	r := Result{Used: reply[0], ResetAt: reply[1], RetryAt: reply[2]}
	if size == 3 {
		r.Mark.At = r.ResetAt
	} else {
		r.StartAt = reply[3]
		r.Mark = throttler.Mark{At: reply[4], Fraction: reply[5]}
	}
	return r, reply[size:], true
}
