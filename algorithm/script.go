package algorithm

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// What the Redis scripts get of a limit, and reply about it; lua/decide.lua reads
// the one and writes the other.

// AppendLimit appends l as scripts read it: 1 kind, 6 window, 7 quota, 7 capacity.
func AppendLimit(b []byte, l *quota.Limit) []byte {
	n := limitOf(l)
	b = append(b, byte(n.kind))
	b = AppendUint(b, windowBytes, n.window)
	b = appendCount(b, n.quota)
	return appendCount(b, n.capacity)
}

// ReadStored writes a result for each of limits to results, read from the stored
// form of a state, after a decision at now about cost that charged it or did not. It
// reports whether cost fits, and fails if b is not what a script replies: a proxy, or a
// script that is not ours, may answer anything.
func ReadStored(b []byte, charged bool, limits []quota.Limit, cost, now int64, results []driver.Result) (fits bool, err error) {
	s := states.Get().(*State)
	defer states.Put(s)
	if err := s.Load(b); err != nil {
		return false, err
	}
	if !charged {
		fits = s.Evaluate(limits, cost, now, results)
	} else if fits = s.charged(limits, cost, now, results); !fits {
		return false, errors.New("a state is not one that was charged")
	}
	for i := range results {
		if err := plausible(&limits[i], cost, now, &results[i]); err != nil {
			return false, err
		}
	}
	return fits, nil
}

var states = sync.Pool{New: func() any { return new(State) }}

// CutResult returns what a script's reply in numbers begins with, the result for l of
// a decision at now about cost, and the rest of the reply. It fails if no script
// replies this.
func CutResult(l *quota.Limit, cost, now int64, reply []int64) (driver.Result, []int64, error) {
	const size = 7
	if len(reply) < size {
		return driver.Result{}, nil, errors.New("the reply is too short")
	}
	r := driver.Result{
		Used: reply[0], ResetAt: reply[1], RetryAt: reply[2], NextAt: reply[3], StartAt: reply[4],
		Mark: driver.Mark{At: reply[5], Fraction: reply[6]},
	}
	if err := plausible(l, cost, now, &r); err != nil {
		return driver.Result{}, nil, err
	}
	leaveOutNext(l, &r)
	return r, reply[size:], nil
}

// plausible returns an error if no decision at now about cost has the result r.
func plausible(l *quota.Limit, cost, now int64, r *driver.Result) error {
	isInstant := func(at int64) bool { return at >= now && at <= max(now, maxInstant)+maxWindow }
	switch {
	case r.Used < 0 || r.Used > maxCount:
		return fmt.Errorf("used is %d", r.Used)
	case !isInstant(r.ResetAt):
		return fmt.Errorf("reset at is %d, at %d", r.ResetAt, now)
	case r.RetryAt != 0 && (r.RetryAt == driver.NeverFits) != (cost > l.Capacity()) || r.RetryAt > 0 && !isInstant(r.RetryAt) || r.RetryAt < driver.NeverFits:
		return fmt.Errorf("retry at is %d, at %d, for a cost of %d", r.RetryAt, now, cost)
	case r.NextAt != 0 && (!isInstant(r.NextAt) || r.Used < l.Capacity()):
		return fmt.Errorf("next at is %d, at %d, with %d used of %d", r.NextAt, now, r.Used, l.Capacity())
	case r.StartAt != 0 && (!kinds[kindOf(l)].queue || !isInstant(r.StartAt)):
		return fmt.Errorf("start at is %d, at %d", r.StartAt, now)
	case r.Mark.At < 0 || r.Mark.At > max(now, maxInstant)+maxWindow || r.Mark.Fraction < 0 || r.Mark.Fraction > maxCount:
		return fmt.Errorf("the mark is %v", r.Mark)
	}
	return nil
}

const maxWindow = int64(quota.MaxWindow / time.Millisecond)
