package algorithm

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/throttler"
)

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

// CutResult returns what a script's reply begins with, the result for l of a
// decision at now about cost, and the rest of the reply. It fails if no script
// replies this: a proxy, or a script that is not ours, may answer anything.
func CutResult(l *throttler.Limit, cost, now int64, reply []int64) (throttler.Result, []int64, error) {
	k := kindOf(l)
	size := 6
	if kinds[k].markIsResetAt {
		size = 3
	}
	if len(reply) < size {
		return throttler.Result{}, nil, errors.New("the reply is too short")
	}
	r := throttler.Result{Used: reply[0], ResetAt: reply[1], RetryAt: reply[2]}
	if size == 3 {
		r.Mark.At = r.ResetAt
	} else {
		r.StartAt = reply[3]
		r.Mark = throttler.Mark{At: reply[4], Fraction: reply[5]}
	}
	isInstant := func(at int64) bool { return at >= now && at <= max(now, maxInstant)+maxWindow }
	switch {
	case r.Used < 0 || r.Used > maxCount:
		return throttler.Result{}, nil, fmt.Errorf("used is %d", r.Used)
	case !isInstant(r.ResetAt):
		return throttler.Result{}, nil, fmt.Errorf("reset at is %d, at %d", r.ResetAt, now)
	case r.RetryAt != 0 && (r.RetryAt == throttler.NeverFits) != (cost > l.Capacity()) || r.RetryAt > 0 && !isInstant(r.RetryAt) || r.RetryAt < throttler.NeverFits:
		return throttler.Result{}, nil, fmt.Errorf("retry at is %d, at %d, for a cost of %d", r.RetryAt, now, cost)
	case r.StartAt != 0 && (!kinds[k].queue || !isInstant(r.StartAt)):
		return throttler.Result{}, nil, fmt.Errorf("start at is %d, at %d", r.StartAt, now)
	case r.Mark.At < 0 || r.Mark.At > max(now, maxInstant)+maxWindow || r.Mark.Fraction < 0 || r.Mark.Fraction > maxCount:
		return throttler.Result{}, nil, fmt.Errorf("the mark is %v", r.Mark)
	}
	return r, reply[size:], nil
}

const maxWindow = int64(throttler.MaxWindow / time.Millisecond)
